"""Where hints meet the sequence that they claim to foretell. Sans-IO.

A hint is idempotent, and may be lost, reordered, doubled, late, wrong, and come from several
sources; it is never an error. It is usable iff its hash equals the chain at its start and its ids
agree with what was committed since. What is left of it is the candidate, which any other hint
extends whose hash equals the chain at a position that the candidate reaches. Hints ahead of the
sequence are kept. One that goes on where its source's latest ended is joined to it, so that a
drafter may tell each id when it has it, and still be far ahead.

Everything is bounded: hints a request and source, sources a request, ids a hint. Of several hints
that fit, the one goes first whose source has been right most often in this request, then the
longest.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from firstlight.shared.stream import CHAIN_BYTES, TokenStream, chain_next
from firstlight.shared.types import Hint, HintCount, check_ids

HINTS_KEPT_MAX = 8
"""Hints a request and source; the oldest is dropped."""
HINT_IDS_MAX = 64
"""Ids of one hint that are kept; what is longer is cut."""
SOURCES_MAX = 4
"""Sources a request."""
SOURCE_CHARS_MAX = 32
RECENT_MAX = 64
"""Hints a request that are remembered as seen, so that a doubled one is not counted as offered."""


class Fate(StrEnum):
    """What became of a hint when it arrived; a reason for the shell to count, nothing more."""

    KEPT = "kept"
    DOUBLED = "doubled"
    LATE = "late"
    """All that it says is committed already."""
    WRONG = "wrong"
    """Of another history: its hash, or an id that was committed since, differs."""
    MALFORMED = "malformed"
    """No ids, ids outside the vocabulary, a hash or source of wrong size, a source too many."""
    UNKNOWN = "unknown"
    """Its request is not here (any more)."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """A linear run of claimed ids from the sequence's next position on."""

    start: int
    ids: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    """Who claimed each id."""


@dataclass(slots=True)
class _Box:
    stream: TokenStream
    kept: dict[str, deque[Hint]] = field(default_factory=dict)
    latest: dict[str, tuple[Hint, bytes]] = field(default_factory=dict)
    """By source: the hint that was kept last, and the chain hash behind it."""
    recent: deque[tuple[int, bytes, tuple[int, ...], str]] = field(
        default_factory=lambda: deque(maxlen=RECENT_MAX)
    )
    counts: dict[str, HintCount] = field(default_factory=dict)


