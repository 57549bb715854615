"""A client goes on with its stream at another edge, from what the first one journaled."""

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from socket import create_server
from typing import Any

import pytest
from exchange import Exchange
from pipeline_bed import Mesh, a_mesh, settled
from stream_bed import SEALS, Client, Edge, Valkey, close, has_ids, heard, journal_of, whole

from firstlight.edge_node.journal_page import NAME_PREFIX


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    async with a_mesh(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    made = Valkey(tmp_path_factory.mktemp("valkey"))
    yield made
    made.stop()


@pytest.fixture
def valkey(server: Valkey) -> Valkey:
    server.run("FLUSHALL")
    return server


@dataclass
class Edges:
    """Two edges with one journal; of the first, the test says when it writes."""

    first: Edge
    other: Edge


@pytest.fixture
async def edges(mesh: Mesh, valkey: Valkey) -> AsyncIterator[Edges]:
    journals = [journal_of(valkey.url), journal_of(valkey.url)]
    first, other = (
        Edge(mesh, journal=journal, edge=f"edge-{i}") for i, journal in enumerate(journals)
    )
    yield Edges(first, other)
    for journal in journals:
        await close(journal)


async def begun(edge: Edge, count: int, **changes: Any) -> tuple[Exchange, Client]:
    """A stream that goes on, and what its client has, at the last offset it knows of."""
    exchange = edge.post(**changes)
    await exchange.until(lambda: has_ids(exchange, count))
    return exchange, Client().hear(exchange)


async def written(edge: Edge, ids: int, choices: int = 1) -> None:
    """The journal has at least so many ids of the only stream, or streams."""
    assert edge.journal is not None
    async with asyncio.timeout(10):
        while True:
            await edge.journal.write()
            followed = edge.journal._followed.values()
            if len(followed) == choices and all(one.saved >= ids for one in followed):
                return
            await asyncio.sleep(0.005)


def resume(client: Client, **changes: Any) -> dict[str, Any]:
    """What asks for the rest, without ids."""
    heard = [client.choices[index] for index in sorted(client.choices)]
    told = heard[0].told
    fields = {
        "cap": told["cap"], "seed": told["seed"], "class": told["class"],
        "streams": [one.told["stream"] for one in heard],
        "offsets": [one.offset for one in heard],
    }  # fmt: skip
    return {"firstlight": {"ignore_eos": True, "resume": fields | changes}}


async def lost(exchange: Exchange) -> None:
    exchange.task.cancel()
    await asyncio.gather(exchange.task, return_exceptions=True)


async def test_a_stream_goes_on_at_another_edge_without_ids(edges: Edges, mesh: Mesh) -> None:
    undisturbed = (await whole(edges.other)).choices[0]
    exchange, client = await begun(edges.first, 10)
    await written(edges.first, 20)
    await lost(exchange)
    one = client.choices[0]
    rest = await edges.other.post(**resume(client)).ended()
    assert rest.status == 200
    client.hear(rest)
    assert (one.text, one.ids, client.done) == (undisturbed.text, undisturbed.ids, True)
    assert (one.told["edge"], one.told["continuation"]) == ("edge-1", "exact")
    asked = edges.other.source.asked[-1]
    assert len(asked.committed[0]) >= 20
    await settled(mesh, ["core-eu", "core-us"])


async def test_what_the_journal_lacks_is_computed_again_and_not_sent_again(edges: Edges) -> None:
    undisturbed = (await whole(edges.other)).choices[0]
    exchange, _ = await begun(edges.first, 5)
    await written(edges.first, 5)
    await exchange.until(lambda: has_ids(exchange, 45))
    client = Client().hear(exchange)
    await lost(exchange)
    one = client.choices[0]
    client.hear(await edges.other.post(**resume(client)).ended())
    asked = edges.other.source.asked[-1]
    assert len(asked.committed[0]) < asked.has[0]
    assert (one.text, one.ids, client.done) == (undisturbed.text, undisturbed.ids, True)
    assert client.usage is not None
    assert client.usage["completion_tokens"] == 60


async def test_of_several_choices_each_goes_on_where_it_was(edges: Edges) -> None:
    undisturbed = await whole(edges.other, n=2)
    exchange, client = await begun(edges.first, 10, n=2)
    await written(edges.first, 15, choices=2)
    await lost(exchange)
    client.hear(await edges.other.post(n=2, **resume(client)).ended())
    for index in range(2):
        assert client.choices[index].text == undisturbed.choices[index].text
        assert client.choices[index].ids == undisturbed.choices[index].ids


async def test_a_stream_that_was_taken_up_from_the_journal_is_journaled_whole(
    edges: Edges,
) -> None:
    undisturbed = (await whole(edges.other)).choices[0]
    exchange, client = await begun(edges.first, 10)
    await written(edges.first, 12)
    await lost(exchange)
    second = edges.other.post(**resume(client))
    await second.until(lambda: has_ids(second, 5))
    assert edges.other.journal is not None
    await edges.other.journal.write()
    await lost(second)
    client.hear(second)
    client.hear(await edges.first.post(**resume(client)).ended())
    one = client.choices[0]
    assert (one.text, one.ids, client.done) == (undisturbed.text, undisturbed.ids, True)


async def test_only_ids_are_written_and_they_do_not_stay(edges: Edges, valkey: Valkey) -> None:
    exchange, client = await begun(edges.first, 10)
    await written(edges.first, 10)
    await exchange.ended()
    await written(edges.first, 0, choices=0)
    (key,) = valkey.keys()
    assert key.startswith(NAME_PREFIX.encode())
    assert client.choices[0].told["stream"].encode() not in key
    page = SEALS.pages(edges.first.source.asked[0], [client.choices[0].told["stream"]])[0][0]
    found = page.read(valkey.run("GET", key))
    assert found is not None
    assert found.ids == tuple(heard(exchange).ids)
    assert len(valkey.run("GET", key)) <= 4 * 60 + 32 * 61
    assert 0 < valkey.run("TTL", key) <= 900


async def test_a_guessed_id_and_one_of_another_request_are_unknown(edges: Edges) -> None:
    exchange, client = await begun(edges.first, 10)
    other, foreign = await begun(edges.first, 10, seed=6)
    await written(edges.first, 10, choices=2)
    await lost(exchange)
    await lost(other)
    for stream in ("0" * 32, foreign.choices[0].told["stream"], "../x", "*"):
        refused = await edges.other.post(**resume(client, streams=[stream])).ended()
        assert (refused.status, refused.error["code"]) == (404, "resume_unknown")
        assert "firstlight.resume.ids" in refused.error["message"]


async def test_another_class_may_not_compute_again_what_the_client_has(edges: Edges) -> None:
    exchange, _ = await begun(edges.first, 5)
    await written(edges.first, 5)
    await exchange.until(lambda: has_ids(exchange, 40))
    client = Client().hear(exchange)
    await lost(exchange)
    for named in ("another", None):
        refused = await edges.other.post(**resume(client, **{"class": named})).ended()
        assert (refused.status, refused.error["code"]) == (404, "resume_unknown")


async def test_without_a_core_of_its_class_a_stream_is_not_computed_again(
    edges: Edges, mesh: Mesh
) -> None:
    exchange, _ = await begun(edges.first, 5)
    await written(edges.first, 5)
    await exchange.until(lambda: has_ids(exchange, 40))
    client = Client().hear(exchange)
    await lost(exchange)
    for link in mesh.pool.links:
        object.__setattr__(link.info, "numerics_class", "another")
    refused = await edges.other.post(**resume(client)).ended()
    assert (refused.status, refused.error["code"]) == (503, "resume_unknown")
    ids = {"ids": client.choices[0].ids[: client.choices[0].offset], "streams": None}
    rest = await edges.other.post(**resume(client, offsets=None, **ids)).ended()
    assert heard(rest).told["continuation"] == "semantic"


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"cap": "0" * 32}, 400, "firstlight.resume.cap"),
        ({"offsets": []}, 400, "firstlight.resume.offsets"),
        ({"offsets": [2010]}, 400, "firstlight.resume.offsets"),
        ({"offsets": [-1]}, 400, "firstlight.resume.offsets.0"),
        ({"streams": None}, 400, "firstlight.resume.ids"),
        ({"ids": [1]}, 400, "firstlight.resume.ids"),
        ({"streams": ["x" * 65]}, 400, "firstlight.resume.streams.0"),
    ],
)
async def test_a_resume_that_contradicts_itself_is_refused(
    edges: Edges, changes: dict[str, Any], status: int, param: str
) -> None:
    exchange, client = await begun(edges.first, 10)
    await lost(exchange)
    refused = await edges.other.post(**resume(client, **changes)).ended()
    assert (refused.status, refused.error["param"]) == (status, param)


