"""How this project speaks to Redis and Valkey: one server or a cluster, TLS, short timeouts.

What is kept there can always be done without, so nothing waits long and nothing is tried twice:
whoever asks decides what a miss costs. Only commands that Redis 6.2 knows are used, over RESP2.
"""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from firstlight.shared.errors import ConfigError, PeerError

SCHEMES = ("redis", "rediss", "unix")
CONNECTIONS_MAX = 16
CONNECT_S = 1.0
"""A connection may take so long to make, where the caller's own time allows it."""
_WORDS_MAX = 200

Client = Redis | RedisCluster
Command = tuple[str | bytes | int, ...]
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


def connect(
    setting: str,
    config: RedisConfig,
    *,
    timeout_s: float,
    connections_max: int = CONNECTIONS_MAX,
) -> Client | None:
    """A client; it connects when it is first used. None if no URL is given.

    Every call on a connection that stands ends within about `timeout_s`. What would need more than
    `connections_max` connections (in a cluster: to one node) at once fails. `setting` is what
    errors call `config`. Raises `ConfigError`, which never shows a password.
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
        "socket_connect_timeout": max(timeout_s, CONNECT_S),
        "max_connections": connections_max,
    }
    if parts.scheme == "rediss" and config.ca is not None:
        options["ssl_ca_certs"] = str(config.ca)
    if config.password_file is not None:
        options["password"] = _password(setting, config.password_file)
    never = Retry(NoBackoff(), 0)
    try:
        if config.cluster:
            # Whatever happens to the nodes, the name in the URL leads to one of them.
            options["dynamic_startup_nodes"] = False
            return RedisCluster.from_url(config.url, retry=never, **options)
        return Redis.from_url(config.url, retry=never, **options)
    except (ValueError, TypeError, RedisError) as error:
        raise ConfigError(f"{setting}.url: {shown}: {error}") from None


async def ask(client: Client, commands: Sequence[Command], *, timeout_s: float) -> list[Any]:
    """The reply to each command, in order; one that is refused has an exception for a reply.

    One round trip: all commands leave in one write, in a cluster one to each node that has some of
    the keys. Replies are what RESP2 brings; HGETALL's is a flat list. Raises `PeerError` if not
    all replies came within `timeout_s`, whatever the reason; no connection that still owes a reply
    is used again.
    """
    try:
        async with asyncio.timeout(timeout_s):
            if isinstance(client, RedisCluster):
                return await _ask_cluster(client, commands)
            return await _ask_server(client, commands)
    except TimeoutError:
        raise PeerError(f"no answer within {timeout_s} s") from None
    except Exception as error:  # who answers garbage makes the library fail in any way
        raise PeerError(f"{type(error).__name__}: {error}"[:_WORDS_MAX]) from None


async def prepare(client: Client, *, timeout_s: float) -> None:
    """Do what a call has no time for: connect; in a cluster, learn anew which nodes there are.

    Breaks off what else is being asked of a cluster. Raises `PeerError`.
    """
    try:
        async with asyncio.timeout(timeout_s):
            if isinstance(client, RedisCluster):
                await client.aclose()
                await client.initialize()
            else:
                await client.connection_pool.release(await client.connection_pool.get_connection())
    except TimeoutError:
        raise PeerError(f"no connection within {timeout_s} s") from None
    except Exception as error:
        raise PeerError(f"{type(error).__name__}: {error}"[:_WORDS_MAX]) from None


async def _ask_server(client: Redis, commands: Sequence[Command]) -> list[Any]:
    """Not the library's pipeline: that arms a timer a reply, and takes five times as long."""
    connection = await client.connection_pool.get_connection()
    replies: list[Any] = []
    try:
        await connection.send_packed_command(_packed(commands))
        for _ in commands:
            try:
                replies.append(await connection.read_response(timeout=math.inf))
            except ResponseError as refused:
                replies.append(refused)
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    finally:
        await client.connection_pool.release(connection)
    return replies


def _packed(commands: Sequence[Command]) -> bytes:
    """As the protocol has it: arrays of strings, each with its length."""
    parts = []
    for command in commands:
        parts.append(b"*%d\r\n" % len(command))
        for word in command:
            text = word if isinstance(word, bytes) else str(word).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return b"".join(parts)


async def _ask_cluster(client: RedisCluster, commands: Sequence[Command]) -> list[Any]:
    """The library's pipeline follows keys that have moved. It is slower: some 5 ms for 65 keys."""
    pipeline = client.pipeline()
    for command in commands:
        pipeline.execute_command(*command)
    replies = await pipeline.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, Exception) and not isinstance(reply, ResponseError):
            raise reply  # not what the server said, but that it said nothing
    return [
        [part for pair in reply.items() for part in pair] if isinstance(reply, dict) else reply
        for reply in replies
    ]


def _password(setting: str, path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{setting}.password_file: {path}: {error}") from None
