"""Redis and Valkey as a check finds them: real, stopped, old, locked."""

import socket
from pathlib import Path
from typing import Any

import pytest
from edge_tls import TlsFiles
from redis.exceptions import AuthenticationError, ConnectionError, ResponseError

from firstlight.infra.checks import kept
from firstlight.infra.checks.finding import Finding, Level
from firstlight.shared.redis_client import RedisConfig
from firstlight.shared.tls import ensure_ca

SECRET = "correct-horse"
INFO = {"redis_version": "7.2.4", "maxmemory": 64 << 20, "maxmemory_policy": "allkeys-lru"}


def looked(url: str, **more: Any) -> dict[str, Finding]:
    return {one.name: one for one in kept.look_at("index", RedisConfig(url, **more))}


def test_a_server_with_a_limit_and_a_policy_is_fine(start_valkey: Any) -> None:
    port = start_valkey("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")
    found = looked(f"redis://127.0.0.1:{port}")
    assert list(found) == ["index ping", "index server", "index memory"]
    assert found["index ping"].level is not Level.BAD
    assert found["index server"].level is found["index memory"].level is Level.OK
    assert found["index server"].seen.startswith("Valkey 9.")
    assert found["index memory"].seen == "64 MiB, allkeys-lru"


def test_a_server_that_has_stopped_is_broken() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        found = looked(f"redis://127.0.0.1:{port}")["index"]
    assert found.level is Level.BAD
    assert f"127.0.0.1:{port}: cannot be reached" in found.seen
    assert "start it" in found.do


def test_a_server_that_does_not_answer_costs_no_more_than_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept, "ASK_S", 0.2)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        found = looked(f"redis://127.0.0.1:{deaf.getsockname()[1]}")["index"]
    assert found.level is Level.BAD


@pytest.mark.parametrize("given", ["in the url", "in a file", "not at all"])
def test_a_wrong_password_is_broken_and_never_shown(
    given: str, start_valkey: Any, tmp_path: Path
) -> None:
    port = start_valkey("--requirepass", SECRET)
    file = tmp_path / "password"
    file.write_text("wrong-horse")
    url = {"in the url": f"redis://:wrong-horse@127.0.0.1:{port}"}.get(given)
    more = {"password_file": file} if given == "in a file" else {}
    found = looked(url or f"redis://127.0.0.1:{port}", **more)["index"]
    assert found.level is Level.BAD
    assert "refuses the user or the password" in found.seen
    assert "horse" not in found.seen + found.do


def test_the_right_password_of_a_file_opens(start_valkey: Any, tmp_path: Path) -> None:
    port = start_valkey("--requirepass", SECRET)
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    found = looked(f"redis://127.0.0.1:{port}", password_file=file)
    assert found["index ping"].level is not Level.BAD
    assert SECRET not in str(found)


def test_a_user_who_may_not_ask_for_info_is_said_so(start_valkey: Any) -> None:
    port = start_valkey("--user", "default", "on", "nopass", "~*", "+ping", "+client")
    found = looked(f"redis://127.0.0.1:{port}")
    assert found["index ping"].level is not Level.BAD
    assert found["index server"].level is Level.WARN
    assert "+info" in found["index server"].do


def test_one_node_of_a_cluster_speaks_for_it(start_valkey: Any) -> None:
    port = start_valkey("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no")
    with socket.create_connection(("127.0.0.1", port)) as plain:
        plain.sendall(b"CLUSTER ADDSLOTSRANGE 0 16383\r\n")
        assert plain.recv(64) == b"+OK\r\n"
    found = looked(f"redis://127.0.0.1:{port}", cluster=True)
    assert found["index ping"].level is not Level.BAD
    assert found["index server"].level is Level.OK


def test_an_old_server_is_warned_of_with_what_still_works(start_redis: Any) -> None:
    port = start_redis({"redis_version": "5.0.14", "maxmemory": "1", "maxmemory_policy": "x"})
    found = looked(f"redis://127.0.0.1:{port}")["index server"]
    assert found.level is Level.WARN
    assert "Redis 5.0.14, expected 6.2" in found.seen
    assert "expiry work" in found.seen


def test_a_server_with_tls_is_checked_by_the_ca_of_the_setting(
    start_redis: Any, tls: TlsFiles, tmp_path: Path
) -> None:
    port = start_redis({"redis_version": "7.2.4"}, tls)
    found = looked(f"rediss://localhost:{port}", ca=tls.ca)
    assert found["index tls"].level is Level.OK
    other = looked(f"rediss://localhost:{port}", ca=ensure_ca(tmp_path).cert)["index"]
    assert other.level is Level.BAD
    assert "name its CA in ca" in other.do


def test_a_server_without_tls_that_is_asked_with_tls_says_so(start_valkey: Any) -> None:
    port = start_valkey()
    found = looked(f"rediss://localhost:{port}")["index"]
    assert found.level is Level.BAD
    assert "start it with TLS" in found.do or "open the way" in found.do


@pytest.mark.parametrize(
    ("changes", "level", "said"),
    [
        ({}, Level.OK, "64 MiB, allkeys-lru"),
        ({"maxmemory": 0}, Level.WARN, "grows until"),
        ({"maxmemory_policy": "noeviction"}, Level.WARN, "refuses to write"),
        ({"maxmemory": "?"}, Level.WARN, "not looked at"),
    ],
)
def test_memory_is_judged_by_limit_and_policy(
    changes: dict[str, Any], level: Level, said: str
) -> None:
    found = kept.judge_memory("memory", {**INFO, **changes})
    assert found.level is level
    assert said in found.seen


@pytest.mark.parametrize(
    ("version", "level"), [("6.2.0", Level.OK), ("6.0.16", Level.WARN), ("", Level.WARN)]
)
def test_versions_from_6_2_on_are_fine(version: str, level: Level) -> None:
    found, _ = kept.judge_server("index", {**INFO, "redis_version": version})
    assert found.level is level


@pytest.mark.parametrize(
    ("url", "levels"),
    [
        ("redis://127.0.0.1:1", []),
        ("redis://localhost:1", []),
        ("unix:///run/valkey", []),
        ("redis://cache.example:1", [Level.WARN]),
        ("rediss://cache.example:1", [Level.OK]),
    ],
)
def test_the_way_to_another_machine_should_be_encrypted(url: str, levels: list[Level]) -> None:
    assert [one.level for one in kept.judge_transport("tls", url)] == levels


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AuthenticationError("no"), "password_file"),
        (TimeoutError(), "open the way"),
        (ResponseError("LOADING it reads its file"), "log"),
        (ConnectionError("Error 111"), "correct the URL"),
    ],
)
def test_every_failure_says_what_to_do(error: Exception, said: str) -> None:
    found = kept.judge_failure("index", "h:1", error, tls=False)
    assert found.level is Level.BAD
    assert said in found.do


def test_a_connection_that_fails_with_tls_says_what_tls_needs() -> None:
    found = kept.judge_failure("index", "h:1", ConnectionError("SSL"), tls=True)
    assert found.do == "start it with TLS, name its CA in ca, or use redis://"


def test_a_slow_server_is_warned_of() -> None:
    assert kept.judge_ping("ping", "h:1", 3.0).level is Level.OK
    assert kept.judge_ping("ping", "h:1", 21.0).level is Level.WARN


@pytest.mark.parametrize("url", ["http://x:1", "redis://", "redis://x:notaport"])
def test_a_url_that_is_none_is_an_error_of_the_setting(url: str) -> None:
    found = looked(url)["index"]
    assert (found.level, found.do) == (Level.BAD, "correct the setting")