async def test_logprobs_are_not_in_the_journal(edges: Edges) -> None:
    exchange, client = await begun(edges.first, 3, logprobs=1)
    await lost(exchange)
    refused = await edges.other.post(logprobs=1, **resume(client)).ended()
    assert (refused.status, refused.error["param"]) == (400, "logprobs")


async def test_an_edge_without_a_journal_says_so(edges: Edges, mesh: Mesh) -> None:
    exchange, client = await begun(edges.first, 10)
    await lost(exchange)
    refused = await Edge(mesh).post(**resume(client)).ended()
    assert (refused.status, refused.error["code"]) == (400, "journal_unavailable")
    assert "firstlight.resume.ids" in refused.error["message"]


async def test_what_a_flush_took_is_written_again(edges: Edges, valkey: Valkey) -> None:
    undisturbed = (await whole(edges.other)).choices[0]
    exchange, client = await begun(edges.first, 10)
    await written(edges.first, 10)
    valkey.run("FLUSHALL")
    refused = await edges.other.post(**resume(client)).ended()
    assert (refused.status, refused.error["code"]) == (404, "resume_unknown")
    await exchange.until(lambda: has_ids(exchange, 20))
    assert edges.first.journal is not None
    await edges.first.journal.write()  # which notices, and writes it whole with the next batch
    await edges.first.journal.write()
    await lost(exchange)
    client.hear(await edges.other.post(**resume(client)).ended())
    assert client.choices[0].text == undisturbed.text


