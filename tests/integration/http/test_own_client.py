"""Our client reports a closed port and a foreign authority as errors of the peer."""

import socket
from pathlib import Path

import pytest
from aioquic.tls import Group
from edge_tls import TlsFiles, write_tls_files
from http_bed import VERSIONS, Edge

from firstlight.edge_node.http.quic import EdgeQuicConnection
from firstlight.infra.client.client import open_client
from firstlight.infra.client.http3 import KEY_GROUPS, Http3Client
from firstlight.shared.errors import PeerError


async def test_a_client_of_a_closed_port_gets_a_clear_error_soon(tls: TlsFiles) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    for http in VERSIONS:
        client = open_client(f"https://127.0.0.1:{port}", http, ca_file=tls.ca)  # type: ignore[arg-type]
        with pytest.raises(PeerError, match=str(port)):
            await client.request("GET", "/")
        await client.aclose()


async def test_a_client_does_not_trust_another_authority(edge: Edge, tmp_path: Path) -> None:
    other = write_tls_files(tmp_path)
    for http in VERSIONS:
        async with open_client(edge.url, http, ca_file=other.ca) as client:  # type: ignore[arg-type]
            with pytest.raises(PeerError):
                await client.request("GET", "/hello")


async def test_a_client_does_not_trust_who_has_another_name(edge: Edge, tls: TlsFiles) -> None:
    def named(name: str) -> Http3Client:
        return Http3Client("127.0.0.1", edge.fronts.port, ca_file=tls.ca, server_name=name)

    async with named("example.com") as client:
        with pytest.raises(PeerError, match=r"not for example\.com"):
            await client.request("GET", "/hello")
    async with named("localhost") as client:
        assert (await client.request("GET", "/hello")).status == 200


async def test_a_client_that_connects_again_trusts_whom_the_file_names_by_then(
    edge: Edge, tls: TlsFiles, tmp_path: Path
) -> None:
    ca_file = tmp_path / "trusted.pem"
    ca_file.write_bytes(tls.ca.read_bytes())
    client = Http3Client("localhost", edge.fronts.port, ca_file=ca_file)
    ca_file.write_bytes(write_tls_files(tmp_path).ca.read_bytes())
    with pytest.raises(PeerError, match="refused"):
        await client.request("GET", "/hello")
    ca_file.write_bytes(tls.ca.read_bytes())
    assert (await client.request("GET", "/hello")).status == 200
    await client.aclose()
    ca_file.unlink()
    with pytest.raises(PeerError, match=r"cannot use the CA file .*trusted\.pem"):
        await client.request("GET", "/hello")
    await client.aclose()


@pytest.mark.parametrize("group", KEY_GROUPS)
async def test_a_server_that_knows_one_group_of_keys_is_served(
    edge: Edge, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    initialize = EdgeQuicConnection._initialize

    def with_one(quic: EdgeQuicConnection, peer_cid: bytes) -> None:
        initialize(quic, peer_cid)
        quic.tls._supported_groups = [group]

    monkeypatch.setattr(EdgeQuicConnection, "_initialize", with_one)
    async with edge.client("3") as client:
        assert (await client.request("GET", "/hello")).status == 200
