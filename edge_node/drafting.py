"""Drafting beside the way of a request: when the loop has time for it, and never longer than it.

One timer a choice, whatever drafts for it. Text and requests come first: what a commit means for
the drafts is looked at when the loop has done what it has to do now, and ids that became due in the
meantime go out as one hint.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from firstlight.edge_node.draft import Drafter, FreeDraft, NgramDraft
from firstlight.edge_node.upstream.link import CoreLink
from firstlight.shared.clock import monotonic_s
from firstlight.shared.engine.oracle import Oracle, OracleConfig
from firstlight.shared.stream import TokenStream
from firstlight.shared.types import Request

ORACLE_SOURCE = "edge-oracle"


@dataclass(frozen=True, slots=True)
class DraftingConfig:
    """Hints that the edge makes."""

    ngram: bool = True
    """What followed the last time that the text looked like this."""
    oracle: OracleConfig | None = None
    """For laboratories with timed cores only (`model.timed`): foretells them as often and as fast
    as it is told, in the place of a light model. Of a core with a model it knows nothing."""


Make = Callable[[Request, TokenStream], list[Drafter]]
"""What drafts for a request whose stream stands there."""


def drafters_of(config: DraftingConfig, answer_ids: Callable[[], Sequence[int]]) -> Make:
    """What makes the drafters of a choice. `answer_ids`: see `shared.engine.timed_ids`."""
    oracle = config.oracle
    ids = answer_ids() if oracle is not None else ()

    def make(request: Request, stream: TokenStream) -> list[Drafter]:
        drafters: list[Drafter] = [NgramDraft(request, stream)] if config.ngram else []
        if oracle is not None:
            foretells = Oracle(oracle.acceptance, request, ids, name=ORACLE_SOURCE)
            ms = oracle.token_ms
            drafters.append(
                FreeDraft(request, stream, foretells, token_ms=ms, source=ORACLE_SOURCE)
            )
        return drafters

    return make


class Drafting:
    """The drafters of one choice on the loop."""

    def __init__(self, make: Make, request: Request, stream: TokenStream) -> None:
        self._make: Make | None = make
        """Until the first turn: reading a prompt must not delay the request."""
        self._request, self._stream = request, stream
        self._drafters: list[Drafter] = []
        self._loop = asyncio.get_running_loop()
        self._link: CoreLink | None = None
        self._next: asyncio.Handle | None = None
        self._behind = False
        """Whether `_next` reads what was committed; else it waits for a draft."""

    def opened(self, link: CoreLink) -> None:
        """The choice is at a core now."""
        for drafter in self._drafters:
            drafter.reopened()
        self._link = link
        self.committed()

    def committed(self) -> None:
        """The stream has more ids."""
        if self._link is None or self._behind:
            return
        self._wait_no_more()
        self._behind, self._next = True, self._loop.call_soon(self._follow)

    def stop(self) -> None:
        """No more drafts: the choice left its core, or has ended."""
        self._link = None
        self._wait_no_more()

    def _wait_no_more(self) -> None:
        if self._next is not None:
            self._next.cancel()
        self._behind, self._next = False, None

    def _follow(self) -> None:
        self._behind = False
        if self._make is not None:
            self._drafters, self._make = self._make(self._request, self._stream), None
        assert self._link is not None
        now, rtt_ms = monotonic_s(), self._link.rtt.ms
        for drafter in self._drafters:
            drafter.follow(self._stream, now, rtt_ms)
        self._offer()

    def _offer(self) -> None:
        """Send what is due, and come back when more is."""
        assert self._link is not None
        now = monotonic_s()
        for drafter in self._drafters:
            if drafter.due_s is not None and drafter.due_s <= now:
                hint = drafter.hint(now)
                if hint is not None:
                    self._link.hint(hint)
        due = [drafter.due_s for drafter in self._drafters if drafter.due_s is not None]
        self._next = self._loop.call_later(min(due) - now, self._offer) if due else None
