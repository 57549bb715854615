"""How programs tell the router what to do while it runs: JSON lines over a Unix socket.

    {"do": "partition", "from": "eu", "to": "us", "one_way": true}
    {"do": "set", "from": "user", "to": "edge-eu", "link": {"loss": 0.05, "jitter_ms": 3}}
    {"do": "heal"}    {"do": "reset"}    {"do": "stats"}

Each line gets one: `{"ok": true, …}`, or `{"ok": false, "error": "…"}`. `paths` has the commands.
"""

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firstlight.shared.door import socket_name
from firstlight.shared.errors import ConfigError, PeerError

ANSWER_BYTES_MAX = 64 << 20
ANSWER_S = 5.0


class Control:
    """A connection to a running router; use it in a `with` block, or `close` it."""

    def __init__(
        self, path: Path, *, whose: str = "the router", answer_s: float = ANSWER_S
    ) -> None:
        """Connect, or to what else listens so, if it is said. Raises `PeerError` if none does."""
        self._whose = whose
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(answer_s)
        try:
            with socket_name(path) as name:
                self._socket.connect(name)
        except OSError as error:
            self._socket.close()
            raise PeerError(f"{whose} does not answer at {path}: {error.strerror}") from error
        self._rest = b""

    def ask(self, do: str, **more: object) -> dict[str, Any]:
        """One command. Raises `ConfigError` for what is refused, `PeerError` if nobody is there.

        `from` is a word of Python's: write `**{"from": "eu"}`, or call `change`.
        """
        try:
            self._socket.sendall(json.dumps({"do": do, **more}).encode() + b"\n")
            answer = json.loads(self._line())
        except (OSError, ValueError) as error:
            raise PeerError(f"{self._whose} does not answer: {error}") from error
        if answer.pop("ok") is not True:
            raise ConfigError(str(answer["error"]))
        return dict(answer)

    def change(
        self,
        do: str,
        source: str = "*",
        target: str = "*",
        *,
        one_way: bool = False,
        link: Mapping[str, object] | None = None,
    ) -> int:
        """`set`, `partition`, `heal` or `reset`; returns how many paths it was done to."""
        more: dict[str, object] = {"from": source, "to": target, "one_way": one_way}
        return int(self.ask(do, **more, **({} if link is None else {"link": link}))["paths"])

    def stats(self) -> dict[str, Any]:
        """What the router has done so far."""
        return self.ask("stats")

    def _line(self) -> bytes:
        while b"\n" not in self._rest:
            if len(self._rest) > ANSWER_BYTES_MAX:
                raise ValueError("an answer without an end")
            more = self._socket.recv(1 << 16)
            if not more:
                raise OSError("it has closed the connection")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def __enter__(self) -> "Control":
        """The connection itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up."""
        self.close()
