"""The laboratory's own door: other programs ask its launcher for faults, since only it can restart.

{"do": "freeze", "node": "core-us"}      {"end": true, "do": "freeze", "node": "core-us"}
"""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from firstlight.infra.lab.control import Control
from firstlight.infra.lab.faults import Faults
from firstlight.shared.door import door
from firstlight.shared.errors import ConfigError, PeerError

FILE_NAME = "lab.faults"
ANSWER_S = 15.0
"""A fault may take that long: what was killed must be gone before it is started again."""


@contextmanager
def serving(faults: Faults, run: Path) -> Iterator[None]:
    """Take requests on a thread while the block runs. Raises `ConfigError`."""
    opened = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    problems: list[ConfigError] = []

    async def serve() -> None:
        try:
            async with door(run / FILE_NAME, faults.command):
                opened.set()
                await stop.wait()
        except ConfigError as error:
            problems.append(error)
        finally:
            opened.set()

    def work() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=work, name="faults")
    thread.start()
    opened.wait()
    try:
        for problem in problems:
            raise problem
        yield
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(stop.set)
        thread.join()


def ask(run: Path, said: Mapping[str, Any]) -> list[str]:
    """Ask a running laboratory for a fault, or for its end; returns who it struck.

    Raises `ConfigError` for what it refuses, `PeerError` if it takes none or fails.
    """
    try:
        control = Control(run / FILE_NAME, whose="the laboratory", answer_s=ANSWER_S)
    except PeerError as error:
        raise PeerError(f"this laboratory takes no faults from outside: {error.message}") from error
    with control:
        more = {key: value for key, value in said.items() if key != "do"}
        return [str(node) for node in control.ask(str(said["do"]), **more)["struck"]]
