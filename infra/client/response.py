"""What the three HTTP versions have in common for a caller: an answer, a stream, and when things
happened."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self

from firstlight.infra.client.sse import Event, EventReader, LineReader
from firstlight.shared.clock import monotonic_s

HttpVersion = Literal["1", "2", "3"]
HeaderMap = Mapping[str, str]
STAY = {"x-firstlight-follow": "0"}
"""Tells an edge that it was chosen: it sends this request on to no other."""


@dataclass
class Marks:
    """When the parts of a request were done, in seconds of `monotonic_s`; None until then."""

    started_s: float
    connected_s: float | None = None
    """Handshake complete. Before `started_s` when the connection was there already."""
    sent_s: float | None = None
    headers_s: float | None = None
    first_event_s: float | None = None
    """The first complete server-sent event (or line)."""


@dataclass
class Response:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    marks: Marks


@dataclass
class StreamResponse:
    """An answer whose body is read as it comes."""

    status: int
    headers: dict[str, str]
    marks: Marks
    _chunks: AsyncIterator[bytes] = field(repr=False)
    version: HttpVersion = "1"
    """The one that the answer began over."""

    async def chunks(self) -> AsyncIterator[bytes]:
        """Body bytes as they arrive."""
        async for chunk in self._chunks:
            yield chunk

    async def lines(self) -> AsyncIterator[str]:
        """Text lines without their ends."""
        reader = LineReader()
        async for chunk in self._chunks:
            for line in reader.feed(chunk):
                self._mark()
                yield line
        for line in reader.end():
            yield line

    async def events(self) -> AsyncIterator[Event]:
        """Server-sent events."""
        reader = EventReader()
        async for chunk in self._chunks:
            for event in reader.feed(chunk):
                self._mark()
                yield event

    def _mark(self) -> None:
        if self.marks.first_event_s is None:
            self.marks.first_event_s = monotonic_s()


async def read_whole(streaming: AbstractAsyncContextManager[StreamResponse]) -> Response:
    """The answer of a stream, read to its end."""
    async with streaming as response:
        chunks = [chunk async for chunk in response.chunks()]
    return Response(response.status, response.headers, b"".join(chunks), response.marks)


class Client(Protocol):
    """One connection to one server, over any HTTP version.

    Raises `PeerError` when the server cannot be reached or breaks off.
    """

    @property
    def alive(self) -> bool:
        """Whether it is connected, for all that it knows."""

    @property
    def rtt_s(self) -> float | None:
        """A round trip to the server, as its connection measured it."""

    @property
    def peer(self) -> tuple[str, int] | None:
        """The server's address, while connected."""

    async def connect(self) -> object:
        """Be connected, the server's certificate checked."""

    async def request(
        self, method: str, path: str, headers: HeaderMap | None = None, body: bytes = b""
    ) -> Response:
        """A whole request and its whole answer."""

    def stream(
        self, method: str, path: str, headers: HeaderMap | None = None, body: bytes = b""
    ) -> AbstractAsyncContextManager[StreamResponse]:
        """A request whose answer is read as it comes; leaving the block early cancels it."""

    async def aclose(self) -> None:
        """Close in good order."""

    async def abort(self) -> None:
        """Close at once, in the middle of whatever is going on."""

    async def __aenter__(self) -> Self:
        """The client itself."""

    async def __aexit__(self, *exc: object) -> None:
        """Close in good order."""
