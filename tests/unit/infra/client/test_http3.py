"""What a client of HTTP/3 does when it cannot connect."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from firstlight.infra.client.http3 import Http3Client
from firstlight.shared.errors import PeerError


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Of somebody who takes datagrams, and answers none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


async def test_a_handshake_that_was_broken_off_is_no_connection(silent_port: int) -> None:
    async with Http3Client("127.0.0.1", silent_port, connect_timeout_s=0.3) as client:
        first = asyncio.create_task(client.connect())
        await asyncio.sleep(0.05)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(PeerError, match="did not answer over HTTP/3"):
            await client.request("GET", "/")


async def test_an_address_that_no_socket_takes_is_an_error_of_the_peer() -> None:
    async with Http3Client("255.255.255.255", 443) as client:
        with pytest.raises(PeerError, match=r"255\.255\.255\.255:443"):
            await client.connect()


async def test_who_waits_for_one_connection_shares_its_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    async def nobody_answers(client: Http3Client) -> None:
        tried.append(1)
        await asyncio.sleep(0)
        raise PeerError("nobody answers")

    monkeypatch.setattr(Http3Client, "_connect", nobody_answers)
    client = Http3Client("127.0.0.1", 1)
    failed = await asyncio.gather(*(client.connect() for _ in range(5)), return_exceptions=True)
    assert [str(one) for one in failed] == ["nobody answers"] * 5
    assert len(tried) == 1
    with pytest.raises(PeerError):
        await client.connect()
    assert len(tried) == 2, "who comes later tries again"
