"""The picture of a laboratory, from rows and statistics as they come."""

from io import StringIO
from typing import Any

from rich.console import Console

from firstlight.infra.lab.map import asked_ms, draw, links_table
from firstlight.infra.lab.paths import Paths
from firstlight.infra.lab.topology import Topology
from firstlight.infra.status import Row

TOPOLOGY = Topology.model_validate(
    {
        "regions": {"eu": {}, "us": {}},
        "nodes": {
            "lb": {"role": "lb", "region": "us"},
            "edge": {"role": "edge", "region": "eu"},
            "core": {"role": "core", "region": "us"},
            "user": {"role": "client", "region": "eu"},
        },
        "links": [
            {"between": ["eu", "us"], "rtt_ms": 140},
            {"from": "core", "to": "edge", "delay_ms": 90},
        ],
    }
)
ROWS = (
    Row("lb", "lb", "", "ready"),
    Row("core", "core", "us", "ready", running=2, queued=1, kv_used_share=0.5, tokens_per_s=31.5),
    Row("edge", "edge", "eu", "ended", running=3, ttft_ms=210.4, rtt_ms=(("core", 161.2),)),
)


def stats(*commands: dict[str, Any]) -> dict[str, Any]:
    """What a router says after these commands."""
    paths = Paths(TOPOLOGY)
    for command in commands:
        paths.command(command)
    totals = {"packets_per_s": 812.4, "cpu_share": 0.061, "late_p99_ms": 0.08, "underway": 7}
    return {**totals, "dropped": {"lost": 2, "cut": 3}, "paths": [path.told() for path in paths]}


def drawn(told: dict[str, Any] | None) -> str:
    console = Console(width=120, record=True, file=StringIO())
    console.print(draw(TOPOLOGY, ROWS, told))
    return console.export_text()


def test_a_node_stands_in_its_region_with_its_load() -> None:
    text = drawn(stats())
    assert "3 streams · TTFT 210 ms" in text
    assert "2 run, 1 wait · 31.5 tok/s · KV 50%" in text
    assert "user client" in " ".join(text.split())
    assert "edge ended" in " ".join(text.split())


def test_a_measured_round_trip_stands_beside_what_was_asked() -> None:
    assert asked_ms(TOPOLOGY, "edge", "core") == 160.0
    assert "edge → core 161.2 ms 160.0 ms" in " ".join(drawn(stats()).split())


def test_a_node_that_is_not_in_the_topology_was_asked_nothing() -> None:
    assert asked_ms(TOPOLOGY, "edge", "stranger") is None


def test_faults_are_told_and_their_absence_too() -> None:
    assert "no faults" in drawn(stats())
    cut = {"do": "partition", "from": "edge", "to": "core", "one_way": True}
    slow = {"do": "set", "from": "user", "to": "edge", "link": {"delay_ms": 5, "loss": 0.05}}
    text = drawn(stats(cut, slow))
    assert "edge → core: partition" in text
    assert "core → edge: partition" not in text
    assert "user → edge: 5 ms, loss 5.0%" in text
    assert "no faults" not in text


def test_the_router_says_its_pace_and_its_share_of_a_cpu() -> None:
    line = "router: 812 packets/s, 6.1% of a CPU, late 0.08 ms (p99), 7 under way, 5 dropped"
    assert line in drawn(stats())


def test_a_router_that_does_not_answer_is_said_to_be_silent() -> None:
    assert "the router does not answer" in drawn(None)


def test_links_are_listed_with_what_was_done_to_them() -> None:
    console = Console(width=120, record=True, file=StringIO())
    console.print(links_table(stats({"do": "partition", "from": "edge", "to": "core"})))
    text = " ".join(console.export_text().split())
    assert "core edge 90 ms 0 partition" in text
    assert "edge core 70 ms 0 partition" in text
