"""A node's place in the mesh, when what it needs to join is not there for a while."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from firstlight.shared.errors import ConfigError
from firstlight.shared.join import Joiner
from firstlight.shared.tls import NodeFiles
from firstlight.shared.types import Load, NodeInfo, Role


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
