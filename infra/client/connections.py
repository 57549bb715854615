"""Connections to one server, reused or not, and closed with the block that opened them.

A client of HTTP/1.1 carries one request at a time, one of HTTP/2 or 3 up to `STREAMS_MAX`, which
servers allow. The client that was used last is taken first, so that few stay warm. What broke is
not used again.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Self

from firstlight.infra.client.response import Client, HttpVersion
from firstlight.shared.errors import ConfigError

STREAMS_MAX = 64
Open = Callable[[], Client]


@dataclass(slots=True, eq=False)
class _Shared:
    client: Client
    used: int = 0
    retired: bool = False


class Connections:
    """Clients of one server. `aclose` it."""

    def __init__(self, open_one: Open, http: HttpVersion) -> None:
        self._open, self._share_max = open_one, 1 if http == "1" else STREAMS_MAX
        self._shared: list[_Shared] = []
        """In the order of their last use."""
        self._ready: Client | None = None
        """For the next one who wants a client of its own: what can be made before there is a
        connection has been made."""
        self._closed = False

    @property
    def open(self) -> int:
        """Clients that are kept for reuse."""
        return len(self._shared)

    def keep(self, client: Client) -> None:
        """One that is connected already joins them."""
        self._shared.append(_Shared(client))

    @property
    def alive(self) -> bool:
        """Whether one of them is connected."""
        return any(one.client.alive for one in self._shared)

    @asynccontextmanager
    async def warm(self) -> AsyncIterator[Client]:
        """A client that others use too; a new one if all carry as much as they can."""
        found = next((one for one in reversed(self._shared) if one.used < self._share_max), None)
        if found is None:
            found = _Shared(self._open())
        else:
            self._shared.remove(found)
        self._shared.append(found)
        found.used += 1
        try:
            yield found.client
        except Exception:  # who only leaves has ended its own request, and no more
            self._retire(found)
            raise
        finally:
            found.used -= 1
            if found.retired and not found.used:
                await found.client.aclose()

    @asynccontextmanager
    async def cold(self) -> AsyncIterator[Client]:
        """A client of its own, closed afterwards."""
        client, self._ready = self._ready or self._open(), None
        try:
            yield client
        finally:
            await client.aclose()
            if self._ready is None and not self._closed:
                with suppress(ConfigError):  # the next one will hear of it
                    self._ready = self._open()

    async def __aenter__(self) -> Self:
        """Itself."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close all that are kept."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close all that are kept, for good."""
        self._closed = True
        ready, self._ready = self._ready, None
        if ready is not None:
            await ready.aclose()
        while self._shared:
            await self._shared.pop().client.aclose()

    def _retire(self, one: _Shared) -> None:
        one.retired = True
        if one in self._shared:
            self._shared.remove(one)

    async def retire(self) -> None:
        """Close each as soon as nobody uses it."""
        while self._shared:
            one = self._shared.pop()
            one.retired = True
            if not one.used:
                await one.client.aclose()
