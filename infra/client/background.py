"""An event loop in a thread of its own, for callers that have none, and answers handed across.

What is received there goes into a queue that the caller's thread reads: one hop a request and one
wake-up a piece, however many callers there are.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from firstlight.infra.client.answer import AnyEdge
from firstlight.infra.client.response import StreamResponse

AHEAD_BYTES_MAX = 1024 * 1024
"""A caller that does not read makes its stream wait, not this process grow."""
CLOSE_WAIT_S = 2.0
T = TypeVar("T")


class BackgroundLoop:
    """The thread. It ends with `close`, or with the process."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="firstlight-client", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of this, run there. Raises what it raised."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def close(self) -> None:
        """End the thread, and what still runs there."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            for task in (tasks := asyncio.all_tasks(self.loop)):
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()


class HandedOver:
    """One answer, received on the loop and read on another thread."""

    def __init__(self, background: BackgroundLoop, open_one: Callable[[], AnyEdge]) -> None:
        self._loop, self._open = background.loop, open_one
        self._queue: SimpleQueue[StreamResponse | bytes | BaseException | None] = SimpleQueue()
        self._task: asyncio.Task[None] | None = None
        self._ahead_bytes = 0
        self._room = asyncio.Event()
        self._ended = False
        self._loop.call_soon_threadsafe(self._begin)

    def head(self) -> StreamResponse:
        """Status and headers. Raises what went wrong."""
        first = self._queue.get()
        if isinstance(first, StreamResponse):
            return first
        self._ended = True
        assert isinstance(first, BaseException)
        raise first

    def pieces(self) -> Iterator[bytes]:
        """The body. Raises what went wrong."""
        while not self._ended:
            piece = self._queue.get()
            if isinstance(piece, bytes):
                self._taken(piece)
                yield piece
                continue
            self._ended = True
            if isinstance(piece, BaseException):
                raise piece

    def close(self) -> None:
        """End it, whether or not it was read to its end: the edge hears of it before this returns,
        if the loop has time for it."""
        if self._ended:
            return
        self._loop.call_soon_threadsafe(self._cancel)
        with suppress(Empty):
            while isinstance(self._queue.get(timeout=CLOSE_WAIT_S), StreamResponse | bytes):
                pass
        self._ended = True

    def _taken(self, piece: bytes) -> None:
        waited = self._ahead_bytes > AHEAD_BYTES_MAX
        self._ahead_bytes -= len(piece)
        if waited:
            self._loop.call_soon_threadsafe(self._room.set)

    # On the loop.

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._receive())

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _receive(self) -> None:
        try:
            async with self._open() as response:
                self._queue.put(response)
                async for piece in response.chunks():
                    self._ahead_bytes += len(piece)
                    self._queue.put(piece)
                    while self._ahead_bytes > AHEAD_BYTES_MAX:
                        self._room.clear()
                        await self._room.wait()
        except BaseException as error:  # the caller's thread raises it, or has left
            self._queue.put(error)
        else:
            self._queue.put(None)
