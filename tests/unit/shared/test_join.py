"""A node's place in the mesh, when what it needs to join is not there for a while."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from firstlight.shared.errors import ConfigError
from firstlight.shared.join import Joiner
from firstlight.shared.tls import NodeFiles
from firstlight.shared.types import Load, MeshView, NodeInfo, Role


async def test_a_certificate_that_is_being_replaced_does_not_end_joining(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem")
    info = NodeInfo("core", Role.CORE, 1, "eu", "127.0.0.1:1")
    joiner = Joiner(info, files, ["127.0.0.1:1"], load=Load, rng=Random(1))
    stop = asyncio.Event()
    running = asyncio.create_task(joiner.run(stop))
    ended, _ = await asyncio.wait((running,), timeout=0.5)
    stop.set()
    await asyncio.wait_for(running, 5)
    assert not ended


def test_an_address_that_is_none_is_named_before_anything_is_tried(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem")
    info = NodeInfo("core", Role.CORE, 1, "eu", "127.0.0.1:1")
    with pytest.raises(ConfigError, match="address 'nonsense', expected host:port"):
        Joiner(info, files, ["127.0.0.1:1", "nonsense"], load=Load, rng=Random(1))


def _hearing(told: list[bool]) -> Joiner:
    """One that is told things by two load balancers, "a" and "b"."""
    path = Path("unused.pem")
    info = NodeInfo("core", Role.CORE, 1, "eu", "127.0.0.1:1")
    files = NodeFiles(path, path, path)
    return Joiner(info, files, [], load=Load, on_drain=told.append, rng=Random(1))


def _view(*draining: str, whole: bool = True) -> MeshView:
    return MeshView("lb", 1, draining=frozenset(draining), draining_whole=whole)


def test_a_node_drains_while_any_load_balancer_wants_it_to() -> None:
    told: list[bool] = []
    joiner = _hearing(told)
    for address, view in [
        ("a", _view("core")),
        ("b", _view()),
        ("b", _view("other", "core")),
        ("a", _view("other")),
        ("b", _view()),
    ]:
        joiner.heard_drain(view, address)
    assert told == [True, False]


def test_one_that_does_not_know_takes_nothing_back() -> None:
    told: list[bool] = []
    joiner = _hearing(told)
    joiner.heard_drain(_view("core"), "a")
    joiner.heard_drain(_view(whole=False), "a")
    joiner.heard_drain(_view("other", whole=False), "a")
    assert (told, joiner.report().load.draining) == ([True], True)
    joiner.heard_drain(_view(), "a")
    assert (told, joiner.report().load.draining) == ([True, False], False)


def test_every_report_is_newer_than_the_one_before() -> None:
    joiner = _hearing([])
    assert [joiner.report().seq for _ in range(3)] == [1, 2, 3]
    assert joiner.report(leaving=True).leaving
