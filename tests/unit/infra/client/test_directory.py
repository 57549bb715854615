"""Lists of edges: which are believed, and what is read from them."""

import json
from base64 import b64encode
from hashlib import sha256
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from firstlight.infra.client.directory import (
    EXPIRES_S,
    Directory,
    DirectoryKeys,
    is_server_url,
    keys_in,
    path_for,
    read_directory,
)
from firstlight.infra.client.edges import EDGES_MAX, Edge
from firstlight.shared.errors import ConfigError, PeerError

SECRET = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = SECRET.public_key().public_bytes_raw()
KEYS = DirectoryKeys([PUBLIC.hex()])
ENTRY = {
    "node": "edge-a",
    "region": "lon",
    "url": "https://edge-a.example.com:443",
    "alpn": ["h3", "h2"],
    "expected_rtt_ms": 12.5,
}


def body(*entries: Any, **fields: Any) -> bytes:
    return json.dumps({"nonce": "n", "expires_in_s": 30.0, "data": list(entries)} | fields).encode()


def signed(text: bytes, secret: Ed25519PrivateKey = SECRET) -> str:
    key_id = sha256(secret.public_key().public_bytes_raw()).hexdigest()[:16]
    signature = secret.sign(b"firstlight-edges-v1\n" + text)
    return f"ed25519 {key_id} {b64encode(signature).decode()}"


def read(text: bytes, header: str | None = None, keys: DirectoryKeys = KEYS) -> Directory:
    return read_directory(text, signed(text) if header is None else header, keys=keys, nonce="n")


def test_a_signed_list_is_read() -> None:
    found = read(body(ENTRY))
    assert found == Directory((Edge(ENTRY["url"], "edge-a", "lon", 0.0125, quic=True),), 30.0, True)


def test_without_keys_an_unsigned_list_is_read() -> None:
    plain = json.dumps({"object": "list", "data": [{"url": "https://e:1"}]}).encode()
    found = read_directory(plain, None, keys=DirectoryKeys(), nonce="n")
    assert found == Directory((Edge("https://e:1"),), EXPIRES_S, False)


@pytest.mark.parametrize("header", ["", "ed25519", "rsa a b", "ed25519 a b c"])
def test_with_keys_an_unsigned_list_is_refused(header: str) -> None:
    with pytest.raises(PeerError, match="not signed, and only signed ones are believed"):
        read(body(ENTRY), header)


def test_a_list_of_which_a_byte_is_changed_is_refused() -> None:
    text = body(ENTRY)
    with pytest.raises(PeerError, match="wrong signature"):
        read(text.replace(b"edge-a.example", b"edge-b.example"), signed(text))


def test_a_list_signed_by_somebody_else_is_refused_even_under_our_keys_name() -> None:
    text, other = body(ENTRY), Ed25519PrivateKey.generate()
    with pytest.raises(PeerError, match="a key not known here"):
        read(text, signed(text, other))
    forged = signed(text).split()[:2] + signed(text, other).split()[2:]
    with pytest.raises(PeerError, match="wrong signature"):
        read(text, " ".join(forged))


def test_a_signature_that_is_no_base64_is_refused() -> None:
    with pytest.raises(PeerError, match="wrong signature"):
        read(body(ENTRY), " ".join([*signed(b"").split()[:2], "***"]))


def test_an_older_list_is_not_taken_for_the_answer() -> None:
    with pytest.raises(PeerError, match="its nonce is wrong"):
        read(body(ENTRY, nonce="older"))


def test_either_of_two_keys_may_have_signed() -> None:
    other = Ed25519PrivateKey.generate()
    both = DirectoryKeys([other.public_key().public_bytes_raw().hex(), PUBLIC.hex()])
    text = body(ENTRY)
    assert read(text, keys=both).signed
    assert read(text, signed(text, other), keys=both).signed


@pytest.mark.parametrize("key", ["", "ab", "zz" * 32, "ab" * 33])
def test_what_is_no_public_key_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="no public key of a directory"):
        DirectoryKeys([key])


