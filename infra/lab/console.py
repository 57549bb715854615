"""The router's end of the control socket. It never waits: a slow operator delays no packet."""

import os
import select
import socket
from pathlib import Path

from firstlight.infra.lab.control import ANSWER_BYTES_MAX
from firstlight.shared.door import (
    LINE_BYTES_MAX,
    OPERATORS_MAX,
    Command,
    answer_line,
    socket_name,
)


class Operator:
    """One connection: what came of its next line, and what is not sent yet."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.rest = b""
        self.answers = b""

    def read(self, command: Command) -> bool:
        """Take what is there and answer whole lines; whether the connection goes on."""
        try:
            more = self.connection.recv(LINE_BYTES_MAX)
        except BlockingIOError:
            return True
        except OSError:
            return False
        *lines, self.rest = (self.rest + more).split(b"\n")
        for line in lines:
            self.answers += answer_line(line, command)
        too_much = len(self.rest) > LINE_BYTES_MAX or len(self.answers) > ANSWER_BYTES_MAX
        return bool(more) and not too_much

    def write(self) -> bool:
        """Send what can be sent; whether the connection goes on."""
        try:
            sent = self.connection.send(self.answers) if self.answers else 0
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.answers = self.answers[sent:]
        return True


class Console:
    """Listens at a path; the router calls `serve` with each descriptor that has something."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        path.unlink(missing_ok=True)
        with socket_name(path) as name:
            self._listener.bind(name)
        os.chmod(path, 0o600)
        self._listener.listen()
        self._operators: dict[int, Operator] = {}

    @property
    def fd(self) -> int:
        """The listener's descriptor."""
        return self._listener.fileno()

    def serve(self, fd: int, poller: select.epoll, command: Command) -> None:
        """Someone calls, says something, or has room for more of the answer."""
        if fd == self.fd:
            self._accept(poller)
            return
        operator = self._operators[fd]
        if operator.read(command) and operator.write():
            more = select.EPOLLOUT if operator.answers else 0
            poller.modify(fd, select.EPOLLIN | more)
        else:
            poller.unregister(fd)
            self._operators.pop(fd).connection.close()

    def _accept(self, poller: select.epoll) -> None:
        connection, _ = self._listener.accept()
        if len(self._operators) >= OPERATORS_MAX:
            connection.close()
            return
        self._operators[connection.fileno()] = Operator(connection)
        poller.register(connection.fileno(), select.EPOLLIN)

    def close(self) -> None:
        """Hang up on everyone."""
        for operator in self._operators.values():
            operator.connection.close()
        self._listener.close()
        self._path.unlink(missing_ok=True)
