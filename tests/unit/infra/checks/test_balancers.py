"""Load balancers as a node would meet them: the right one, a wrong one, none at all."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from firstlight.edge_node.config import EdgeSettings
from firstlight.global_lb.config import LbSettings
from firstlight.infra.checks import balancers
from firstlight.infra.checks.finding import Finding, Level
from firstlight.infra.checks.subject import Subject
from firstlight.shared import rpc
from firstlight.shared.tls import ensure_ca, issue
from firstlight.shared.types import Role


@pytest.fixture(params=[Role.LB, Role.CORE])
async def listening(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[Role, str]]:
    """A gRPC server with the certificate of a role; its role and address."""
    files = issue(ensure_ca(tmp_path), request.param, "n", (), tmp_path)
    started = await rpc.server("127.0.0.1:0", files, lambda server: None)
    yield request.param, f"127.0.0.1:{started.port}"
    await started.server.stop(0)


async def look_at(address: str, ca: Path) -> Finding:
    (found,) = await asyncio.to_thread(balancers.look_at, address, ca)
    return found


async def test_only_a_load_balancer_is_taken_for_one(
    listening: tuple[Role, str], tmp_path: Path
) -> None:
    role, address = listening
    found = await look_at(address, ensure_ca(tmp_path).cert)
    assert found.level is (Level.OK if role is Role.LB else Level.BAD)
    if role is Role.CORE:
        assert "lb.firstlight.internal" in found.seen


async def test_one_of_another_authority_is_refused(
    listening: tuple[Role, str], tmp_path: Path
) -> None:
    found = await look_at(listening[1], ensure_ca(tmp_path / "other").cert)
    assert found.level is Level.BAD
    assert "its certificate is refused" in found.seen


async def test_without_an_authority_only_the_way_is_looked_at(
    listening: tuple[Role, str], tmp_path: Path
) -> None:
    assert (await look_at(listening[1], tmp_path / "none.pem")).level is Level.WARN


async def test_a_port_without_tls_is_none(tmp_path: Path) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 welcome\r\n")
        await reader.read(64)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    found = await look_at(address, ensure_ca(tmp_path).cert)
    server.close()
    assert found.level is Level.BAD
    assert "does not speak TLS" in found.seen


async def test_one_that_is_gone_says_so(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        found = await look_at(f"127.0.0.1:{closed.getsockname()[1]}", tmp_path)
    assert found.level is Level.BAD
    assert "cannot be reached" in found.seen


async def test_an_address_that_is_none_is_an_error_of_the_setting(tmp_path: Path) -> None:
    assert (await look_at("nowhere", tmp_path)).do == "load_balancers: [host:port]"


def test_an_edge_that_names_no_load_balancer_is_warned_of(tmp_path: Path) -> None:
    (found,) = balancers.look_named(Subject(((Role.EDGE, EdgeSettings()),), tmp_path))
    assert found.level is Level.WARN
    named = EdgeSettings(load_balancers=("a:1",))
    assert balancers.look_named(Subject(((Role.EDGE, named),), tmp_path)) == []
    assert balancers.look_named(Subject(((Role.LB, LbSettings()),), tmp_path)) == []
