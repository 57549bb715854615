"""One row a node, from documents as nodes send them, and documents gathered from real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from firstlight.infra.running import CoreAddress, EdgeAddress, RunningMesh
from firstlight.infra.status import Documents, Gatherer, Row, parse_metrics, rows
from firstlight.shared.tls import ensure_ca

MESH = RunningMesh(
    pid=1,
    lb="https://127.0.0.1:9",
    edges=(EdgeAddress("edge-eu", "eu", "https://127.0.0.1:9"),),
    ca_file="",
    model="m",
    cores=(CoreAddress("core-eu", "eu", "127.0.0.1:9"),),
)
TOKENS = "vllm:generation_tokens_total"


def lease(role: str, **load: Any) -> dict[str, Any]:
    return {"role": role, "region": "eu", "age_s": 0.4, "load": load, "rtt_ms": {}}


LEASES = {
    "edge-eu": lease("edge", running=3) | {"rtt_ms": {"core-us": 80.5, "core-eu": 0.5}},
    "core-eu": lease("core", running=2, queued=1, kv_used_share=0.25),
}
METRICS = {
    "edge-eu": {
        "vllm:time_to_first_token_seconds_sum": 3.0,
        "vllm:time_to_first_token_seconds_count": 6.0,
    },
    "core-eu": {
        TOKENS: 100.0,
        "vllm:prefix_cache_hits_total": 30.0,
        "vllm:prefix_cache_queries_total": 40.0,
    },
}
STATUSES = {"core-eu": {"blocks": {"free": 4, "used": 2, "cached": 10, "total": 16}, "load": {}}}
DOCUMENTS = Documents(10.0, MESH, LEASES, METRICS, STATUSES)


def of(node: str, found: tuple[Row, ...]) -> Row:
    return next(row for row in found if row.node == node)


def test_a_core_is_told_by_its_lease_its_metrics_and_its_status() -> None:
    row = of("core-eu", rows(DOCUMENTS))
    assert row == Row(
        node="core-eu",
        role="core",
        region="eu",
        state="ready",
        age_s=0.4,
        running=2,
        queued=1,
        kv_used_share=0.25,
        prefix_hit_rate=0.75,
        tiers=(("pool", 12, 16),),
    )


def test_an_edge_is_told_with_its_streams_and_its_way_to_every_core() -> None:
    row = of("edge-eu", rows(DOCUMENTS))
    assert (row.running, row.queued, row.ttft_ms) == (3, None, 500.0)
    assert row.rtt_ms == (("core-eu", 0.5), ("core-us", 80.5))


def test_the_load_balancer_stands_first() -> None:
    assert [row.node for row in rows(DOCUMENTS)] == ["lb", "core-eu", "edge-eu"]


def later(tokens: float) -> Documents:
    metrics = {**METRICS, "core-eu": {**METRICS["core-eu"], TOKENS: tokens}}
    return replace(DOCUMENTS, at_s=12.0, metrics=metrics)


def test_tokens_are_counted_by_the_second_between_two_looks() -> None:
    assert of("core-eu", rows(later(150.0), DOCUMENTS)).tokens_per_s == 25.0
    assert of("core-eu", rows(DOCUMENTS)).tokens_per_s is None


def test_a_core_that_began_anew_has_no_rate_yet() -> None:
    assert of("core-eu", rows(later(7.0), DOCUMENTS)).tokens_per_s is None


def test_a_node_that_does_not_answer_is_silent_and_keeps_its_lease() -> None:
    found = rows(replace(DOCUMENTS, metrics={**METRICS, "core-eu": None}, statuses={}))
    row = of("core-eu", found)
    assert (row.state, row.running, row.tiers) == ("silent", 2, ())
    assert of("edge-eu", found).state == "ready"


def test_a_node_that_the_load_balancer_has_not_heard_of_is_gone() -> None:
    assert of("core-eu", rows(replace(DOCUMENTS, leases={}))).state == "gone"


def test_a_draining_node_says_so() -> None:
    leases = {**LEASES, "core-eu": lease("core", draining=True)}
    assert of("core-eu", rows(replace(DOCUMENTS, leases=leases))).state == "draining"


def test_without_a_load_balancer_nodes_speak_for_themselves() -> None:
    found = rows(replace(DOCUMENTS, leases=None, metrics={**METRICS, "edge-eu": None}))
    assert {row.node: row.state for row in found} == {
        "lb": "silent",
        "core-eu": "ready",
        "edge-eu": "silent",
    }


def test_whose_process_has_ended_is_said_whatever_its_lease_says() -> None:
    found = rows(DOCUMENTS, None, ["core-eu", "lb", "valkey-eu"])
    assert {row.node: row.state for row in found} == {
        "lb": "ended",
        "core-eu": "ended",
        "edge-eu": "ready",
        "valkey-eu": "ended",
    }


def test_a_node_that_joined_later_has_a_row_too() -> None:
    leases = {**LEASES, "core-us": lease("core", running=0)}
    row = of("core-us", rows(replace(DOCUMENTS, leases=leases)))
    assert (row.state, row.role, row.prefix_hit_rate) == ("ready", "core", None)


@pytest.mark.parametrize(
    ("tiers", "expected"),
    [
        (None, ()),
        ("nonsense", ()),
        ({"host": {"used": 1, "cached": 2, "total": 9}}, (("host", 3, 9),)),
        ({"disk": {"cached": 2, "total": 9}, "other": {"size": 1}}, (("disk", 2, 9),)),
    ],
)
def test_other_tiers_are_shown_if_a_core_tells_of_any(tiers: Any, expected: Any) -> None:
    status = {**STATUSES["core-eu"], "tiers": tiers}
    row = of("core-eu", rows(replace(DOCUMENTS, statuses={"core-eu": status})))
    assert row.tiers == (("pool", 12, 16), *expected)


def test_metrics_are_summed_over_their_labels() -> None:
    text = '# TYPE a counter\na_total{x="1"} 2\na_total{x="2"} 3\n# TYPE b gauge\nb 0.5\n'
    assert parse_metrics(text) == {"a_total": 5.0, "b": 0.5}


Answers = dict[str, bytes]


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[tuple[RunningMesh, Answers]]:
    """A mesh of which one core alone answers, what `Answers` has for the path."""
    answers: Answers = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = answers.get(head.split()[1].decode())
        if body is not None:
            size = f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            writer.write(b"HTTP/1.1 200 OK\r\n" + size.encode() + body)
            await writer.drain()
            writer.close()
        else:
            await reader.read()
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    core = CoreAddress("core-eu", "eu", f"127.0.0.1:{port}")
    ca = str(ensure_ca(tmp_path).cert)
    yield replace(MESH, cores=(core,), ca_file=ca), answers
    server.close()


async def test_what_a_core_answers_is_gathered_while_others_are_gone(
    admin: tuple[RunningMesh, Answers],
) -> None:
    mesh, answers = admin
    answers["/metrics"] = f"{TOKENS} 5\n".encode()
    answers["/admin/status"] = json.dumps(STATUSES["core-eu"]).encode()
    async with Gatherer(mesh.ca_file) as gatherer:
        found = await gatherer.gather(mesh)
    assert found.leases is None
    assert found.metrics == {"edge-eu": None, "core-eu": {TOKENS: 5.0}}
    assert found.statuses == STATUSES


@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff"])
async def test_nonsense_is_taken_for_no_answer(
    body: bytes, admin: tuple[RunningMesh, Answers]
) -> None:
    mesh, answers = admin
    answers["/metrics"] = answers["/admin/status"] = body
    async with Gatherer(mesh.ca_file) as gatherer:
        found = await gatherer.gather(mesh)
    assert found.metrics["core-eu"] is None
    assert found.statuses == {"core-eu": None}


async def test_a_node_that_hangs_costs_no_more_than_its_time(
    admin: tuple[RunningMesh, Answers],
) -> None:
    mesh, _ = admin
    async with Gatherer(mesh.ca_file) as gatherer, asyncio.timeout(30):
        found = await gatherer.gather(mesh)
    assert of("core-eu", rows(found)).state == "silent"
