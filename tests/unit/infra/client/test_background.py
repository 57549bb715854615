"""Answers handed from a loop's thread to a caller's: each ends, whoever closes what, and when."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import pytest

from firstlight.infra.client.answer import AnyEdge, ClosedError
from firstlight.infra.client.background import AHEAD_BYTES_MAX, BackgroundLoop, HandedOver
from firstlight.infra.client.response import Marks, StreamResponse

WAIT_S = 5.0


class Telling:
    """An answer of pieces, and then of silence."""

    def __init__(self, *pieces: bytes, ends: bool = False) -> None:
        self._pieces, self._ends = pieces, ends
        self.told_bytes = 0

    async def __aenter__(self) -> StreamResponse:
        return StreamResponse(200, {}, Marks(0.0), self._told())

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def _told(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            self.told_bytes += len(piece)
            yield piece
        if not self._ends:
            await asyncio.Event().wait()


def handed(background: BackgroundLoop, answer: Telling) -> HandedOver:
    return HandedOver(background, lambda: cast(AnyEdge, answer))


@pytest.fixture
def background() -> Iterator[BackgroundLoop]:
    loop = BackgroundLoop()
    yield loop
    loop.close()


def read_whole(answer: HandedOver) -> list[bytes]:
    answer.head()
    return list(answer.pieces())


def heard_of(closing: Callable[[], None], answer: HandedOver) -> Any:
    """What a thread comes to that waits for a piece meanwhile."""
    answer.head()
    found: list[Any] = []

    def read() -> None:
        try:
            found.extend(answer.pieces())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    closing()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    return found[-1]


def test_an_answer_is_read_to_its_end(background: BackgroundLoop) -> None:
    assert read_whole(handed(background, Telling(b"a", b"b", ends=True))) == [b"a", b"b"]


def test_a_thread_that_waits_for_a_piece_hears_that_another_closed_the_answer(
    background: BackgroundLoop,
) -> None:
    answer = handed(background, Telling(b"a"))
    assert isinstance(heard_of(answer.close, answer), ClosedError)


def test_a_thread_that_waits_for_a_piece_hears_that_the_loop_ended() -> None:
    background = BackgroundLoop()
    answer = handed(background, Telling(b"a"))
    assert isinstance(heard_of(background.close, answer), ClosedError)


def test_what_is_begun_as_the_loop_ends_is_told_so() -> None:
    background = BackgroundLoop()
    ended = threading.Event()
    background.soon(lambda: ended.wait(WAIT_S))  # what comes now waits for the same turn
    answer = handed(background, Telling(b"a"))
    closing = threading.Thread(target=background.close, daemon=True)
    closing.start()
    ended.set()
    closing.join(WAIT_S)
    with pytest.raises(ClosedError):
        read_whole(answer)


def test_nothing_is_begun_on_a_loop_that_has_ended() -> None:
    background = BackgroundLoop()
    background.close()
    background.close()
    with pytest.raises(ClosedError, match="closed"):
        handed(background, Telling())
    with pytest.raises(ClosedError, match="closed"):
        background.call(asyncio.sleep(0))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_is_told_that_it_has_no_such_thread(background: BackgroundLoop) -> None:
    child = os.fork()
    if child == 0:
        try:
            background.call(asyncio.sleep(0))
        except ClosedError as error:
            background.close()
            os._exit(0 if "before a fork" in error.message else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_caller_that_does_not_read_makes_the_stream_wait(background: BackgroundLoop) -> None:
    pieces = [bytes(AHEAD_BYTES_MAX // 4)] * 40
    telling = Telling(*pieces, ends=True)
    answer = handed(background, telling)
    answer.head()
    told_bytes = background.call(_when_still(telling))
    assert AHEAD_BYTES_MAX < told_bytes <= 2 * AHEAD_BYTES_MAX
    assert list(answer.pieces()) == pieces


async def _when_still(telling: Telling) -> int:
    """What it has told when nothing more comes."""
    before = -1
    while before != telling.told_bytes:
        before = telling.told_bytes
        await asyncio.sleep(0.01)
    return before
