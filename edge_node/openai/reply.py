"""One request's answer on its way to one client: open, wait for the first event, tell it, clean up.

Nothing is sent before the first event (or `first_event_wait_s`), so that a refusal is an HTTP
status that a client can act on. A client that goes away, streaming or not, ends the work at once:
the source's cores compute for others; what was committed by then the session keeps. Waiting for the
next event begins only after the last was sent.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from firstlight.edge_node.answer import Answer, Event
from firstlight.edge_node.middleware import TIMELINE
from firstlight.edge_node.openai.errors import error_body, error_headers, http_error
from firstlight.edge_node.openai.objects import Dialect, Served, Whole, body, usage
from firstlight.edge_node.openai.sessions import Session, Turn
from firstlight.edge_node.openai.sse import HEADERS, KEEP_ALIVE, StreamWriter, error_line
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import FirstlightError, PeerError

_log = logging.getLogger(__name__)


def error_response(error: FirstlightError) -> Response:
    """An error before anything was sent."""
    return Response(error_body(error), error.http_status, error_headers(error))


class Reply(Response):
    """Serves choices of a session as an ASGI response."""

    def __init__(
        self,
        session: Session,
        *,
        has: Mapping[int, int] | None = None,
        dialect: Dialect | None = None,
    ) -> None:
        """`has`: of each choice that is told, how many ids the client has; by default all choices,
        from their beginning."""
        # Not Response's __init__: headers and body do not exist before the first event.
        self.status_code, self.background = 200, None
        self._session, self._call = session, session.call
        self._has = session.begins if has is None else has
        self._dialect = dialect or session.call.dialect
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve until the answer ends, the client goes or another takes over."""
        scope[TIMELINE] = self._call.ask.timeline  # a stream that is gone on with has its first one
        try:
            await self._answer(receive, send)
        except OSError:
            return  # the connection broke under `send`: the client went away
        except FirstlightError as error:
            failed = error
        except Exception:
            _log.exception("request %s failed", self._call.origin.id)
            failed = FirstlightError("an internal error: it was logged, please try again")
        else:
            return
        self._call.ask.timeline.fail(failed, monotonic_s())
        with contextlib.suppress(OSError):
            if self._started:
                await send({"type": "http.response.body", "body": error_line(failed)})
            else:
                await error_response(failed)(scope, receive, send)

    async def _answer(self, receive: Receive, send: Send) -> None:
        turn = self._session.claim(self._has)
        tell = self._tell if self._call.stream else self._tell_at_once
        try:
            # On its way before anything else is made, unless another connection must let go first.
            answer = self._session.answer_for(turn) if turn.free else None
            await _while_there(receive, tell(turn, answer, send), turn)
        except OSError:
            raise
        except Exception:
            turn.failed = True
            raise
        finally:
            self._session.leave(turn)

    async def _tell(self, turn: Turn, answer: Answer | None, send: Send) -> None:
        """Events as they come."""
        answer = answer or await turn.begin()
        choices = self._choices(turn, answer)
        writer = StreamWriter(
            self._dialect,
            self._call.origin,
            choices,
            cap=self._call.seal(self._call.ask),
            include_usage=self._call.include_usage,
        )
        wait_s, silent = self._call.pace.first_event_wait_s, set(choices)
        while (events := await _take(answer, wait_s)) != []:
            wait_s = self._call.pace.keep_alive_s
            chunk = KEEP_ALIVE if events is None else writer.chunks(events)
            if not self._started:
                await self._start(send, choices, HEADERS)
            if chunk:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if silent and events:
                self._note_first(silent, events)
        end = writer.end(self._usage(choices))
        await send({"type": "http.response.body", "body": end, "more_body": False})
        self._call.ask.timeline.note("sent", monotonic_s())

    async def _tell_at_once(self, turn: Turn, answer: Answer | None, send: Send) -> None:
        """One body, when all is known."""
        answer = answer or await turn.begin()
        choices = self._choices(turn, answer)
        wholes = {index: Whole() for index in choices}
        while events := await answer.take():
            for event in events:
                _add(wholes, event)
        open_ends = [i for i, whole in wholes.items() if whole.finish is None]
        if open_ends:
            raise PeerError(f"the answer broke off: no ending for choice {open_ends[0]}")
        told = [(choices[index], whole) for index, whole in wholes.items()]
        text = to_json(body(self._dialect, self._call.origin, told, self._usage(choices)))
        headers = {"content-type": "application/json", "content-length": str(len(text))}
        await self._start(send, choices, headers)
        await send({"type": "http.response.body", "body": text, "more_body": False})
        self._call.ask.timeline.note("sent", monotonic_s())

    def _note_first(self, silent: set[int], events: Sequence[Event]) -> None:
        """For the timeline: a choice's first text has been sent."""
        for index in {event.index for event in events if event.text} & silent:
            silent.remove(index)
            self._call.ask.timeline.note("first text", monotonic_s(), index)

    async def _start(
        self, send: Send, choices: Mapping[int, Served], headers: dict[str, str]
    ) -> None:
        stats = next(iter(choices.values())).stats()
        known = {
            "x-firstlight-edge": self._call.origin.edge,
            "x-firstlight-core": stats.core,
            "x-firstlight-region": stats.region,
        }
        given = headers | {name: value for name, value in known.items() if value}
        raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in given.items()]
        self._started = True
        await send({"type": "http.response.start", "status": 200, "headers": raw})

    def _choices(self, turn: Turn, answer: Answer) -> dict[int, Served]:
        session = self._session
        return {
            index: Served(session.streams[index], partial(session.stats_of, answer, index))
            for index in turn.choices
        }

    def _usage(self, choices: Mapping[int, Served]) -> dict[str, object]:
        """Of what is told: one choice alone has one prompt."""
        ask = self._call.ask
        if len(choices) < self._session.choices:
            prompts = tuple(ask.prompts[index // ask.n] for index in choices)
            ask = replace(ask, prompts=prompts, n=1)
        return usage(ask, [served.stats() for served in choices.values()])


def _add(wholes: Mapping[int, Whole], event: Event) -> None:
    if wholes[event.index].finish is not None:
        raise PeerError(f"an event after the ending of choice {event.index}")
    wholes[event.index].add(event)


async def _take(answer: Answer, wait_s: float) -> list[Event] | None:
    """`answer.take()`, or None if nothing came within `wait_s`."""
    try:
        async with asyncio.timeout(wait_s):
            return await answer.take()
    except TimeoutError:
        return None


async def _while_there(receive: Receive, telling: Coroutine[None, None, None], turn: Turn) -> None:
    """Do this until it is done, the client has gone or another took over. Raises what it raised."""
    work = turn.work = asyncio.ensure_future(telling)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        done, _ = await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        work.cancel()  # does nothing to work that is done
        await asyncio.gather(work, gone, return_exceptions=True)
    if not work.cancelled():
        work.result()
    elif turn.displaced:
        raise http_error(
            409, "another connection goes on with this stream", code="stream_taken_over"
        )
    elif gone not in done:
        raise PeerError("the answer was cancelled underneath us")


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