@pytest.mark.parametrize(
    "text", [b"", b"<html>", b"[]", b"{}", b'{"data": 1}', b"[" * 100_000, b"\xff"]
)
def test_what_is_no_list_is_an_error_and_not_a_crash(text: bytes) -> None:
    with pytest.raises(PeerError, match="what came is no list of edges"):
        read_directory(text, None, keys=DirectoryKeys(), nonce="n")


@pytest.mark.parametrize(
    "entry",
    [
        7,
        {},
        {"url": 7},
        {"url": "http://plain:1"},
        {"url": "https://user@host:1"},
        {"url": "https://host:99999"},
        {"url": "https://host:1/path"},
        {"url": "https://"},
    ],
)
def test_an_entry_that_cannot_be_asked_is_left_out(entry: Any) -> None:
    assert [edge.node for edge in read(body(entry, ENTRY)).edges] == ["edge-a"]


@pytest.mark.parametrize("ms", [None, "12", -1, 1e9, [1]])
def test_an_expectation_that_cannot_be_is_none(ms: Any) -> None:
    (edge,) = read(body(ENTRY | {"expected_rtt_ms": ms})).edges
    assert edge.expected_rtt_s is None


def test_nan_is_no_expectation() -> None:
    (edge,) = read(body(ENTRY | {"expected_rtt_ms": float("nan")})).edges
    assert edge.expected_rtt_s is None


@pytest.mark.parametrize("expires_s", [None, "60", 0, -5, float("nan"), 1e12])
def test_an_expiry_that_cannot_be_is_the_usual_one(expires_s: Any) -> None:
    assert read(body(ENTRY, expires_in_s=expires_s)).expires_in_s == EXPIRES_S


def test_an_edge_without_h3_is_known_to_have_none() -> None:
    (edge,) = read(body(ENTRY | {"alpn": ["h2"]})).edges
    assert not edge.quic


def test_a_list_longer_than_the_limit_is_cut() -> None:
    many = [ENTRY | {"url": f"https://e:{port}"} for port in range(1, 3 * EDGES_MAX)]
    assert len(read(body(*many)).edges) == EDGES_MAX


def test_what_was_measured_is_told_nearest_first_and_escaped() -> None:
    assert path_for("abc", {"b": 0.08, "a/&": 0.0125, "": 1.0}) == (
        "/v1/edges?count=16&nonce=abc&rtt=a%2F%26:12.500&rtt=b:80.000"
    )
    assert path_for("n", {str(k): k / 1e3 for k in range(40)}).count("rtt=") == 16


def test_a_file_of_keys_has_one_a_line() -> None:
    assert keys_in("aa\n\n bb \n") == ["aa", "bb"]


@pytest.mark.parametrize("url", ["https://h", "https://h:1/", "https://[::1]:8443"])
def test_a_server_is_scheme_host_and_port(url: str) -> None:
    assert is_server_url(url)


@pytest.mark.parametrize(
    "host",
    [
        "a..b",
        ".a",
        "a" * 64,
        "a b",
        "a\tb",
        "é.example",
        "\u202e.com",
        "a%b",
        "*",
        "a;b",
        "[::1%lo]",
    ],
)
def test_a_host_that_can_be_no_name_and_no_address_is_no_server(host: str) -> None:
    assert not is_server_url(f"https://{host}:443")


@pytest.mark.parametrize("host", ["a", "edge_1.example.com.", "127.0.0.1", "[::1]", "xn--9ca.com"])
def test_a_name_or_an_address_is_a_server(host: str) -> None:
    assert is_server_url(f"https://{host}:443")


@pytest.mark.parametrize("rtt_ms", [10**400, -(10**400), float("inf"), "1", None])
def test_a_round_trip_that_is_none_is_not_expected(rtt_ms: Any) -> None:
    assert read(body(ENTRY | {"expected_rtt_ms": rtt_ms})).edges[0].expected_rtt_s is None


@pytest.mark.parametrize("name", ["\ud800", "a\nb", "x" * 257, 7])
def test_a_name_that_cannot_be_told_on_is_none(name: Any) -> None:
    edge = read(body(ENTRY | {"node": name, "region": name})).edges[0]
    assert (edge.node, edge.region) == ("", "")
