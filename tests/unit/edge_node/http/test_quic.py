"""The edge's QUIC connection gives every id its reset token and bounds a client's streams."""

from typing import Any

from firstlight.edge_node.http.quic import RESET_TOKEN_BYTES, reset_token


async def idle(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("no request is sent")


def test_reset_tokens_depend_on_key_and_connection_id() -> None:
    token = reset_token(b"a" * 32, b"12345678")
    assert len(token) == RESET_TOKEN_BYTES
    assert token == reset_token(b"a" * 32, b"12345678")
    assert token != reset_token(b"b" * 32, b"12345678")
    assert token != reset_token(b"a" * 32, b"12345679")


async def test_every_connection_id_that_a_client_learns_has_its_token(join: Any) -> None:
    pair = join(idle)
    known = [pair.client._peer_cid, *pair.client._peer_cid_available]
    assert len(known) == 8
    for connection_id in known:
        assert connection_id.stateless_reset_token == reset_token(b"k" * 32, connection_id.cid)


async def test_a_client_may_open_no_more_streams_than_the_limit(join: Any) -> None:
    pair = join(idle, requests_per_connection_max=7)
    assert pair.client._remote_max_streams_bidi == 7
    assert pair.client._remote_max_streams_uni == 16