def truncated(page: bytes) -> bytes:
    return page[:-1]


def flipped(page: bytes) -> bytes:
    return page[:20] + bytes([page[20] ^ 1]) + page[21:]


def made_up(page: bytes) -> bytes:
    return b"\0" * len(page)


def doubled(page: bytes) -> bytes:
    return page + b"junk"


@pytest.mark.parametrize("damage", [truncated, flipped, made_up, doubled])
async def test_a_damaged_page_is_not_used(
    edges: Edges, valkey: Valkey, damage: Callable[[bytes], bytes]
) -> None:
    exchange, client = await begun(edges.first, 10)
    await written(edges.first, 10)
    await lost(exchange)
    (key,) = valkey.keys()
    valkey.run("SET", key, damage(valkey.run("GET", key)))
    refused = await edges.other.post(**resume(client)).ended()
    assert (refused.status, refused.error["code"]) == (404, "resume_unknown")


async def test_a_page_of_another_type_is_not_used(edges: Edges, valkey: Valkey) -> None:
    exchange, client = await begun(edges.first, 10)
    await written(edges.first, 10)
    await lost(exchange)
    (key,) = valkey.keys()
    valkey.run("DEL", key)
    valkey.run("LPUSH", key, "x")
    refused = await edges.other.post(**resume(client)).ended()
    assert (refused.status, refused.error["code"]) == (404, "resume_unknown")


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[Valkey]:
    """A server that the test may hurt."""
    made = Valkey(tmp_path)
    yield made
    os.kill(made.process.pid, signal.SIGCONT)
    made.stop()


@pytest.mark.parametrize("hurt", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_streams_run_on_while_redis_does_not(
    mesh: Mesh, doomed: Valkey, hurt: signal.Signals
) -> None:
    journal = journal_of(doomed.url, 0.05, write_s=0.01)
    edge = Edge(mesh, journal=journal)
    undisturbed = (await whole(edge)).choices[0]
    running = asyncio.create_task(journal.run())
    exchange, client = await begun(edge, 5)
    os.kill(doomed.process.pid, hurt)
    refused = await edge.post(**resume(client)).ended()
    assert (refused.status, refused.error["code"]) == (503, "journal_unavailable")
    assert "firstlight.resume.ids" in refused.error["message"]
    one = Client().hear(await exchange.ended()).choices[0]
    assert (one.text, one.finish) == (undisturbed.text, "length")
    async with asyncio.timeout(10):  # it gives up what it cannot write, and keeps nothing
        while journal.following:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await close(journal)


@pytest.mark.parametrize(
    "says", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"$999999999\r\nx", b"\0\xff"]
)
async def test_a_server_that_says_nonsense_is_no_journal(mesh: Mesh, says: bytes) -> None:
    with create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(4096)
                    peer.sendall(says)
                    peer.settimeout(0.5)
                    peer.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        journal = journal_of(f"redis://127.0.0.1:{listener.getsockname()[1]}", 0.5)
        edge = Edge(mesh, journal=journal)
        exchange, client = await begun(edge, 10)
        await journal.write()
        refused = await edge.post(**resume(client)).ended()
        assert (refused.status, refused.error["code"]) == (503, "journal_unavailable")
        assert Client().hear(await exchange.ended()).done
        await close(journal)
        listener.shutdown(2)
    thread.join(5)


async def test_a_full_journal_follows_no_more_streams(mesh: Mesh, valkey: Valkey) -> None:
    journal = journal_of(valkey.url, streams_max=1)
    edge = Edge(mesh, journal=journal)
    first, _ = await begun(edge, 5)
    await journal.write()
    second, client = await begun(edge, 5, seed=6)
    await journal.write()
    assert journal.following == 1
    refused = await edge.post(seed=6, **resume(client)).ended()
    assert (refused.status, refused.error["code"]) == (404, "resume_unknown")
    await lost(first)
    await lost(second)
    await close(journal)


async def test_a_stream_that_is_gone_on_with_here_is_journaled_under_its_id(edges: Edges) -> None:
    undisturbed = (await whole(edges.other)).choices[0]
    exchange, client = await begun(edges.first, 5)
    exchange.leave()
    client = Client().hear(await exchange.ended())
    assert edges.first.journal is not None
    await edges.first.journal.write()
    await edges.first.journal.write()
    assert edges.first.journal.following == 0
    one = client.choices[0]
    again = edges.first.get(one.told["stream"], f"?starting_after={one.offset}")
    await again.until(lambda: has_ids(again, 20))
    await written(edges.first, one.offset + 20)
    client.hear(again)
    await lost(again)
    client.hear(await edges.other.post(**resume(client)).ended())
    assert (one.text, client.done) == (undisturbed.text, True)
