"""Ports that are taken, by whom it may be, and ports that cannot be had at all."""

import errno
import socket
from pathlib import Path

import pytest

from firstlight.core_node.config import CoreSettings
from firstlight.edge_node.config import EdgeSettings
from firstlight.global_lb.config import LbSettings
from firstlight.infra.checks import ports
from firstlight.infra.checks.finding import Level
from firstlight.infra.checks.subject import NodeSettings, Subject
from firstlight.shared.types import Role


@pytest.mark.parametrize(
    ("kind", "protocol"), [(socket.SOCK_STREAM, "tcp"), (socket.SOCK_DGRAM, "udp")]
)
def test_a_port_of_an_edge_that_is_taken_for_either_protocol_is_broken(
    kind: socket.SocketKind, protocol: str, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            taken.listen()
        port = taken.getsockname()[1]
        settings = EdgeSettings(listen=f"127.0.0.1:{port}")
        (found,) = ports.look(Subject(((Role.EDGE, settings),), tmp_path))
    assert found.level is Level.BAD
    assert f"{protocol} 127.0.0.1:{port} is in use" in found.seen
    assert str(port) in found.do


def test_a_core_shares_its_number_with_a_udp_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert ports.try_bind(address, ("tcp",)) is None


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (EdgeSettings(), ["listen"]),
        (CoreSettings(), ["listen", "admin"]),
        (CoreSettings(admin=None), ["listen"]),
        (LbSettings(), ["http.listen", "control.listen"]),
    ],
)
def test_every_listener_of_a_role_is_known(settings: NodeSettings, names: list[str]) -> None:
    assert [setting for setting, _, _ in ports.listened(settings)] == names


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, "above 1023"),
        (errno.EADDRNOTAVAIL, "0.0.0.0"),
        (errno.EINVAL, "host:port"),
    ],
)
def test_a_port_that_cannot_be_had_says_what_to_do(number: int, said: str) -> None:
    found = ports.judge("port", "127.0.0.1:80", ("tcp", number), meant=True)
    assert found.level is Level.BAD
    assert said in found.do


def test_a_default_port_that_is_taken_only_warns_when_nobody_asked_for_the_role() -> None:
    found = ports.judge("port", "127.0.0.1:80", ("tcp", errno.EADDRINUSE), meant=False)
    assert found.level is Level.WARN


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:99999", "192.0.2.1:5000"])
def test_an_address_that_is_none_of_ours_is_found_out(address: str) -> None:
    assert ports.try_bind(address, ("tcp",)) is not None
