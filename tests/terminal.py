"""A program on a pseudo-terminal, as a person would see it."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping
from time import monotonic

SHOW_CURSOR, HIDE_CURSOR = b"\x1b[?25h", b"\x1b[?25l"


class Terminal:
    """`python ARGUMENTS` on a pseudo-terminal of its own; `close` it."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str] | None = None) -> None:
        self.master, slave = pty.openpty()
        self.resize(30, 160)
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**os.environ, "TERM": "xterm-256color", **(environment or {})},
        )
        os.close(slave)
        self.seen = b""

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def read_until(self, done: Callable[[bytes], bool], timeout_s: float = 60.0) -> None:
        """Read until what was seen is enough; fails with it if it never is."""
        deadline = monotonic() + timeout_s
        while not done(self.seen):
            assert monotonic() < deadline, self.seen.decode(errors="replace")
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.master, 65536)
                except OSError:  # Linux: the other end is closed
                    assert done(self.seen), self.seen.decode(errors="replace")

    def press_ctrl_c(self) -> None:
        os.write(self.master, b"\x03")

    def close(self) -> None:
        self.process.kill()
        self.process.wait(10)
        os.close(self.master)
