"""A process from its first line to its exit code: the loop, signals, logging, the ready line.

A launcher that starts nodes waits for one JSON line on their standard output, and may hold their
standard input open: when the launcher dies, however it dies, the input ends and the node ends too.
"""

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from firstlight.shared.clock import unix_s
from firstlight.shared.errors import ConfigError, FirstlightError

ORPHAN_EXIT_S = 5.0
"""A node whose launcher is gone has this long to stop by itself."""

LEVELS = ("debug", "info", "warning", "error")

logger = logging.getLogger("firstlight")


def run(
    main: Callable[[asyncio.Event], Awaitable[None]],
    *,
    log_level: str = "info",
    until_stdin_closes: bool = False,
) -> int:
    """Run `main` to its end; returns the exit code.

    SIGTERM and SIGINT set the event that `main` gets; a second one exits at once. A
    `FirstlightError` is one line on standard error and exit code 1.
    """
    try:
        set_up_logging(log_level)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_supervise(main, until_stdin_closes))
    except FirstlightError as error:
        print(f"firstlight: {error.message}", file=sys.stderr, flush=True)
        return 1
    return 0


@asynccontextmanager
async def beside(
    work: Coroutine[Any, Any, None], stop: asyncio.Event
) -> AsyncIterator["asyncio.Task[None]"]:
    """Run `work` while the block runs. If it fails, `stop` is set, and the block's end raises it.

    So a part of a node that dies of a bug ends the node, and a supervisor starts it again.
    """

    def ended(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            stop.set()

    task = asyncio.create_task(work)
    task.add_done_callback(ended)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait((task,))
    if not task.cancelled():
        task.result()


def ready(node: str, address: str, **more: str) -> None:
    """Tell the launcher that the node serves: exactly one JSON line on standard output.

    What was imported and loaded until now stays; the garbage collector need not look at it again
    while requests wait.
    """
    gc.collect()
    gc.freeze()
    print(json.dumps({"ready": True, "node": node, "address": address, **more}), flush=True)


def incarnation() -> int:
    """A number for this start of the process, above those of earlier starts (unix ms)."""
    return int(unix_s() * 1000)


def set_up_logging(level: str) -> None:
    """Log to standard error; `level` is one of `LEVELS`."""
    if level not in LEVELS:
        raise ConfigError(f"log_level {level!r}, expected one of {', '.join(LEVELS)}")
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        force=True,
    )
    for chatty in ("asyncio", "httpx", "httpcore", "quic", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.root.level))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed (it is not made for every platform), else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _supervise(
    main: Callable[[asyncio.Event], Awaitable[None]], until_stdin_closes: bool
) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(130)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, on_signal)
        except (NotImplementedError, ValueError):  # no Unix signals here, or not the main thread
            logger.debug("signal %s is not handled", number)
    if until_stdin_closes:
        threading.Thread(target=_watch_stdin, args=(loop, stop), daemon=True).start()
    await main(stop)


def _watch_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    try:
        while os.read(0, 4096):
            pass
    except OSError:  # closed under us: the launcher is gone all the same
        pass
    try:
        loop.call_soon_threadsafe(stop.set)
    except RuntimeError:  # the loop has ended by itself
        return
    threading.Event().wait(ORPHAN_EXIT_S)
    os._exit(1)
