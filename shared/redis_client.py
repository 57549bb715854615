"""How this project speaks to Redis and Valkey: one server or a cluster, TLS, short timeouts.

What is kept there can always be done without, so nothing waits long and nothing is tried twice:
whoever asks decides what a miss costs. Only commands that Redis 6.2 knows are used, over RESP2.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from firstlight.shared.errors import ConfigError

SCHEMES = ("redis", "rediss", "unix")

Client = Redis | RedisCluster
FAILURES = (RedisError, OSError, TimeoutError)
"""What a call can raise when the server cannot be reached, refuses, or answers nonsense."""


@dataclass(frozen=True, slots=True)
class RedisConfig:
    """Where a server is; null: there is none, and nothing is kept."""

    url: str | None = None
    """redis://[user:password@]host:port[/database], rediss://… with TLS, or unix:///path."""
    password_file: Path | None = None
    """Holds the password, so that it need not stand in this file."""
    ca: Path | None = None
    """The CA of a server with TLS; null: the system's."""
    cluster: bool = False
    """Whether the server is one node of a cluster."""


def connect(setting: str, config: RedisConfig, *, timeout_s: float) -> Client | None:
    """A client; it connects when it is first used. None if no URL is given.

    Every call ends within about `timeout_s`. `setting` is what errors call `config`. Raises
    `ConfigError`, which never shows a password.
    """
    if config.url is None:
        return None
    try:
        parts = urlsplit(config.url)
        shown = f"{parts.scheme}://{parts.hostname or parts.path}"
        known = parts.scheme in SCHEMES and bool(parts.hostname or parts.path) and parts.port != 0
    except ValueError:
        shown, known = "what stands there", False
    if not known:
        raise ConfigError(f"{setting}.url: {shown}, expected {'://… or '.join(SCHEMES)}://…")
    options: dict[str, Any] = {
        "protocol": 2,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
    }
    if parts.scheme == "rediss" and config.ca is not None:
        options["ssl_ca_certs"] = str(config.ca)
    if config.password_file is not None:
        options["password"] = _password(setting, config.password_file)
    never = Retry(NoBackoff(), 0)
    try:
        if config.cluster:
            return RedisCluster.from_url(config.url, retry=never, **options)
        return Redis.from_url(config.url, retry=never, **options)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{setting}.url: {shown}: {error}") from None


def _password(setting: str, path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{setting}.password_file: {path}: {error}") from None
