"""What a client asks the network before it asks for an answer: which edges, how far, from where."""

import asyncio
import secrets
import socket
import ssl
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from firstlight.infra.client.client import open_client
from firstlight.infra.client.directory import (
    BODY_BYTES_MAX,
    PATH,
    SIGNATURE_HEADER,
    Directory,
    DirectoryKeys,
    path_for,
    read_directory,
)
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError, PeerError

LIST_TIMEOUT_S = 3.0
HEAR_OUT_S = 0.5
PROBES, PROBE_TIMEOUT_S = 3, 2.0
_NO_LIST = (PeerError, ConfigError, TimeoutError)
"""Somebody has none, or is named by a list and can be asked by nobody."""


class DistrustedError(PeerError):
    """Somebody sent a list of edges that must not be believed."""


class EdgeLists:
    """Asks servers for their lists of edges. `aclose` it.

    Whoever is still asked when somebody else has answered is heard out in the background, since to
    break off a TCP connection while it is made leaves a socket behind.
    """

    def __init__(self, tls: ssl.SSLContext, keys: DirectoryKeys) -> None:
        self._tls, self._keys = tls, keys
        self._asking: set[asyncio.Task[Directory]] = set()

    async def first(self, urls: Iterable[str], rtts_s: Mapping[str, float]) -> Directory | None:
        """The first good list that one of these servers gives; None if none of them has one.

        `rtts_s` by node is what was measured here. Raises `DistrustedError` if what came was
        refused.
        """
        asking = {asyncio.create_task(self._at(url, rtts_s)) for url in urls}
        self._asking |= asking
        for task in asking:
            task.add_done_callback(self._heard_out)
        distrusted: DistrustedError | None = None
        while asking:
            done, asking = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            for error in [task.exception() for task in done]:
                if isinstance(error, DistrustedError):
                    distrusted = error
                elif error is not None and not isinstance(error, _NO_LIST):
                    raise error
            for task in done:
                if task.exception() is None:
                    return task.result()
        if distrusted is not None:
            raise distrusted
        return None

    async def aclose(self) -> None:
        """Nobody wants to know any more."""
        if self._asking:
            await asyncio.wait(self._asking, timeout=HEAR_OUT_S)
        for task in tuple(self._asking):
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    def _heard_out(self, task: "asyncio.Task[Directory]") -> None:
        self._asking.discard(task)
        if not task.cancelled():
            task.exception()

    async def _at(self, url: str, rtts_s: Mapping[str, float]) -> Directory:
        nonce = secrets.token_hex(16)
        async with (
            asyncio.timeout(LIST_TIMEOUT_S),
            open_client(url, "1", connect_timeout_s=LIST_TIMEOUT_S, tls=self._tls) as client,
            client.stream("GET", path_for(nonce, rtts_s)) as response,
        ):
            if response.status != 200:
                raise PeerError(f"{url}{PATH}: HTTP {response.status}")
            body = b""
            async for chunk in response.chunks():
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    raise DistrustedError(f"{url}{PATH}: more than {BODY_BYTES_MAX} bytes")
        try:
            signature = response.headers.get(SIGNATURE_HEADER)
            return read_directory(body, signature, keys=self._keys, nonce=nonce)
        except PeerError as error:
            raise DistrustedError(f"{url}{PATH}: {error.message}") from error


async def round_trips_s(urls: Sequence[str]) -> dict[str, float]:
    """The shortest of a few TCP handshakes with each server; one that none reached is not in it."""
    times = await asyncio.gather(*map(_round_trip_s, urls))
    return {url: rtt_s for url, rtt_s in zip(urls, times, strict=True) if rtt_s is not None}


async def _round_trip_s(url: str) -> float | None:
    parts = urlsplit(url)
    best: float | None = None
    for _ in range(PROBES):
        begun = monotonic_s()
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port or 443)
        except (OSError, UnicodeError, TimeoutError):
            return best
        took_s = monotonic_s() - begun
        best = took_s if best is None else min(best, took_s)
        writer.close()
    return best


def address_towards(address: tuple[str, int] | None) -> str | None:
    """The address from which this host would send to that one; None if it has no way there.

    Asks the routing table: nothing is sent.
    """
    if address is None:
        return None
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect(address)
        return str(sock.getsockname()[0])
    return None
