"""Ports for a local mesh."""

import random
import socket

import pytest

from firstlight.infra import ports
from firstlight.infra.ports import PORT_FIRST, PORT_LAST, free_ports
from firstlight.shared.errors import ConfigError


def test_ports_are_different_and_within_the_range() -> None:
    found = free_ports(12, random.Random(1))
    assert len(set(found)) == 12
    assert all(PORT_FIRST <= port <= PORT_LAST for port in found)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_port_taken_for_tcp_or_for_udp_is_passed_over(kind: socket.SocketKind) -> None:
    (port,) = free_ports(1, random.Random(2))
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", port))
        assert port not in free_ports(3, random.Random(2))


def test_too_few_free_ports_are_an_error_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "PORT_LAST", PORT_FIRST + 3)
    with pytest.raises(ConfigError, match="need 9"):
        free_ports(9, random.Random(3))
