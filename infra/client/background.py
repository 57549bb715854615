"""An event loop in a thread of its own, for callers that have none, and answers handed across.

What is received there goes into a queue that the caller's thread reads: one hop a request and one
wake-up a piece, however many callers there are. Whatever is begun there ends: with its result, or
with `ClosedError` when the loop ends first, and in a fork, which has no such thread.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

from firstlight.infra.client.answer import AnyEdge, ClosedError
from firstlight.infra.client.response import StreamResponse

AHEAD_BYTES_MAX = 1024 * 1024
"""A caller that does not read makes its stream wait, not this process grow."""
CLOSE_WAIT_S = 2.0
T = TypeVar("T")


class BackgroundLoop:
    """The thread. It ends with `close`, or with the process."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._begins = threading.Lock()
        """Held to begin something, or to end the loop: nothing begins on a loop that has ended."""
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="firstlight-client", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of this, run there. Raises what it raised, or `ClosedError`."""
        try:
            self._check_pid()
            with self._begins:
                self._check_open()
                running = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except ClosedError:
            coroutine.close()
            raise
        try:
            return running.result()
        except CancelledError:
            raise ClosedError("this client was closed meanwhile") from None

    def soon(self, callback: Callable[[], object]) -> None:
        """Call this there. Raises `ClosedError`."""
        self._check_pid()
        with self._begins:
            self._check_open()
            self.loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """End the thread, and what still runs there."""
        if os.getpid() != self._pid:
            return
        with self._begins:
            if not self._ended:
                self.loop.call_soon_threadsafe(self.loop.stop)
            self._ended = True
        self._thread.join()

    def _check_pid(self) -> None:
        """Before the lock, which another thread may have held when this process was forked."""
        if os.getpid() != self._pid:
            raise ClosedError("this client was made before a fork: make one after it")

    def _check_open(self) -> None:
        if self._ended:
            raise ClosedError("this client is closed")

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
        """Raises `ClosedError`."""
        self._background, self._open = background, open_one
        self._queue: SimpleQueue[StreamResponse | bytes | BaseException | None] = SimpleQueue()
        self._task: asyncio.Task[None] | None = None
        self._put_bytes = self._taken_bytes = 0
        """Each counted by one thread alone."""
        self._room = asyncio.Event()
        self._read = False
        """To its end, by the caller."""
        self._over = threading.Event()
        background.soon(self._begin)

    def head(self) -> StreamResponse:
        """Status and headers. Raises what went wrong."""
        first = self._queue.get()
        if isinstance(first, StreamResponse):
            return first
        self._read = True
        assert isinstance(first, BaseException)
        raise first

    def pieces(self) -> Iterator[bytes]:
        """The body. Raises what went wrong."""
        while not self._read:
            piece = self._queue.get()
            if isinstance(piece, bytes):
                self._taken(piece)
                yield piece
                continue
            self._read = True
            if isinstance(piece, BaseException):
                raise piece

    def close(self) -> None:
        """End it, whether or not it was read to its end, also under a thread that reads: the edge
        hears of it before this returns, if the loop has time for it."""
        if not self._over.is_set():
            with suppress(ClosedError):
                self._background.soon(self._cancel)
                self._over.wait(CLOSE_WAIT_S)

    def _taken(self, piece: bytes) -> None:
        waited = self._put_bytes - self._taken_bytes > AHEAD_BYTES_MAX
        self._taken_bytes += len(piece)
        if waited:
            with suppress(ClosedError):
                self._background.soon(self._room.set)

    # On the loop.

    def _begin(self) -> None:
        self._task = self._background.loop.create_task(self._receive())
        self._task.add_done_callback(self._ended)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _receive(self) -> None:
        async with self._open() as response:
            self._queue.put(response)
            async for piece in response.chunks():
                self._put_bytes += len(piece)
                self._queue.put(piece)
                while self._put_bytes - self._taken_bytes > AHEAD_BYTES_MAX:
                    self._room.clear()
                    await self._room.wait()

    def _ended(self, task: "asyncio.Task[None]") -> None:
        """The caller's thread hears how, unless it has left."""
        closed = ClosedError("it was closed before its end")
        self._queue.put(closed if task.cancelled() else task.exception())
        self._over.set()
