"""The names of aioquic and granian that are not public and that the bridge uses, in one place.

When an upgrade breaks this test, read the places named in its failure before anything else.
"""

import inspect
import os
from importlib.metadata import version

import pytest
from aioquic.h3 import connection as h3
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import Limit, QuicConnection, QuicConnectionId
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.stream import QuicStream, QuicStreamReceiver, QuicStreamSender
from granian._granian import SocketHolder
from granian.server.embed import Server as GranianServer
from uvicorn import Server as UvicornServer


def client() -> QuicConnection:
    return QuicConnection(configuration=QuicConfiguration(is_client=True))


def parameters(function: object) -> list[str]:
    assert callable(function)
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("package", "release"), [("aioquic", "1.7"), ("granian", "2.8"), ("pylsqpack", "1.")]
)
def test_the_release_is_one_that_this_contract_was_read_from(package: str, release: str) -> None:
    assert version(package).startswith(release)


@pytest.mark.parametrize(
    "name",
    [
        "_close_event",
        "_configuration",
        "_cryptos",
        "_handshake_complete",
        "_host_cids",
        "_local_max_data",
        "_local_max_streams_bidi",
        "_local_max_streams_uni",
        "_logger",
        "_network_paths",
        "_original_destination_connection_id",
        "_retry_source_connection_id",
        "_streams",
        "_version",
        "host_cid",
    ],
)
def test_a_quic_connection_has_the_attribute(name: str) -> None:
    assert hasattr(client(), name)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (QuicConnection._discard_epoch, ["self", "epoch"]),
        (QuicConnection._initialize, ["self", "peer_cid"]),
        (
            QuicConnection._parse_transport_parameters,
            ["self", "data", "from_session_ticket"],
        ),
        (QuicConnection._serialize_transport_parameters, ["self"]),
        (QuicConnection._unblock_streams, ["self", "is_unidirectional"]),
        (CryptoPair.setup_initial, ["self", "cid", "is_client", "version"]),
        (QuicConnection._replenish_connection_ids, ["self"]),
        (QuicConnection._write_connection_limits, ["self", "builder", "space"]),
        (QuicConnection._write_stream_limits, ["self", "builder", "space", "stream"]),
        (h3.H3Connection._init_connection, ["self"]),
        (h3.H3Connection._get_local_settings, ["self"]),
        (h3.H3Connection._check_request_or_push_frame_type, ["self", "frame_type", "stream"]),
        (h3.H3Connection._check_control_frame_type, ["self", "frame_type"]),
        (h3.H3Connection._decode_headers, ["self", "stream_id", "frame_data"]),
        (
            h3.H3Connection._receive_request_or_push_data,
            ["self", "stream", "data", "stream_ended"],
        ),
        (h3.H3Connection._get_or_create_stream, ["self", "stream_id"]),
        (GranianServer._init_shared_socket, ["self"]),
        (UvicornServer._serve, ["self", "sockets"]),
    ],
)
def test_a_method_that_the_bridge_overrides_or_calls_is_as_known(
    method: object, expected: list[str]
) -> None:
    assert parameters(method) == expected


def test_limits_streams_and_ids_have_the_known_fields() -> None:
    limit = Limit(frame_type=0, name="x", value=5)
    assert (limit.value, limit.sent, limit.used) == (5, 5, 0)
    stream = QuicStream(stream_id=0, max_stream_data_local=7)
    assert (stream.max_stream_data_local, stream.max_stream_data_local_sent) == (7, 7)
    assert QuicStreamReceiver(0, readable=True).starting_offset() == 0
    sender = QuicStreamSender(0, writable=True)
    sender.write(b"abc")
    assert (sender._buffer_start, sender._buffer_stop) == (0, 3)
    assert sender._reset_error_code is None
    assert QuicConnectionId(cid=b"", sequence_number=0).was_sent is False


def test_an_h3_connection_has_the_known_attributes() -> None:
    quic = client()
    quic._version = 1
    connection = h3.H3Connection(quic)
    for name in ("_max_table_capacity", "_blocked_streams", "_decoder", "_stream"):
        assert hasattr(connection, name), name
    assert connection._local_control_stream_id is not None
    assert connection._peer_control_stream_id is None
    stream = h3.H3Stream(0)
    assert (stream.frame_size, stream.buffer) == (None, b"")
    assert not stream.receiving_ended
    assert not stream.sending_ended


def test_a_granian_socket_is_made_of_a_descriptor() -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    holder = SocketHolder(descriptor, False, 16)
    assert holder.get_fd() == descriptor
