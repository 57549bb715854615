"""httpx transports over the nearest edge: HTTP/3, or TCP where there is no UDP.

    openai.OpenAI(base_url=…, http_client=httpx.Client(transport=Transport("https://edge…")))

One transport is one mesh: requests must be for a server of it, and whichever edge is nearest
answers them. Answers that stream go on at another edge when theirs is lost.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from firstlight.infra.client.answer import (
    AnyEdge,
    Call,
    ClosedError,
    ConnectTimeoutError,
    NotConnectedError,
)
from firstlight.infra.client.background import BackgroundLoop, HandedOver
from firstlight.infra.client.edges import Ranked
from firstlight.infra.client.nearest import CONNECT_TIMEOUT_S, KEEP_WARM_S, NearestEdges
from firstlight.infra.client.response import StreamResponse
from firstlight.shared.errors import DeadlineError, FirstlightError

_HOP_BY_HOP = {
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
}


class AsyncTransport(httpx.AsyncBaseTransport):
    """For `httpx.AsyncClient`, on asyncio."""

    def __init__(
        self,
        *seeds: str,
        ca_file: Path | str | None = None,
        directory_keys: Iterable[str] = (),
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        keep_warm_s: float = KEEP_WARM_S,
    ) -> None:
        """As `NearestEdges`. Raises `ConfigError`."""
        self.edges = NearestEdges(
            seeds,
            ca_file=None if ca_file is None else Path(ca_file),
            directory_keys=directory_keys,
            connect_timeout_s=connect_timeout_s,
            keep_warm_s=keep_warm_s,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """One request. Raises httpx's exceptions."""
        answer = AnyEdge(self.edges, _call(request, self.edges, await request.aread()))
        with _as_httpx(request):
            response = await answer.__aenter__()
        return _response(response, _AsyncBody(request, answer, response))

    async def aclose(self) -> None:
        """Close all connections."""
        await self.edges.aclose()


class Transport(httpx.BaseTransport):
    """For `httpx.Client`; any number of threads may share it."""

    def __init__(
        self,
        *seeds: str,
        ca_file: Path | str | None = None,
        directory_keys: Iterable[str] = (),
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        keep_warm_s: float = KEEP_WARM_S,
    ) -> None:
        """As `NearestEdges`. Raises `ConfigError`."""

        async def make() -> NearestEdges:
            return NearestEdges(
                seeds,
                ca_file=None if ca_file is None else Path(ca_file),
                directory_keys=directory_keys,
                connect_timeout_s=connect_timeout_s,
                keep_warm_s=keep_warm_s,
            )

        self._background = BackgroundLoop()
        try:
            self._edges = self._background.call(make())
        except BaseException:
            self._background.close()
            raise

    def nearest(self) -> list[Ranked]:
        """The edges by distance, measured now."""
        return self._background.call(self._edges.nearest())

    def network_changed(self) -> None:
        """What was measured and connected belongs to a network that is gone."""
        self._background.call(self._edges.network_changed())

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """One request. Raises httpx's exceptions."""
        call = _call(request, self._edges, request.read())
        with _as_httpx(request):
            handed = HandedOver(self._background, lambda: AnyEdge(self._edges, call))
        try:
            with _as_httpx(request):
                head = handed.head()
        except BaseException:
            handed.close()
            raise
        return _response(head, _Body(request, handed))

    def close(self) -> None:
        """Close all connections, and end the thread."""
        with suppress(ClosedError):
            self._background.call(self._edges.aclose())
        self._background.close()


class _AsyncBody(httpx.AsyncByteStream):
    def __init__(self, request: httpx.Request, answer: AnyEdge, response: StreamResponse) -> None:
        self._request, self._answer, self._response = request, answer, response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx(self._request):
            async for piece in self._response.chunks():
                yield piece

    async def aclose(self) -> None:
        """Also in the middle of the answer: the edge is told."""
        await self._answer.__aexit__(None, None, None)


class _Body(httpx.SyncByteStream):
    def __init__(self, request: httpx.Request, handed: HandedOver) -> None:
        self._request, self._handed = request, handed

    def __iter__(self) -> Iterator[bytes]:
        with _as_httpx(self._request):
            yield from self._handed.pieces()

    def close(self) -> None:
        """Also in the middle of the answer: the edge is told."""
        self._handed.close()


def _call(request: httpx.Request, edges: NearestEdges, body: bytes) -> Call:
    url = request.url
    server = str(url.copy_with(raw_path=b"/", fragment=None)).rstrip("/")
    if not edges.knows(server):
        raise httpx.UnsupportedProtocol(
            f"{server} is not a server of this mesh, which begins with {', '.join(edges.seeds)}",
            request=request,
        )
    timeouts: Mapping[str, Any] = request.extensions.get("timeout", {})
    headers = {name: value for name, value in request.headers.items() if name not in _HOP_BY_HOP}
    return Call(
        request.method,
        url.raw_path.decode("ascii"),
        headers,
        body,
        connect_timeout_s=timeouts.get("connect"),
        read_timeout_s=timeouts.get("read"),
    )


def _response(
    head: StreamResponse, body: httpx.AsyncByteStream | httpx.SyncByteStream
) -> httpx.Response:
    version = b"HTTP/3" if head.version == "3" else b"HTTP/1.1"
    return httpx.Response(
        head.status, headers=head.headers, stream=body, extensions={"http_version": version}
    )


@contextmanager
def _as_httpx(request: httpx.Request) -> Iterator[None]:
    """Each error of ours as the one of httpx that callers know."""
    try:
        yield
    except ConnectTimeoutError as error:
        raise httpx.ConnectTimeout(error.message, request=request) from error
    except NotConnectedError as error:
        raise httpx.ConnectError(error.message, request=request) from error
    except DeadlineError as error:
        raise httpx.ReadTimeout(error.message, request=request) from error
    except FirstlightError as error:
        raise httpx.RemoteProtocolError(error.message, request=request) from error
