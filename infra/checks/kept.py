"""Redis or Valkey, wherever the settings name one: reachable, new enough, told when to forget.

Every section that is a `RedisConfig` is looked at, whatever it is for. No password is shown: what
is printed of a URL is its host and port.
"""

import asyncio
import socket
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from firstlight.infra.checks.finding import Finding, bad, ok, unseen, warn
from firstlight.infra.checks.packages import Version, release
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError
from firstlight.shared.redis_client import FAILURES, SCHEMES, Client, RedisConfig, connect

ASK_S = 1.5
OLDEST: Version = (6, 2)
PINGS = 3
SLOW_MS = 20.0
_LOOKUP = "a lookup may take longer than what it saves"


def look_at(setting: str, config: RedisConfig) -> list[Finding]:
    """Everything about one server; a thread of its own runs this.

    The name is resolved here first: a loop would leave that to a pool whose threads outlive it.
    """
    try:
        parts = urlsplit(config.url or "")
        if parts.hostname and parts.scheme in SCHEMES:
            socket.getaddrinfo(parts.hostname, parts.port)
    except ValueError:  # `connect` says what is wrong with it
        pass
    except OSError as error:
        reason = error.strerror or str(error)
        return [bad(setting, f"{shown(config)}: {reason}", "correct the host's name in url")]
    return asyncio.run(_look_at(setting, config))


async def _look_at(setting: str, config: RedisConfig) -> list[Finding]:
    try:
        client = connect(setting, config, timeout_s=ASK_S)
    except ConfigError as error:
        return [bad(setting, error.message, "correct the setting")]
    if client is None:
        return []
    where = shown(config)
    try:
        async with asyncio.timeout(ASK_S):
            await client.execute_command("PING")  # connects
            return [
                judge_ping(f"{setting} ping", where, await _ping_ms(client)),
                *judge_transport(f"{setting} tls", str(config.url)),
                *await _judge_told(setting, client),
            ]
    except FAILURES as error:
        tls = str(config.url).startswith("rediss:")
        return [judge_failure(setting, where, error, tls=tls)]
    finally:
        await client.aclose()


async def _ping_ms(client: Client) -> float:
    """The best of a few."""
    times = []
    for _ in range(PINGS):
        begun_s = monotonic_s()
        await client.execute_command("PING")
        times.append((monotonic_s() - begun_s) * 1000)
    return min(times)


async def _judge_told(setting: str, client: Client) -> list[Finding]:
    try:
        info = await client.info()
    except NoPermissionError:
        do = "allow it +info, or look at maxmemory and maxmemory-policy yourself"
        return [unseen(f"{setting} server", "this user may not ask for INFO", do)]
    return judge_server(setting, _one_node(info))


def _one_node(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """A cluster may answer by node; the nodes of one cluster are configured alike."""
    first = next(iter(info.values()), None)
    return first if isinstance(first, Mapping) and "redis_version" in first else info


def judge_failure(setting: str, where: str, error: BaseException, *, tls: bool) -> Finding:
    """A server that did not answer PING. Redis' own words, which hold no secret, or none at all."""
    if isinstance(error, AuthenticationError) or "NOAUTH" in str(error):
        do = "set the right user in url and the password in password_file"
        return bad(setting, f"{where}: the server refuses the user or the password", do)
    if isinstance(error, TimeoutError):
        return bad(setting, f"{where}: no answer in {ASK_S} s", "start it, or open the way to it")
    if isinstance(error, ResponseError):
        return bad(setting, f"{where}: {error}", "look at the server's log and its ACL")
    seen = f"{where}: cannot be reached: {error or type(error).__name__}"
    if tls:
        return bad(setting, seen, "start it with TLS, name its CA in ca, or use redis://")
    return bad(setting, seen, "start it, or correct the URL; the node runs on without it")


def judge_ping(name: str, where: str, ping_ms: float) -> Finding:
    """The round trip on an open connection."""
    seen = f"{where}: {ping_ms:.1f} ms"
    if ping_ms > SLOW_MS:
        return warn(name, f"{seen}: {_LOOKUP}", "use a server in this node's region")
    return ok(name, seen)


def judge_transport(name: str, url: str) -> list[Finding]:
    """What is asked over a network without TLS can be read and changed on the way."""
    parts = urlsplit(url)
    if parts.scheme == "rediss":
        return [ok(name, "encrypted, and the server is checked")]
    if parts.scheme == "unix" or _local(parts.hostname or ""):
        return []
    seen = "the way to another machine is not encrypted"
    return [warn(name, seen, "use rediss:// and ca")]


def judge_server(setting: str, info: Mapping[str, Any]) -> list[Finding]:
    """Version, memory and what is evicted, as INFO says."""
    product = "Valkey" if "valkey_version" in info else "Redis"
    told = str(info.get("valkey_version") or info.get("redis_version") or "")
    compatible, name = release(str(info.get("redis_version") or "")), f"{setting} server"
    found = []
    if not compatible:
        found.append(unseen(name, "it does not say its version"))
    elif compatible < OLDEST:
        seen = f"{product} {told}, expected 6.2: newer commands fail, and what they find is a miss"
        found.append(warn(name, f"{seen}; GET, SET, hashes and expiry work", "update the server"))
    else:
        found.append(ok(name, f"{product} {told}"))
    return [*found, judge_memory(f"{setting} memory", info)]


def judge_memory(name: str, info: Mapping[str, Any]) -> Finding:
    """A server that may not forget fills up, or refuses; one without a limit takes the machine."""
    policy = str(info.get("maxmemory_policy", ""))
    try:
        limit = int(info["maxmemory"])
    except (KeyError, ValueError):
        return unseen(name, "it does not say its maxmemory")
    if limit == 0:
        do = "maxmemory 1gb and maxmemory-policy allkeys-lru, in its configuration"
        return warn(name, "maxmemory is not set: it grows until the machine is full", do)
    if policy == "noeviction":
        do = "maxmemory-policy allkeys-lru: what is kept there can be done without"
        return warn(name, f"{limit >> 20} MiB, noeviction: when full it refuses to write", do)
    return ok(name, f"{limit >> 20} MiB, {policy or 'policy not told'}")


def shown(config: RedisConfig) -> str:
    """Where the server is, and nothing else of its URL."""
    parts = urlsplit(str(config.url))
    if parts.scheme == "unix":
        return parts.path
    return f"{parts.hostname}:{parts.port or 6379}"


def _local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
