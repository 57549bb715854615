"""Drafters beside the engine, on its thread: they offer to the mailbox as the edges do.

The n-gram drafter takes no time and speaks in every step. A drafter that takes time makes the step
wait for it, so it drafts no more ids than pay for that, and only behind what others have already
foretold. Of that kind there is the oracle, for timed cores: the time that it would take passes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from firstlight.core_node.mailbox import Mailbox
from firstlight.shared.drafting.ngram import NgramDrafter
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.oracle import Oracle, OracleConfig
from firstlight.shared.stream import chain_next
from firstlight.shared.types import Hint, Request

NGRAM_SOURCE = "core-ngram"
ORACLE_SOURCE = "core-oracle"
TRY_OTHERS_EVERY = 32
"""So often a candidate of others is verified as it is, although drafting afresh seems better: they
may have become good."""


@dataclass(frozen=True, slots=True)
class DraftingSection:
    """Hints that the core makes for itself."""

    ngram: bool = True
    """What followed the last time that the text looked like this."""
    oracle: OracleConfig | None = None
    """For laboratories, with `model.timed` only: foretells this core as often and as fast as it is
    told, in the place of a small model beside the large one."""


@dataclass(frozen=True, slots=True)
class Foretold:
    """A timed engine, as the oracle beside it sees it."""

    answer_ids: Sequence[int]
    """What its answers are made of."""
    delay: Callable[[float], None]
    """Lets so many seconds pass before the next step."""


@dataclass(slots=True)
class _Beside:
    ngram: NgramDrafter | None
    oracle: Oracle | None
    instead: int = 0
    """How often it drafted what others had foretold."""


@dataclass
class CoreDrafting:
    """The drafters of all requests of one core."""

    section: DraftingSection
    mailbox: Mailbox
    foretold: Foretold | None = None
    """There is one if `section` has an oracle."""
    _besides: dict[str, _Beside] = field(default_factory=dict)

    def open(self, request: Request, committed: tuple[int, ...]) -> None:
        """Begin to draft for a request, under its name."""
        oracle, ngram = None, None
        if self.section.ngram:
            ngram = NgramDrafter((*request.prompt, *committed))
        if self.section.oracle is not None:
            assert self.foretold is not None
            acceptance, ids = self.section.oracle.acceptance, self.foretold.answer_ids
            oracle = Oracle(acceptance, request, ids, name=ORACLE_SOURCE)
            oracle.append(committed)
        self._besides[request.id] = _Beside(ngram, oracle)

    def committed(self, handle: str, position: int, ids: Sequence[int]) -> None:
        """Ids from `position` on are certain."""
        beside = self._besides.get(handle)
        if beside is None:
            return
        if beside.ngram is not None:
            beside.ngram.append(ids)
        if beside.oracle is not None:
            beside.oracle.rewind(position)
            beside.oracle.append(ids)

    def forget(self, handle: str) -> None:
        """The request ended."""
        self._besides.pop(handle, None)

    def offer(self, engine: Engine, positions: Mapping[str, int], ids_max: int) -> None:
        """Draft for the next step, and wait for as long as that takes."""
        drafted = 0
        for handle, position in positions.items():
            beside = self._besides.get(handle)
            if beside is None:
                continue
            if beside.ngram is not None and (ids := beside.ngram.propose(ids_max)):
                start, chain = self.mailbox.tip(handle)
                self.mailbox.hint(Hint(handle, start, chain, ids, NGRAM_SOURCE))
            if beside.oracle is not None:
                drafted += self._draft(engine, handle, position, beside, ids_max)
        if drafted:
            assert self.section.oracle is not None
            assert self.foretold is not None
            self.foretold.delay(drafted * self.section.oracle.token_ms / 1000)

    def _draft(
        self, engine: Engine, handle: str, position: int, beside: _Beside, ids_max: int
    ) -> int:
        """Go on behind the candidate; returns how many ids were drafted."""
        oracle = beside.oracle
        assert self.section.oracle is not None
        assert oracle is not None
        found = self.mailbox.candidate(handle, ids_max)
        behind, count = engine.worth_drafting(
            handle, found.sources, ORACLE_SOURCE, self.section.oracle.token_ms
        )
        if behind < len(found.ids):
            beside.instead += 1
            if beside.instead % TRY_OTHERS_EVERY == 0:
                return 0
        if not count:
            return 0
        _, chain = self.mailbox.tip(handle)
        for token in found.ids[:behind]:
            chain = chain_next(chain, token)
        oracle.rewind(position)
        oracle.append(found.ids[:behind])
        ids = tuple(oracle.next() for _ in range(count))
        self.mailbox.hint(Hint(handle, position + behind, chain, ids, ORACLE_SOURCE))
        return count
