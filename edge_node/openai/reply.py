"""One request's answer on its way to one client: open, wait for the first event, tell it, clean up.

Nothing is sent before the first event (or `first_event_wait_s`), so that a refusal is an HTTP
status that a client can act on. A client that goes away, streaming or not, ends the work at once:
the source's cores compute for others. Waiting for the next event begins only after the last was
sent.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from firstlight.edge_node.answer import Answer, AnswerSource, Ask, Event
from firstlight.edge_node.openai.errors import error_body, error_headers
from firstlight.edge_node.openai.feed import Feed, close_all
from firstlight.edge_node.openai.objects import Dialect, Origin, Served, Whole, body, usage
from firstlight.edge_node.openai.sse import HEADERS, KEEP_ALIVE, StreamWriter, error_line
from firstlight.shared.errors import FirstlightError, PeerError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """When a stream says something. Seconds."""

    first_event_wait_s: float = 10.0
    """After this a stream's headers go out, whether or not anything came."""
    keep_alive_s: float = 10.0
    """Silence before a keep-alive; clients and what stands between give up after 15 and more."""
    merge_max: int = 32
    """Events that are ready together in one write."""


@dataclass(frozen=True, slots=True)
class Call:
    """Everything known before the mesh is asked."""

    source: AnswerSource
    asks: tuple[Ask, ...]
    """One a prompt."""
    dialect: Dialect
    origin: Origin
    stream: bool
    include_usage: bool
    pace: Pace


def error_response(error: FirstlightError) -> Response:
    """An error before anything was sent."""
    return Response(error_body(error), error.http_status, error_headers(error))


class Reply(Response):
    """Serves a `Call` as an ASGI response."""

    def __init__(self, call: Call) -> None:
        # Not Response's __init__: headers and body do not exist before the first event.
        self.status_code, self.background = 200, None
        self._call = call
        self._answers: list[Answer] = []
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve until the answer ends or the client goes, whichever is first."""
        work = asyncio.ensure_future(self._serve(scope, receive, send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            work.cancel()  # does nothing to work that is done
            await asyncio.gather(work, gone, return_exceptions=True)
        if not work.cancelled():
            work.result()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(send)
        except OSError:
            return  # the connection broke under `send`: the client went away
        except FirstlightError as error:
            failed = error
        except Exception:
            _log.exception("request %s failed", self._call.origin.id)
            failed = FirstlightError("an internal error: it was logged, please try again")
        else:
            return
        with contextlib.suppress(OSError):
            if self._started:
                await send({"type": "http.response.body", "body": error_line(failed)})
            else:
                await error_response(failed)(scope, receive, send)

    async def _answer(self, send: Send) -> None:
        self._answers = await _open_all(self._call.source, self._call.asks)
        feed = Feed(self._answers, merge_max=self._call.pace.merge_max)
        try:
            if self._call.stream:
                await self._tell(feed, send)
            else:
                await self._tell_at_once(feed, send)
        finally:
            await feed.close()

    async def _tell(self, feed: Feed, send: Send) -> None:
        """Events as they come."""
        pace, choices = self._call.pace, self._choices
        writer = StreamWriter(
            self._call.dialect,
            self._call.origin,
            choices,
            include_usage=self._call.include_usage,
        )
        told: set[int] = set()
        wait_s = pace.first_event_wait_s
        # A choice's first token does not wait for company.
        while (events := await feed.take(wait_s, merge=len(told) == len(choices))) is not None:
            wait_s = pace.keep_alive_s
            told.update(event.index for event in events)
            chunk = writer.chunks(events) if events else KEEP_ALIVE
            if not self._started:
                await self._start(send, HEADERS)
            if chunk:
                await _send_more(send, chunk)
        end = writer.end(self._usage())
        await send({"type": "http.response.body", "body": end, "more_body": False})

    async def _tell_at_once(self, feed: Feed, send: Send) -> None:
        """One body, when all is known."""
        wholes = [Whole() for _ in self._choices]
        while (events := await feed.take()) is not None:
            for event in events:
                _add(wholes, event)
        open_ends = [i for i, whole in enumerate(wholes) if whole.finish is None]
        if open_ends:
            raise PeerError(f"the answer broke off: no ending for choice {open_ends[0]}")
        choices = list(zip(self._choices, wholes, strict=True))
        text = to_json(body(self._call.dialect, self._call.origin, choices, self._usage()))
        headers = {"content-type": "application/json", "content-length": str(len(text))}
        await self._start(send, headers)
        await send({"type": "http.response.body", "body": text, "more_body": False})

    async def _start(self, send: Send, headers: dict[str, str]) -> None:
        stats = self._choices[0].stats()
        known = {
            "x-firstlight-edge": self._call.origin.edge,
            "x-firstlight-core": stats.core,
            "x-firstlight-region": stats.region,
        }
        given = headers | {name: value for name, value in known.items() if value}
        raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in given.items()]
        self._started = True
        await send({"type": "http.response.start", "status": 200, "headers": raw})

    @property
    def _choices(self) -> list[Served]:
        return [
            Served(stream, partial(answer.stats, index))
            for answer in self._answers
            for index, stream in enumerate(answer.streams)
        ]

    def _usage(self) -> dict[str, object]:
        return usage(
            [
                (answer.prompt_tokens, [answer.stats(i) for i in range(len(answer.streams))])
                for answer in self._answers
            ]
        )


def _add(wholes: Sequence[Whole], event: Event) -> None:
    if wholes[event.index].finish is not None:
        raise PeerError(f"an event after the ending of choice {event.index}")
    wholes[event.index].add(event)


async def _open_all(source: AnswerSource, asks: Sequence[Ask]) -> list[Answer]:
    """One answer an ask, or none: what was opened is closed when another is refused."""
    opening = [asyncio.ensure_future(source.open(ask)) for ask in asks]
    try:
        return list(await asyncio.gather(*opening))
    except BaseException:
        for one in opening:
            one.cancel()
        results = await asyncio.gather(*opening, return_exceptions=True)
        await close_all([r for r in results if not isinstance(r, BaseException)])
        raise


async def _send_more(send: Send, chunk: bytes) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
