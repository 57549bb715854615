"""The remote backend's protocol, line by line: what is answered, and what breaks the connection."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from mmdb_bed import write_database
from pdns_bed import LONDON, TOKYO, ZONE, steering, world

from firstlight.global_lb import dns_backend
from firstlight.global_lb.dns import Trouble
from firstlight.global_lb.dns_backend import Answers, serving
from firstlight.global_lb.dns_config import DnsSettings, ZoneConfig
from firstlight.global_lb.dns_table import TableKeeper
from firstlight.shared.config import load_settings
from firstlight.shared.errors import ConfigError
from firstlight.shared.geography.geoip import Geoip


def answers(folder: Path, keeper: TableKeeper | None = None) -> Answers:
    write_database(folder / "places.mmdb")
    geoip = Geoip(folder)
    geoip.refresh()
    known = keeper or world()
    return Answers(ZONE, lambda: known.table, geoip)


def line(method: str, **parameters: object) -> bytes:
    return json.dumps({"method": method, "parameters": parameters}).encode() + b"\n"


def question(subnet: str = "81.2.69.0/24", name: str = "edge.test.", qtype: str = "A") -> bytes:
    more = {"real-remote": subnet, "remote": "127.0.0.1", "local": "127.0.0.1", "zone-id": -1}
    return line("lookup", qname=name, qtype=qtype, **more)


def result(at: Answers, asked: bytes) -> Any:
    return json.loads(at.reply(asked))["result"]


def contents(at: Answers, asked: bytes) -> list[str]:
    return [one["content"] for one in result(at, asked)]


def test_a_record_is_what_the_protocol_says(tmp_path: Path) -> None:
    assert result(answers(tmp_path), question())[0] == {
        "qtype": "A",
        "qname": "edge.test.",
        "content": "192.0.2.1",
        "ttl": 20,
        "scopeMask": 24,
        "domain_id": 1,
        "auth": 1,
    }


def test_the_clients_network_decides_and_not_who_asks_for_it(tmp_path: Path) -> None:
    at = answers(tmp_path)
    assert contents(at, question("81.2.69.0/24")) == ["192.0.2.1", "192.0.2.3"]
    assert contents(at, question("203.0.113.0/24")) == ["192.0.2.3", "192.0.2.4"]
    assert contents(at, question("2001:db8:2::/48")) == ["192.0.2.3", "192.0.2.4"]


def test_without_a_clients_network_the_resolver_counts(tmp_path: Path) -> None:
    asked = line("lookup", qname="edge.test.", qtype="A", remote="203.0.113.9")
    assert contents(answers(tmp_path), asked)[0] == "192.0.2.3"


def test_the_same_question_has_the_same_answer_until_the_table_changes(tmp_path: Path) -> None:
    keeper = world()
    at = answers(tmp_path, keeper)
    first = at.reply(question())
    assert at.reply(question()) == first
    keeper.take([steering(TOKYO)], 1)
    keeper.take([steering(TOKYO)], 100)
    assert contents(at, question()) == ["192.0.2.3"]


def test_what_a_network_agrees_on_holds_for_it_and_not_for_its_neighbours(tmp_path: Path) -> None:
    keeper = world()
    keeper.take([steering(LONDON, TOKYO, agreed=[["81.2.69.0/24", "tok", 2.0]])], 1)
    at = answers(tmp_path, keeper)
    assert contents(at, question("81.2.69.0/24"))[0] == "192.0.2.3"
    assert contents(at, question("2001:db8:1::/48"))[0] == "192.0.2.1"


def test_each_type_of_a_name_has_its_own_answer(tmp_path: Path) -> None:
    at = answers(tmp_path)
    for qtype in ("A", "AAAA", "HTTPS", "A"):
        assert {one["qtype"] for one in result(at, question(qtype=qtype))} == {qtype}


def test_neighbours_that_are_led_to_the_same_edges_are_told_their_own_scope(tmp_path: Path) -> None:
    at = answers(tmp_path)
    for bits in (24, 16, 24):
        told = result(at, question(f"10.0.0.0/{bits}"))
        assert {one["scopeMask"] for one in told} == {bits}


def test_an_edge_that_has_another_address_now_is_told_by_it(tmp_path: Path) -> None:
    keeper = TableKeeper()
    at = answers(tmp_path, keeper)
    for address in ("192.0.2.1", "192.0.2.7"):
        keeper.take([steering({**LONDON, "ips": [address]})], 0)
        assert contents(at, question()) == [address]


def test_a_new_database_is_a_new_answer(tmp_path: Path) -> None:
    write_database(tmp_path / "places.mmdb")
    geoip = Geoip(tmp_path)
    keeper = world()
    at = Answers(ZONE, lambda: keeper.table, geoip)
    before = contents(at, question("203.0.113.0/24"))
    geoip.refresh()
    assert contents(at, question("203.0.113.0/24")) == ["192.0.2.3", "192.0.2.4"] != before


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns_backend, "KEPT_MAX", 10)
    at = answers(tmp_path)
    for i in range(50):
        at.reply(question(f"10.0.{i}.0/24"))
    assert len(at._kept) == 10
    assert len(at._chosen) <= 10


def test_the_handshake_and_the_zones_are_answered(tmp_path: Path) -> None:
    at = answers(tmp_path)
    assert result(at, line("initialize", path="x", timeout="900")) is True
    (zone,) = result(at, line("getAllDomains", include_disabled=True))
    assert (zone["zone"], zone["kind"]) == ("edge.test.", "native")
    assert result(at, line("getDomainInfo", name="Edge.test."))["id"] == zone["id"]
    assert result(at, line("getDomainInfo", name="other.test.")) is False
    assert result(at, line("getAllDomainMetadata", name="edge.test.")) == {}
    assert result(at, line("getDomainMetadata", name="edge.test.", kind="X")) == []
    assert result(at, line("startTransaction", trxid=1)) is False


def test_a_name_that_there_is_not_is_an_empty_list_and_never_false(tmp_path: Path) -> None:
    assert result(answers(tmp_path), question(name="no.edge.test.")) == []


@pytest.mark.parametrize(
    "asked",
    [
        b"garbage\n",
        b"[]\n",
        b"5\n",
        b"{}\n",
        b"\xff\xfe\n",
        b"[" * 60_000,
        b'{"method": "lookup"}\n',
        b'{"method": "lookup", "parameters": []}\n',
        b'{"method": "lookup", "parameters": null}\n',
        line("lookup", qname=5, qtype="A", remote="127.0.0.1"),
        line("lookup", qname="edge.test.", qtype=None, remote="127.0.0.1"),
        line("lookup", qname="edge.test.", qtype="A"),
        question("nowhere"),
        question("fe80::1%eth0"),
        line("getDomainInfo"),
    ],
)
def test_what_is_no_question_breaks_the_connection(tmp_path: Path, asked: bytes) -> None:
    with pytest.raises(Trouble):
        answers(tmp_path).reply(asked)


def test_no_edge_is_trouble_and_not_no_such_name(tmp_path: Path) -> None:
    with pytest.raises(Trouble):
        answers(tmp_path, TableKeeper()).reply(question())


async def test_trouble_closes_the_connection_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with serving(path, 0o600, answers(tmp_path)):
        assert path.stat().st_mode & 0o777 == 0o600
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(question())
        assert b"192.0.2.1" in await reader.readline()
        writer.write(b"nonsense\n")
        assert await reader.read() == b""
        writer.close()
    assert not path.exists()


async def test_connections_beyond_the_limit_are_closed_which_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dns_backend, "CONNECTIONS_MAX", 1)
    async with serving(tmp_path / "s", 0o600, answers(tmp_path)):
        first, asking = await asyncio.open_unix_connection(tmp_path / "s")
        asking.write(question())
        assert b"192.0.2.1" in await first.readline()
        for _ in range(3):
            further, beyond = await asyncio.open_unix_connection(tmp_path / "s")
            assert await asyncio.wait_for(further.read(), 5) == b""
            beyond.close()
        asking.write(question())
        assert b"192.0.2.1" in await first.readline()
        asking.close()
    assert caplog.text.count("1 connections are the most") == 1


async def test_a_trouble_that_every_question_meets_is_one_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path / "s", 0o600, answers(tmp_path, TableKeeper())):
        for asked in (question(), question(), b"nonsense\n"):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            writer.write(asked)
            assert await reader.read() == b""
            writer.close()
    first, second = (record.getMessage() for record in caplog.records)
    assert first == "SERVFAIL: no source has told of any edge yet"
    assert second.startswith("SERVFAIL: not a question")


async def test_a_line_without_an_end_closes_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path / "s", 0o600, answers(tmp_path)):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        writer.write(b"x" * (dns_backend.LINE_BYTES_MAX + 1000))
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


async def test_the_socket_of_a_process_that_is_gone_is_replaced_and_a_living_one_is_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s"
    async with serving(path, 0o600, answers(tmp_path)):
        with pytest.raises(ConfigError, match="another process"):
            async with serving(path, 0o600, answers(tmp_path)):
                pass
        os_path = path.rename(tmp_path / "old")
    os_path.rename(path)  # as a killed process leaves it
    async with serving(path, 0o600, answers(tmp_path)):
        assert path.is_socket()


async def test_a_file_in_the_sockets_place_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(ConfigError, match="no socket"):
        async with serving(path, 0o600, answers(tmp_path)):
            pass
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    "given",
    [
        {"name": "Upper.test"},
        {"name": "dot.test."},
        {"name": "single"},
        {"nameservers": ()},
        {"edges": ("other.test",)},
        {"addresses": {"ns1.firstlight.example": ("x",)}},
        {"addresses": {"ns.other.test": ("192.0.2.1",)}},
        {"hostmaster": "me@here.test"},
    ],
)
def test_a_zone_that_cannot_be_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ZoneConfig(**given)  # type: ignore[arg-type]


def test_the_sample_configuration_is_one() -> None:
    sample = Path(dns_backend.__file__).parents[1] / "infra" / "pdns" / "dns.yaml"
    settings = load_settings(DnsSettings, sample)
    assert settings.zone.zone.steered == {"edge.example.com"}
