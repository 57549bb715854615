"""What this edge drafts for one choice. Sans-IO: what is certain and the time in, hints out.

    follow(stream) ─► the drafter reads what is new, and says when it has something to say (`due_s`)
    hint(now)      ─► what that is

A core drafts beside its model too; all offer to one mailbox, and each is counted by its name.
"""

from math import ceil
from typing import Protocol

from firstlight.shared.drafting.ngram import NgramDrafter
from firstlight.shared.stream import TokenStream, chain_next
from firstlight.shared.types import Hint, Request

NGRAM_SOURCE = "edge-ngram"
HINT_IDS_MAX = 16
"""Ids a hint: what a core can verify in one step, and a few more for the steps after."""
LEAD_MAX = 64
"""Ids that may be drafted beyond what is committed, however far away the core is."""


class Drafter(Protocol):
    """Drafts for one choice."""

    due_s: float | None
    """When there will be something to offer; None: not before something else is committed."""

    def follow(self, stream: TokenStream, now: float, rtt_ms: float) -> None:
        """Read what `stream` has more than at the last call. Its core is `rtt_ms` away."""
        ...

    def reopened(self) -> None:
        """The core is another one: it knows of no hint. Followed by `follow`."""
        ...

    def hint(self, now: float) -> Hint | None:
        """What is there by now and was not offered."""
        ...


class NgramDraft:
    """What followed when the text looked like this before; takes no time, once a commit."""

    def __init__(self, request: Request, stream: TokenStream) -> None:
        self.due_s: float | None = None
        self._request = request.id
        self._stream = stream
        self._ngram = NgramDrafter((*request.prompt, *stream.ids))
        self._read = stream.position

    def follow(self, stream: TokenStream, now: float, rtt_ms: float) -> None:
        """Index what is new."""
        self._ngram.append(stream.ids_from(self._read))
        self._stream, self._read, self.due_s = stream, stream.position, now

    def reopened(self) -> None:
        """It offers from where the stream stands, always."""

    def hint(self, now: float) -> Hint | None:
        """The longest match, continued; None without one."""
        self.due_s = None
        ids = self._ngram.propose(HINT_IDS_MAX)
        if not ids:
            return None
        return Hint(self._request, self._stream.position, self._stream.chain, ids, NGRAM_SOURCE)


class IdDrafter(Protocol):
    """Drafts id by id, as a model does, behind a text that can be taken back."""

    def rewind(self, position: int) -> None:
        """Forget all ids from `position` on."""
        ...

    def append(self, ids: tuple[int, ...]) -> None:
        """Ids that somebody else chose."""
        ...

    def next(self) -> int:
        """Draft one id, and go on behind it."""
        ...


class FreeDraft:
    """A chain of ids that is drafted on and on, one every `token_ms`, whatever the core does.

    A commit that agrees with the chain leaves it alone; one that disagrees with it, or is ahead of
    it, starts it again from what is committed, and the id in the making is dropped. It stands while
    it is so far ahead that a core could use no more of it before the next commit is here: what is
    on its way there and back, and what one step can take.
    """

    def __init__(
        self,
        request: Request,
        stream: TokenStream,
        drafter: IdDrafter,
        *,
        token_ms: float,
        source: str,
    ) -> None:
        """`drafter` stands behind the prompt."""
        self.due_s: float | None = None
        self._request, self._source = request.id, source
        self._eos_ids = request.eos_ids
        self._end = len(request.prompt) + request.max_tokens - 1
        """The last id of an answer needs no hint: it comes with the one before."""
        self._token_s = token_ms / 1000
        self._drafter = drafter
        drafter.append(tuple(stream.ids))
        self._position = stream.position
        self._ahead: list[int] = []
        """Drafted ids from `_position` on."""
        self._offered = 0
        """How many of those were offered."""
        self._chain = stream.chain
        """The chain hash behind those that were offered."""
        self._lead_max = 0

    def follow(self, stream: TokenStream, now: float, rtt_ms: float) -> None:
        """Compare the chain with what is new."""
        fresh = stream.ids_from(self._position)
        agreed = _agreeing(fresh, self._ahead)
        self._lead_max = min(LEAD_MAX, ceil(rtt_ms / 1000 / self._token_s) + HINT_IDS_MAX)
        if agreed == len(fresh):
            del self._ahead[:agreed]
            self._offered -= agreed
            if self._offered <= 0:
                self._offered, self._chain = 0, stream.chain
            self._position = stream.position
        else:
            self._drafter.rewind(self._position + agreed)
            self._drafter.append(fresh[agreed:])
            self._position = stream.position
            self._ahead.clear()
            self._offered, self._chain, self.due_s = 0, stream.chain, None
        if self.due_s is None and self._may_draft:
            self.due_s = now + self._token_s

    def reopened(self) -> None:
        """Start the chain again: it is drafted in less time than a new core needs to begin."""
        self._drafter.rewind(self._position)
        self._ahead.clear()
        self._offered, self.due_s = 0, None

    def hint(self, now: float) -> Hint | None:
        """The ids that are there by now, as one hint."""
        while self.due_s is not None and self.due_s <= now:
            self._ahead.append(self._drafter.next())
            self.due_s = self.due_s + self._token_s if self._may_draft else None
        ids = tuple(self._ahead[self._offered :])
        if not ids:
            return None
        hint = Hint(self._request, self._position + self._offered, self._chain, ids, self._source)
        self._offered = len(self._ahead)
        for token in ids:
            self._chain = chain_next(self._chain, token)
        return hint

    @property
    def _may_draft(self) -> bool:
        ahead = self._ahead
        ended = bool(ahead) and ahead[-1] in self._eos_ids
        return len(ahead) < min(self._lead_max, self._end - self._position) and not ended


def _agreeing(fresh: tuple[int, ...], ahead: list[int]) -> int:
    """How many of the committed ids were foretold."""
    pairs = zip(fresh, ahead, strict=False)
    return next(
        (place for place, (one, other) in enumerate(pairs) if one != other),
        min(len(fresh), len(ahead)),
    )
