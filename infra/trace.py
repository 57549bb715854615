"""`firstlight trace`: take what a core's latest steps did, as a file that ui.perfetto.dev opens."""

import json
from pathlib import Path

import httpx

from firstlight.infra.running import read_running
from firstlight.shared.config import state_dir
from firstlight.shared.errors import ConfigError, PeerError

ANSWER_S = 10.0
TRACE_BYTES_MAX = 64 << 20
VIEWER = "https://ui.perfetto.dev"


def run_trace(core: str, *, out: Path | None) -> int:
    """The command. Raises `ConfigError` for an unknown core, `PeerError` for a silent one."""
    url = admin_url(core)
    body = fetch(f"{url}/steps.json")
    events = _events(url, body)
    path = out or Path("steps.json")
    try:
        path.write_bytes(body)
    except OSError as error:
        raise ConfigError(f"--out: {path} cannot be written: {error.strerror}") from None
    print(f"{len(events)} events in {path}: open it at {VIEWER}")
    return 0


def admin_url(core: str) -> str:
    """Where a core of the local mesh, named, or one named by address answers its operator."""
    if ":" in core:
        return core.rstrip("/") if "://" in core else f"http://{core}"
    known = {one.node: one.admin for one in read_running(state_dir()).cores}
    if core not in known:
        raise ConfigError(
            f"no core {core!r} runs here, only {', '.join(sorted(known)) or 'none'}: give its "
            "admin address, as 127.0.0.1:9100, for one that is not of the local mesh"
        )
    if not known[core]:
        raise ConfigError(f"core {core} has no admin listener: see `admin` in its configuration")
    return f"http://{known[core]}"


def fetch(url: str) -> bytes:
    """What is there, up to `TRACE_BYTES_MAX`. Raises `PeerError`."""
    body = bytearray()
    try:
        with httpx.stream("GET", url, timeout=ANSWER_S, trust_env=False) as answer:
            for chunk in answer.iter_bytes():
                body += chunk
                if len(body) > TRACE_BYTES_MAX:
                    raise PeerError(f"{url}: more than {TRACE_BYTES_MAX} bytes")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise PeerError(f"{url}: no answer: {error}") from None
    if answer.status_code != 200:
        raise PeerError(f"{url}: answered with status {answer.status_code}, not 200")
    return bytes(body)


def _events(url: str, body: bytes) -> list[object]:
    try:
        events = json.loads(body)["traceEvents"]
    except (ValueError, RecursionError, TypeError, KeyError):
        events = None
    if not isinstance(events, list):
        raise PeerError(f"{url}: what came is no trace: {body[:80]!r}")
    return events
