"""The events of one request's answers, as they come, never faster than they are taken.

A request may have several prompts, so several answers. Each has at most one event under way ahead
of what was taken: whoever sends slowly slows the source, and nothing piles up here.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace

from firstlight.edge_node.answer import Answer, Event
from firstlight.shared.errors import PeerError

_log = logging.getLogger(__name__)


class Feed:
    """One reader. `close` cancels what still runs."""

    def __init__(self, answers: Sequence[Answer], *, merge_max: int) -> None:
        """`merge_max`: events that `take` hands over together at most."""
        self._answers, self._merge_max = answers, merge_max
        self._first_index = [0]
        for answer in answers:
            self._first_index.append(self._first_index[-1] + len(answer.streams))
        self._idle: dict[int, AsyncIterator[Event]] = {
            i: answer.events() for i, answer in enumerate(answers)
        }
        self._pulls: dict[asyncio.Task[Event | None], tuple[int, AsyncIterator[Event]]] = {}
        self._failed: BaseException | None = None

    async def take(self, wait_s: float | None = None, *, merge: bool = True) -> list[Event] | None:
        """Events that are ready, waiting for the first up to `wait_s`: none if none came.

        None when all answers have ended. Raises what an answer raised, after its events.
        """
        if self._failed is not None:
            raise self._failed
        self._pull()
        if not self._pulls:
            return None
        done, _ = await asyncio.wait(
            self._pulls, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED
        )
        events = self._collect(done)
        while merge and events and len(events) < self._merge_max and self._failed is None:
            self._pull()
            await asyncio.sleep(0)
            more = self._collect([pull for pull in self._pulls if pull.done()])
            if not more:
                break
            events += more
        if not events and self._failed is not None:
            raise self._failed
        if not events and done:
            return await self.take(wait_s, merge=merge)  # an answer ended, others may go on
        return events

    async def close(self) -> None:
        """Stop pulling, and cancel the answers. Nothing they raise now matters to anyone."""
        pulls, self._pulls, self._idle = list(self._pulls), {}, {}
        for pull in pulls:
            pull.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)
        await close_all(self._answers)

    def _pull(self) -> None:
        for i, events in self._idle.items():
            self._pulls[asyncio.ensure_future(_next(events))] = i, events
        self._idle.clear()

    def _collect(self, done: Iterable[asyncio.Task[Event | None]]) -> list[Event]:
        events: list[Event] = []
        for pull in done:
            i, source = self._pulls.pop(pull)
            if pull.cancelled():
                self._failed = self._failed or PeerError("the answer was cancelled underneath us")
            elif (failed := pull.exception()) is not None:
                self._failed = self._failed or failed
            elif (event := pull.result()) is not None:
                first = self._first_index[i]
                events.append(replace(event, index=first + event.index) if first else event)
                self._idle[i] = source
        return events


async def close_all(answers: Iterable[Answer]) -> None:
    """Close each, whatever the others do."""
    results = await asyncio.gather(*(a.close() for a in answers), return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            _log.error("closing an answer failed", exc_info=result)


async def _next(events: AsyncIterator[Event]) -> Event | None:
    return await anext(events, None)
