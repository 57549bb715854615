"""One request and its answer, from as many edges as it takes.

The thin part between a source of connections and three decisions that are made elsewhere: what was
told (`transcript`), whether to go on (`patience`), and whom to ask (the source).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from random import Random
from types import TracebackType
from typing import Protocol, TypeVar

from firstlight.infra.client.patience import Patience, Standing
from firstlight.infra.client.response import STAY, Client, StreamResponse
from firstlight.infra.client.transcript import Transcript
from firstlight.infra.reply import api_error
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import DeadlineError, FirstlightError, PeerError

COMPLETIONS = ("/v1/chat/completions", "/v1/completions")
"""To ask for these twice costs time, and does nothing twice."""
ERROR_BYTES_MAX = 64 * 1024
_SAFE = ("GET", "HEAD")

T = TypeVar("T")


class NotConnectedError(PeerError):
    """No edge could be reached."""


class ConnectTimeoutError(NotConnectedError):
    """No edge could be reached in the time that there was."""


class ClosedError(FirstlightError):
    """Whoever asked has closed what it asks with: nothing is tried again."""


@dataclass(frozen=True, slots=True)
class Connected:
    """A client of an edge, and where that is."""

    url: str
    client: Client


class Source(Protocol):
    """Where connections come from."""

    @property
    def count(self) -> int:
        """How many edges there are."""
        ...

    def connection(self, lost: Sequence[str]) -> AbstractAsyncContextManager[Connected]:
        """A connection to an edge; to one in `lost` only if there is no other.

        Raises `PeerError`, or `ClosedError`. What is raised in the block says how it went.
        """
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """What is asked for. Seconds; None is no limit."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""
    connect_timeout_s: float | None = None
    """Until an edge is connected, whichever."""
    read_timeout_s: float | None = None
    """Between two pieces of the answer."""


class AnyEdge:
    """An answer. `async with` it; what comes of it may come from several edges."""

    def __init__(
        self, source: Source, call: Call, *, on_attempt: Callable[[], None] = lambda: None
    ) -> None:
        """`on_attempt` is called before each time that an edge is asked."""
        self._source, self._call, self._on_attempt = source, call, on_attempt
        self._path = call.path.partition("?")[0]
        self._patience = Patience(monotonic_s(), Random())
        self._transcript: Transcript | None = None
        self._stack = AsyncExitStack()
        self._url = ""
        self._lost: list[str] = []

    @property
    def attempts(self) -> int:
        """How often an edge was asked."""
        return self._patience.attempts

    async def __aenter__(self) -> StreamResponse:
        """Status and headers. Raises `PeerError`, or `DeadlineError` for the read timeout."""
        while True:
            try:
                response = await self._ask(self._call.body)
            except PeerError as error:
                await self._pause(error)
            else:
                break
        headers = response.headers
        streams = headers.get("content-type", "").startswith("text/event-stream")
        plain = streams and "content-encoding" not in headers
        if response.status != 200 or not plain or self._path not in COMPLETIONS:
            return self._told(response, headers, self._whole(response))
        self._transcript = transcript = Transcript(self._call.body)
        headers = {name: value for name, value in headers.items() if name != "content-length"}
        return self._told(response, headers, self._pieces(response, transcript))

    def _told(
        self, response: StreamResponse, headers: dict[str, str], chunks: AsyncIterator[bytes]
    ) -> StreamResponse:
        return StreamResponse(response.status, headers, response.marks, chunks, response.version)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it, whether or not it was read to its end."""
        await self._leave(error)

    async def _ask(self, body: bytes) -> StreamResponse:
        self._on_attempt()
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._call.connect_timeout_s):
                    found = await stack.enter_async_context(self._source.connection(self._lost))
            except TimeoutError:
                limit_s = self._call.connect_timeout_s
                raise ConnectTimeoutError(f"no edge was reached within {limit_s:g} s") from None
            self._url = found.url
            call = self._call
            asked = found.client.stream(call.method, call.path, STAY | dict(call.headers), body)
            response = await self._in_time(stack.enter_async_context(asked))
            self._stack = stack.pop_all()
        return response

    async def _whole(self, response: StreamResponse) -> AsyncIterator[bytes]:
        """The body as it comes: of what is no stream of ours, nothing can be gone on with."""
        chunks = response.chunks()
        while (chunk := await self._in_time(anext(chunks, None))) is not None:
            yield chunk

    async def _pieces(
        self, response: StreamResponse, transcript: Transcript
    ) -> AsyncIterator[bytes]:
        """Whole events, one after another, from whichever edge."""
        chunks = response.chunks()
        while True:
            lost: PeerError | None = None
            try:
                chunk = await self._in_time(anext(chunks, None))
            except PeerError as error:
                chunk, lost = None, error
            if chunk is not None:
                told = transcript.feed(chunk)
                if told:
                    self._patience.progress(monotonic_s())
                    yield told
            elif transcript.complete():
                return
            else:
                early = f"the stream ended before the answer did, after {transcript.tokens} tokens"
                lost = lost or PeerError(early)
                chunks = (await self._rest(lost, transcript)).chunks()

    async def _rest(self, lost: PeerError, transcript: Transcript) -> StreamResponse:
        """The answer of an edge that goes on. Raises `lost`, or what an edge says."""
        while True:
            await self._pause(lost)
            try:
                response = await self._ask(transcript.ask_again())
            except PeerError as error:
                lost = error
                continue
            if response.status == 200:
                return response
            said = api_error(response.status, await beginning(response))
            if response.status < 500 and response.status != 429:
                raise said
            lost = PeerError(said.message)  # it may be starting, or full: others are not

    async def _pause(self, lost: PeerError) -> None:
        """Until it is time to ask again. Raises `lost`, with the reason why not to."""
        await self._leave(lost)
        if self._url and self._url not in self._lost:
            self._lost.append(self._url)
        transcript, self._url = self._transcript, ""
        where = Standing(
            begun=transcript is not None and transcript.begun,
            can_resume=transcript is not None and transcript.can_resume(),
            repeatable=self._call.method in _SAFE or self._path in COMPLETIONS,
            edges=self._source.count,
        )
        step = self._patience.lost(where, monotonic_s())
        if not step.go_on:
            raise type(lost)(f"{lost.message} (given up: {step.reason})") from lost
        if len(self._lost) >= where.edges:
            self._lost.clear()
        await asyncio.sleep(step.wait_s)

    async def _leave(self, error: BaseException | None) -> None:
        """End the connection's part; it hears how it went."""
        stack, self._stack = self._stack, AsyncExitStack()
        with suppress(PeerError):
            kind = type(error) if error is not None else None
            await stack.__aexit__(kind, error, error.__traceback__ if error is not None else None)

    async def _in_time(self, coming: Awaitable[T]) -> T:
        """What comes within the read timeout. Raises `DeadlineError`."""
        limit_s = self._call.read_timeout_s
        if limit_s is None:
            return await coming
        try:
            async with asyncio.timeout(limit_s):
                return await coming
        except TimeoutError:
            raise DeadlineError(f"nothing came for {limit_s:g} s") from None


async def beginning(response: StreamResponse) -> bytes:
    """Of an error's body, which says what there is to say."""
    body = b""
    async for chunk in response.chunks():
        body += chunk
        if len(body) > ERROR_BYTES_MAX:
            break
    return body[:ERROR_BYTES_MAX]
