"""A link of a given bandwidth on this machine: a TCP relay that lets only so many bytes through.

Each direction of each connection has its own budget, a twentieth of a second of it at most at once.
It shapes bandwidth only; the round trip stays that of loopback.
"""

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from firstlight.shared.clock import monotonic_s

_READ_BYTES = 64 << 10
_BURST_S = 0.05


class SlowLink:
    """Relays connections of `listen_port` to `port` on loopback while the block runs."""

    def __init__(self, listen_port: int, port: int, bits_per_s: float) -> None:
        self._listen_port, self._port = listen_port, port
        self._bytes_per_s = bits_per_s / 8
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._listen_port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """End all connections."""
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, here))
                both.create_task(self._pump(there, writer))
        except* OSError:
            pass  # one end is gone, and so is the link
        finally:
            writer.close()
            here.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        free_at = monotonic_s()
        while data := await source.read(_READ_BYTES):
            free_at = max(free_at, monotonic_s() - _BURST_S) + len(data) / self._bytes_per_s
            await asyncio.sleep(max(0.0, free_at - monotonic_s()))
            sink.write(data)
            await sink.drain()
        with contextlib.suppress(OSError):
            sink.close()
