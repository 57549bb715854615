"""JSON lines over a Unix socket: how a laboratory tells its router, its nodes and itself to fail.

Each line is one object and gets one: `{"ok": true, …}`, or `{"ok": false, "error": "…"}`. Only who
owns the socket's file may connect (0600). A node opens one if its settings ask for it; see `faults`
for what may be said there.
"""

import asyncio
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from firstlight.shared.clock import shift_unix
from firstlight.shared.errors import ConfigError, FirstlightError
from firstlight.shared.faults import CLOCK, Failing

log = logging.getLogger(__name__)

LINE_BYTES_MAX = 64 << 10
OPERATORS_MAX = 16
"""Connections at a time; one more is hung up on."""
_PATH_BYTES_MAX = 100
"""Sockets have short names."""

Command = Callable[[dict[str, Any]], dict[str, Any]]


@asynccontextmanager
async def failing(
    path: Path | None, can: tuple[str, ...] = (CLOCK,)
) -> AsyncIterator[Failing | None]:
    """How a node fails: as who knocks at `path` says while the block runs; without one, None.

    Raises `ConfigError` if there can be no door.
    """
    if path is None:
        yield None
        return
    state = Failing(can, on_shift=shift_unix)
    try:
        async with door(path, state.command):
            yield state
    finally:
        state.end()


@asynccontextmanager
async def door(path: Path, command: Command) -> AsyncIterator[None]:
    """Answer who knocks at `path` while the block runs. Raises `ConfigError`."""
    listener = _listen(path)
    open_: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_.add(writer)
        try:
            while len(open_) <= OPERATORS_MAX and (line := await reader.readline()):
                writer.write(answer_line(line, command))
                await writer.drain()
        except (OSError, ValueError):  # gone, or a line that is too long
            pass
        finally:
            open_.discard(writer)
            writer.close()

    server = await asyncio.start_unix_server(serve, sock=listener, limit=LINE_BYTES_MAX)
    try:
        yield
    finally:
        server.close()
        for writer in list(open_):
            writer.close()
        _remove(path)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        _remove(path)
        with socket_name(path) as name:
            listener.bind(name)
        os.chmod(path, 0o600)  # nobody can connect before it listens
        listener.listen()
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ConfigError(f"faults: {path}: {error.strerror or error}") from None
    return listener


def answer_line(line: bytes, command: Command) -> bytes:
    """The line that answers a line."""
    return json.dumps(_answer(line, command)).encode() + b"\n"


def _answer(line: bytes, command: Command) -> dict[str, Any]:
    try:
        return {"ok": True, **command(_said(line))}
    except FirstlightError as error:
        return {"ok": False, "error": error.message}
    except Exception as error:  # a bug of ours; whoever asked must hear that it was not done
        log.exception("a command failed")
        return {"ok": False, "error": repr(error)}


def _said(line: bytes) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigError("not JSON") from None
    if not isinstance(said, dict):
        raise ConfigError("one object a line expected")
    return said


@contextmanager
def socket_name(path: Path) -> Iterator[str]:
    """A name for a socket in the file system that is short enough, however long the path is."""
    if len(os.fsencode(path)) <= _PATH_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