class Mailbox:
    """The hints of all requests of one core."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._boxes: dict[str, _Box] = {}

    def __len__(self) -> int:
        """Requests that are open."""
        return len(self._boxes)

    def open(self, request: str, prompt: Sequence[int], committed: Sequence[int] = ()) -> None:
        """Begin to keep hints for a request; replaces what was there under that name."""
        self._boxes[request] = _Box(TokenStream(prompt, committed))

    def close(self, request: str) -> tuple[tuple[str, HintCount], ...]:
        """Forget a request; returns its counts by source. Harmless for an unknown one."""
        box = self._boxes.pop(request, None)
        return tuple(sorted(box.counts.items())) if box else ()

    def hint(self, hint: Hint) -> Fate:
        """Take in a claim, whatever it is worth."""
        box = self._boxes.get(hint.request)
        if box is None:
            return Fate.UNKNOWN
        ids = hint.ids[:HINT_IDS_MAX]
        if not self._well_formed(hint, ids) or not _admit_source(box, hint.source):
            return Fate.MALFORMED
        seen = (hint.start, hint.chain, ids, hint.source)
        if seen in box.recent:
            return Fate.DOUBLED
        box.recent.append(seen)
        box.counts[hint.source] += HintCount(offered=len(ids))
        hint = Hint(hint.request, hint.start, hint.chain, ids, hint.source)
        fate = _judge(box.stream, hint)
        if fate is Fate.KEPT:
            _keep(box, hint)
        return fate

    def candidate(self, request: str, ids_max: int = HINT_IDS_MAX) -> Continuation:
        """The best continuation of what is committed, at most `ids_max` ids; empty if none fits.

        Raises `KeyError` for a request that was not opened.
        """
        box = self._boxes[request]
        tip = box.stream.position
        waiting = [hint for hints in box.kept.values() for hint in hints]
        if not waiting or ids_max <= 0:
            return Continuation(tip)
        ids: list[int] = []
        sources: list[str] = []
        chains = [box.stream.chain]
        while len(ids) < ids_max:
            rests = [
                (_trust(box.counts[hint.source]), len(rest), rest, hint.source)
                for hint in waiting
                if (rest := _rest(box.stream, hint, ids, chains))
            ]
            if not rests:
                break
            _, _, rest, source = max(rests, key=lambda item: item[:2])
            for token in rest[: ids_max - len(ids)]:
                ids.append(token)
                sources.append(source)
                chains.append(chain_next(chains[-1], token))
        return Continuation(tip, tuple(ids), tuple(sources))

    def committed(self, request: str, ids: Sequence[int]) -> bytes:
        """Append what the target decided; returns the chain hash after it.

        Drops the hints that this makes late or wrong. Raises `KeyError` for an unknown request.
        """
        box = self._boxes[request]
        chain = box.stream.append(ids)
        for source, hints in box.kept.items():
            if any(_judge(box.stream, hint) is not Fate.KEPT for hint in hints):
                alive = (hint for hint in hints if _judge(box.stream, hint) is Fate.KEPT)
                box.kept[source] = deque(alive, maxlen=HINTS_KEPT_MAX)
        return chain

    def verified(self, request: str, counts: Sequence[tuple[str, HintCount]]) -> None:
        """Note how the ids of each source fared in a step (`offered` is counted here alone)."""
        box = self._boxes[request]
        for source, count in counts:
            if source in box.counts:
                box.counts[source] += HintCount(verified=count.verified, accepted=count.accepted)

    def tip(self, request: str) -> tuple[int, bytes]:
        """(next position, chain hash before it): where a drafter beside the core starts."""
        stream = self._boxes[request].stream
        return stream.position, stream.chain

    def counts(self, request: str) -> Mapping[str, HintCount]:
        """What each source did so far."""
        return self._boxes[request].counts

    def _well_formed(self, hint: Hint, ids: Sequence[int]) -> bool:
        return (
            bool(ids)
            and check_ids(ids, self._vocab) is None
            and len(hint.chain) == CHAIN_BYTES
            and 0 < len(hint.source) <= SOURCE_CHARS_MAX
        )


def _admit_source(box: _Box, source: str) -> bool:
    if source in box.counts:
        return True
    if len(box.counts) >= SOURCES_MAX:
        return False
    box.counts[source] = HintCount()
    box.kept[source] = deque(maxlen=HINTS_KEPT_MAX)
    return True


def _keep(box: _Box, hint: Hint) -> None:
    kept, end = box.kept[hint.source], hint.chain
    for token in hint.ids:
        end = chain_next(end, token)
    before, chain = box.latest.get(hint.source, (None, b""))
    if before is not None and kept and kept[-1] is before and chain == hint.chain:
        ids = before.ids + hint.ids
        if before.start + len(before.ids) == hint.start and len(ids) <= HINT_IDS_MAX:
            kept.pop()
            hint = Hint(before.request, before.start, before.chain, ids, before.source)
    kept.append(hint)
    box.latest[hint.source] = (hint, end)


def _judge(stream: TokenStream, hint: Hint) -> Fate:
    """KEPT while the hint can be of use: it is ahead, or fits and says more than is committed."""
    if hint.start > stream.position:
        return Fate.KEPT
    if stream.chain_at(hint.start) != hint.chain:
        return Fate.WRONG
    since = stream.ids_from(hint.start)
    if hint.ids[: len(since)] != since[: len(hint.ids)]:
        return Fate.WRONG
    return Fate.KEPT if len(hint.ids) > len(since) else Fate.LATE


def _rest(
    stream: TokenStream, hint: Hint, ids: Sequence[int], chains: Sequence[bytes]
) -> tuple[int, ...]:
    """Ids of `hint` beyond the candidate `ids`, or nothing if it does not fit.

    `chains[i]` is the chain hash after i candidate ids.
    """
    tip = stream.position
    ahead = hint.start - tip
    if ahead > len(ids):
        return ()
    if ahead < 0:  # the committed part was compared when the hint came or the ids were committed
        told = hint.ids[-ahead:]
    elif chains[ahead] == hint.chain:
        told = hint.ids
    else:
        return ()
    known = tuple(ids[max(0, ahead) :])
    return told[len(known) :] if told[: len(known)] == known else ()


def _trust(count: HintCount) -> float:
    """Share of a source's ids that were right, drawn towards a half while few were verified."""
    return (count.accepted + 2.0) / (count.verified + 4.0)
