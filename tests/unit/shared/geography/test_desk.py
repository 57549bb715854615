"""What a node answers about edges: lists, keys, the table for DNS, and what clients tell."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from desk_bed import LONDONER, SIGNER, STRANGER, desk, edge

from firstlight.shared.errors import AuthError, RequestError, TooLargeError
from firstlight.shared.geography.desk import TOLD_BYTES_MAX, Desk, Said
from firstlight.shared.geography.geoip import Found
from firstlight.shared.geography.signing import EDGES, HEADER, STEERING, is_signed
from firstlight.shared.geography.subnets import Address
from firstlight.shared.types import NodeInfo, Report, Role


def document(said: Said) -> dict[str, Any]:
    read = json.loads(said.body)
    assert isinstance(read, dict)
    return read


def nodes(said: Said) -> list[str]:
    return [one["node"] for one in document(said)["data"]]


async def body(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def tell(at: Desk, told: object, peer: str | None = LONDONER) -> dict[str, Any]:
    return document(await at.tell(body(json.dumps(told).encode()), peer))


def test_a_list_is_nearest_first_from_the_clients_address_and_signed(tmp_path: Path) -> None:
    said = desk(tmp_path).edges("", LONDONER)
    assert nodes(said) == ["lon", "par", "tok"]
    assert is_signed(said.headers[HEADER], EDGES, said.body, SIGNER.public)
    assert document(said)["client"] == {
        "prefix": "81.2.69.0/24",
        "country": "GB",
        "known_by": "city",
    }


def test_an_entry_says_how_to_reach_an_edge_and_what_is_expected(tmp_path: Path) -> None:
    entry = document(desk(tmp_path).edges("", LONDONER))["data"][0]
    assert entry["expected_rtt_ms"] == pytest.approx(5.0, abs=0.1)
    del entry["expected_rtt_ms"]
    assert entry == {
        "node": "lon",
        "region": "lon",
        "failure_domain": "lon",
        "address": "lon.test:443",
        "url": "https://lon.test:443",
        "ips": ["192.0.2.1"],
        "alpn": ["h3", "h2", "http/1.1"],
        "rtt_from": "city",
    }


def test_the_list_names_whose_database_placed_the_client(tmp_path: Path) -> None:
    (one,) = document(desk(tmp_path).edges("", LONDONER))["attribution"]
    assert one["url"] == "https://www.maxmind.com"


def test_a_clients_subnet_counts_in_place_of_who_asks_for_it(tmp_path: Path) -> None:
    said = desk(tmp_path).edges(urlencode({"ecs": "203.0.113.0/24"}), LONDONER)
    assert nodes(said)[0] == "tok"
    assert document(said)["client"]["prefix"] == "203.0.113.0/24"


def test_what_a_client_measured_orders_its_own_list_and_no_other(tmp_path: Path) -> None:
    at = desk(tmp_path)
    assert nodes(at.edges("rtt=tok:1.5&rtt=par:2", LONDONER)) == ["tok", "par", "lon"]
    assert nodes(at.edges("", LONDONER)) == ["lon", "par", "tok"]


def test_a_nonce_comes_back_signed(tmp_path: Path) -> None:
    at = desk(tmp_path)
    assert document(at.edges("nonce=aB_-9", LONDONER))["nonce"] == "aB_-9"
    assert document(at.edges("", LONDONER))["nonce"] is None


def test_a_list_is_as_long_as_asked_for(tmp_path: Path) -> None:
    assert nodes(desk(tmp_path).edges("count=2", LONDONER)) == ["lon", "par"]


@pytest.mark.parametrize("peer", [None, "", "unix:", STRANGER, "fe80::1%eth0"])
def test_a_client_of_no_known_place_gets_all_edges_all_the_same(
    tmp_path: Path, peer: str | None
) -> None:
    said = desk(tmp_path).edges("", peer)
    assert nodes(said) == ["lon", "par", "tok"]
    assert document(said)["client"]["known_by"] == "nothing"
    assert {one["rtt_from"] for one in document(said)["data"]} == {"unknown"}


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("count=0", "count"),
        ("count=65", "count"),
        ("count=²", "count"),
        ("count=-1", "count"),
        ("ecs=somewhere", "ecs"),
        ("ecs=1.2.3.4/99", "ecs"),
        ("rtt=lon", "rtt"),
        ("rtt=lon:nan", "rtt"),
        ("rtt=lon:-1", "rtt"),
        ("rtt=lon:1e9", "rtt"),
        ("&".join(["rtt=lon:1"] * 17), "rtt"),
        ("nonce=a%20b", "nonce"),
        ("nonce=" + "a" * 65, "nonce"),
        ("nonce=", "nonce"),
        ("&".join(["x=1"] * 65), None),
    ],
)
def test_a_parameter_that_is_none_is_refused_by_name(
    tmp_path: Path, query: str, param: str | None
) -> None:
    with pytest.raises(RequestError) as caught:
        desk(tmp_path).edges(query, LONDONER)
    assert caught.value.param == param


def test_an_edge_that_drains_is_not_listed_and_dns_is_told(tmp_path: Path) -> None:
    at = desk(tmp_path, edge("lon", draining=True), edge("par"))
    assert nodes(at.edges("", LONDONER)) == ["par"]
    assert document(at.steering(f"Bearer {SIGNER.token}"))["draining"] == ["lon"]


def test_an_edge_lists_itself_though_nobody_told_it_of_itself(tmp_path: Path) -> None:
    at = desk(tmp_path, edge("lon"))
    at.own = lambda: edge("tok")
    assert nodes(at.edges("", LONDONER)) == ["lon", "tok"]


def test_the_public_keys_are_told(tmp_path: Path) -> None:
    (key,) = document(desk(tmp_path).keys())["data"]
    assert key == {
        "id": SIGNER.public[0].id,
        "algorithm": "ed25519",
        "public_key": SIGNER.public[0].raw.hex(),
    }


def test_the_table_for_dns_is_signed_for_that_alone(tmp_path: Path) -> None:
    said = desk(tmp_path).steering(f"Bearer {SIGNER.token}")
    assert is_signed(said.headers[HEADER], STEERING, said.body, SIGNER.public)
    assert document(said)["edges"][0]["place"] == [51.5, -0.1]


@pytest.mark.parametrize("authorization", [None, "", "Bearer ", "Bearer 00", "é"])
def test_the_table_for_dns_is_not_for_everyone(tmp_path: Path, authorization: str | None) -> None:
    with pytest.raises(AuthError):
        desk(tmp_path).steering(authorization)


async def test_one_client_steers_itself_alone_and_three_their_network(tmp_path: Path) -> None:
    clock = [0.0]
    at = desk(tmp_path, now=clock)
    for host in (1, 2):
        told = await tell(at, {"edges": {"par": 2, "lon": 30.5}}, f"81.2.69.{host}")
        assert told == {"taken": 2, "refused": []}
    assert nodes(at.edges("", LONDONER))[0] == "lon"
    await tell(at, {"edges": {"par": 2, "lon": 30.5}}, "81.2.69.3")
    said = at.edges("", LONDONER)
    assert nodes(said)[0] == "par"
    assert document(said)["data"][0]["rtt_from"] == "reported"
    assert nodes(at.edges("", "2001:db8:1::1"))[0] == "lon"
    clock[0] = 1.0
    agreed = document(at.steering(f"Bearer {SIGNER.token}"))["agreed"]
    assert ["81.2.69.0/24", "lon", 30.5] in agreed


async def test_what_is_faster_than_light_is_held_to_it(tmp_path: Path) -> None:
    at = desk(tmp_path)
    for host in (1, 2, 3):
        await tell(at, {"edges": {"tok": 0.5}}, f"81.2.69.{host}")
    entries = document(at.edges("", LONDONER))["data"]
    (told,) = [one for one in entries if one["node"] == "tok"]
    assert told["expected_rtt_ms"] > 60


async def test_edges_that_nobody_knows_are_refused_by_name(tmp_path: Path) -> None:
    told = await tell(desk(tmp_path), {"edges": {"lon": 5, "moon": 2500, "par": -1}})
    assert told == {"taken": 1, "refused": ["moon", "par"]}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"edges": {}}',
        b'{"edges": []}',
        b'{"edges": {"lon": "5"}}',
        b'{"edges": {"lon": true}}',
        b'{"edges": {"lon": null}}',
        b'{"edges": {"\\ud800": 5}}',
        b'{"edges": {"\\ud800": "5"}}',
        b"[" * 5000,
        b"\xff\xfe",
        json.dumps({"edges": {str(i): 1 for i in range(17)}}).encode(),
    ],
)
async def test_a_body_that_tells_nothing_is_refused(tmp_path: Path, raw: bytes) -> None:
    with pytest.raises(RequestError):
        await desk(tmp_path).tell(body(raw), LONDONER)


async def test_a_number_beyond_all_numbers_is_no_round_trip(tmp_path: Path) -> None:
    raw = b'{"edges": {"lon": 1' + b"0" * 400 + b', "par": NaN, "tok": Infinity}}'
    told = document(await desk(tmp_path).tell(body(raw), LONDONER))
    assert told == {"taken": 0, "refused": ["lon", "par", "tok"]}


async def test_a_body_is_not_read_beyond_its_limit(tmp_path: Path) -> None:
    with pytest.raises(TooLargeError):
        await desk(tmp_path).tell(body(*[b" " * 1000] * (TOLD_BYTES_MAX // 1000 + 1)), LONDONER)


async def test_a_client_without_an_address_tells_nothing(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="address"):
        await tell(desk(tmp_path), {"edges": {"lon": 5}}, None)


def test_a_client_far_from_here_is_sent_on_once(tmp_path: Path) -> None:
    at = desk(tmp_path)
    there = at.nearer(LONDONER, already=False)
    assert there is not None
    assert there.edge.info.node == "lon"
    assert at.nearer(LONDONER, already=True) is None
    assert at.nearer(STRANGER, already=False) is None
    assert at.nearer(None, already=False) is None


def test_an_edge_that_says_no_place_has_that_of_its_address(tmp_path: Path) -> None:
    info = NodeInfo("x", Role.EDGE, 1, "x", "203.0.113.9:443")
    at = desk(tmp_path, Report(info, 1), edge("lon"))
    assert nodes(at.edges("ecs=203.0.113.0/24", None)) == ["x", "lon"]


def test_a_node_is_looked_up_again_only_when_it_or_the_databases_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    infos = [NodeInfo("x", Role.EDGE, 1, "x", "203.0.113.9:443")]
    now, at = [0.0], desk(tmp_path)
    looked_up, find = list[str](), at.geoip.find

    def noted(address: Address) -> Found | None:
        looked_up.append(str(address))
        return find(address)

    monkeypatch.setattr(at.geoip, "find", noted)
    monkeypatch.setattr(at, "_reports", lambda: [Report(infos[0], int(now[0]))])
    monkeypatch.setattr(at, "_now", lambda: now[0])

    def later() -> int:
        now[0] += 1.0
        at.edges("ecs=192.0.2.0/24&region=x", None)
        return looked_up.count("203.0.113.9")

    assert (later(), later()) == (1, 1)
    infos[0] = replace(infos[0], incarnation=2)
    assert (later(), later()) == (2, 2)
    at.geoip.generation += 1
    assert (later(), later()) == (3, 3)
