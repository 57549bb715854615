"""gRPC between nodes: mutual TLS with the role checked both ways, limits, and warm connections.

A client checks the server's role by the name that its certificate must carry; a server checks the
client's by `require_role`, first thing in every method.
"""

import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from firstlight.shared.errors import ConfigError
from firstlight.shared.proto import control_pb2, control_pb2_grpc
from firstlight.shared.tls import Identity, NodeFiles, identity_of, role_host
from firstlight.shared.types import Role

RECEIVE_BYTES_MAX = 8 << 20
STREAMS_MAX = 256
"""Concurrent calls on one connection; a peer needs one."""

KEEPALIVE_S = 10.0
"""Between HTTP/2 pings on a connection without traffic; they also keep NAT entries alive."""

WINDOW_BYTES = 1 << 20
"""Initial HTTP/2 window, so that a prompt of 128 KB goes out without waiting for an update."""

Options = Sequence[tuple[str, Any]]
View = control_pb2.MeshView
JoinCall = grpc.aio.StreamStreamCall[control_pb2.Report, control_pb2.MeshView]
Servicers = Callable[[grpc.aio.Server], None]
"""Adds servicers to a server that does not run yet."""


@dataclass(frozen=True, slots=True)
class Listening:
    """A server that accepts calls."""

    server: grpc.aio.Server
    port: int


async def server(address: str, files: NodeFiles, add: Servicers) -> Listening:
    """Start a server on `address` (host:port, 0 picks a port) for peers of our authority only.

    Raises `ConfigError` if the address cannot be bound.
    """
    credentials = grpc.ssl_server_credentials(
        [(files.key.read_bytes(), files.cert.read_bytes())],
        root_certificates=files.ca.read_bytes(),
        require_client_auth=True,
    )
    check_free(address)
    made = grpc.aio.server(options=_server_options())
    add(made)
    try:
        port = made.add_secure_port(address, credentials)
    except RuntimeError:
        raise ConfigError(f"cannot listen on {address}: gRPC could not bind it") from None
    await made.start()
    return Listening(made, port)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[ipv6]:port`; raises `ConfigError` for anything else."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise ConfigError(f"address {address!r}, expected host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return host, int(port)


def channel(address: str, files: NodeFiles, peer_role: Role) -> grpc.aio.Channel:
    """A channel to a node of `peer_role` at `address`; others fail the handshake."""
    credentials = grpc.ssl_channel_credentials(
        root_certificates=files.ca.read_bytes(),
        private_key=files.key.read_bytes(),
        certificate_chain=files.cert.read_bytes(),
    )
    return grpc.aio.secure_channel(address, credentials, options=_channel_options(peer_role))


def identity(context: grpc.aio.ServicerContext[Any, Any]) -> Identity | None:
    """Who the peer's certificate, which the handshake has verified, says it is."""
    names = context.auth_context().get("x509_subject_alternative_name", ())
    return identity_of([name.decode("utf-8", "replace") for name in names])


async def require_role(
    context: grpc.aio.ServicerContext[Any, Any], roles: Collection[Role]
) -> Identity:
    """The peer's identity; aborts the call with PERMISSION_DENIED unless its role is in `roles`."""
    peer = identity(context)
    if peer is None or peer.role not in roles:
        has = f"role {peer.role}" if peer else "no role"
        wanted = " or ".join(sorted(roles))
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED, f"certificate has {has}, expected {wanted}"
        )
        raise AssertionError("abort returned")
    return peer


def join(to: grpc.aio.Channel) -> JoinCall:
    """Open the control stream to a load balancer."""
    call: JoinCall = control_pb2_grpc.ControlStub(to).Join()
    return call


def check_free(address: str) -> None:
    """Bind and let go: gRPC itself would not say why it cannot, and logs what it cannot say.

    Raises `ConfigError`.
    """
    host, port = split_address(address)
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {error.strerror or error}") from None


def _common_options() -> list[tuple[str, Any]]:
    return [
        ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
        ("grpc.max_send_message_length", RECEIVE_BYTES_MAX),
        ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.max_metadata_size", 16 << 10),
    ]


def _server_options() -> Options:
    return [
        *_common_options(),
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        ("grpc.http2.min_ping_interval_without_data_ms", int(KEEPALIVE_S * 500)),
        ("grpc.http2.max_ping_strikes", 5),
        ("grpc.server_handshake_timeout_ms", 5_000),
    ]


def _channel_options(peer_role: Role) -> Options:
    return [
        *_common_options(),
        ("grpc.ssl_target_name_override", role_host(peer_role)),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.enable_retries", 0),
        ("grpc.enable_http_proxy", 0),
    ]
