"""A client comes back to its stream at the same edge: by the stream's id, or by its own key."""

import asyncio
import json
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest
from exchange import Exchange
from pipeline_bed import Mesh, a_mesh, settled
from stream_bed import Client, Edge, has_ids, heard, left_at, whole

from firstlight.edge_node.stream_log import StreamsConfig
from firstlight.edge_node.tenants import Tenants

KEY = {"idempotency-key": "once"}
CORES = ["core-eu", "core-us"]


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    async with a_mesh(tmp_path) as made:
        yield made


@pytest.fixture
def edge(mesh: Mesh) -> Edge:
    return Edge(mesh)


def two_tenants(folder: Path) -> Tenants:
    lines = [f"{name}: {sha256(f'sk-{name}'.encode()).hexdigest()}" for name in ("acme", "other")]
    (folder / "keys").write_text("\n".join(lines))
    return Tenants.load(folder / "keys", loopback=True)


def bearer(tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer sk-{tenant}"}


@pytest.mark.parametrize("count", [1, 2, 13, 45])
async def test_a_client_that_left_goes_on_where_it_was(edge: Edge, mesh: Mesh, count: int) -> None:
    undisturbed = await whole(edge)
    client = await left_at(edge, count)
    one = client.choices[0]
    assert not client.done
    again = await edge.get(one.told["stream"], f"?starting_after={one.offset}").ended()
    assert again.status == 200
    assert again.headers["content-type"].startswith("text/event-stream")
    client.hear(again)
    assert (one.text, one.ids) == (undisturbed.choices[0].text, undisturbed.choices[0].ids)
    assert (one.offset, one.finish, client.done) == (60, "length", True)
    assert client.usage is not None
    assert (client.usage["prompt_tokens"], client.usage["completion_tokens"]) == (39, 60)
    assert len(set(client.heads)) == 1
    await settled(mesh, CORES)


async def test_the_cores_of_a_client_that_left_stop_at_once(edge: Edge, mesh: Mesh) -> None:
    exchange = edge.post(max_tokens=1500)
    await exchange.until(lambda: has_ids(exchange, 5))
    exchange.leave()
    await exchange.ended()
    assert mesh.pipeline.answers == set()
    await settled(mesh, CORES)
    assert all(mesh.engines[core].blocks.used == 0 for core in CORES)


async def test_what_was_committed_and_not_sent_is_not_computed_again(edge: Edge) -> None:
    one = (await left_at(edge, 30)).choices[0]
    await edge.get(one.told["stream"], f"?starting_after={one.offset}").ended()
    _, again = edge.source.asked
    assert len(again.committed[0]) >= 30
    assert again.has == (one.offset,)


async def test_without_an_offset_the_stream_is_told_from_its_beginning(edge: Edge) -> None:
    one = (await left_at(edge, 20)).choices[0]
    again = heard(await edge.get(one.told["stream"]).ended())
    undisturbed = (await whole(edge)).choices[0]
    assert (again.text, again.ids) == (undisturbed.text, undisturbed.ids)
    assert again.told["stream"] == one.told["stream"]
    assert (again.told["seed"], again.told["cap"]) == (5, one.told["cap"])


async def test_a_client_can_leave_and_come_back_again_and_again(edge: Edge) -> None:
    undisturbed = (await whole(edge)).choices[0]
    client = await left_at(edge, 7)
    one = client.choices[0]
    for _ in range(3):
        exchange = edge.get(one.told["stream"], f"?starting_after={one.offset}")
        await exchange.until(lambda e=exchange: has_ids(e, 9))  # type: ignore[misc]
        exchange.leave()
        client.hear(await exchange.ended())
    client.hear(await edge.get(one.told["stream"], f"?starting_after={one.offset}").ended())
    assert (one.text, one.ids, client.done) == (undisturbed.text, undisturbed.ids, True)


async def test_a_stream_that_moved_says_so_after_it_was_gone_on_with(
    edge: Edge, mesh: Mesh
) -> None:
    undisturbed = (await whole(edge)).choices[0]
    exchange = edge.post()
    await exchange.until(lambda: has_ids(exchange, 5))
    await mesh.kill_core("core-eu")
    await exchange.until(lambda: has_ids(exchange, 25))
    exchange.leave()
    client = Client().hear(await exchange.ended())
    one = client.choices[0]
    client.hear(await edge.get(one.told["stream"], f"?starting_after={one.offset}").ended())
    assert (one.text, one.told["moved"], one.told["core"]) == (undisturbed.text, 1, "core-us")


@pytest.mark.parametrize("back", [0, 1, 20, 60])
async def test_an_ended_stream_is_told_again_without_a_core(
    edge: Edge, mesh: Mesh, back: int
) -> None:
    undisturbed = await whole(edge)
    one = undisturbed.choices[0]
    for name in CORES:
        await mesh.kill_core(name)
    await mesh.linked(0)
    stream = undisturbed.choices[0].told["stream"]
    again = Client().hear(await edge.get(stream, f"?starting_after={60 - back}").ended())
    rest = again.choices[0]
    assert (rest.ids, rest.finish, again.done) == (one.ids[60 - back :], "length", True)
    assert one.text.endswith(rest.text)
    assert (rest.text == one.text) == (back == 60)
    assert again.usage == undisturbed.usage
    assert rest.told["ttft_ms"] == one.told["ttft_ms"]


async def test_the_end_of_a_stop_string_is_told_to_who_left_before_it(edge: Edge) -> None:
    full = (await whole(edge)).choices[0].text
    stop = full[20:23]
    undisturbed = (await whole(edge, stop=stop)).choices[0]
    assert undisturbed.finish == "stop"
    client = await left_at(edge, 3, stop=stop)
    one = client.choices[0]
    client.hear(await edge.get(one.told["stream"], f"?starting_after={one.offset}").ended())
    assert (one.text, one.finish) == (undisturbed.text, "stop")
    again = await edge.get(one.told["stream"], f"?starting_after={one.offset}").ended()
    assert heard(again).text == ""
    assert heard(again).finish == "stop"


async def test_each_choice_is_gone_on_with_by_its_own_id(edge: Edge) -> None:
    undisturbed = await whole(edge, n=3)
    client = await left_at(edge, 10, n=3)
    streams = [client.choices[index].told["stream"] for index in range(3)]
    assert len(set(streams)) == 3
    exchanges = [
        edge.get(streams[index], f"?starting_after={client.choices[index].offset}")
        for index in (2, 0, 1)
    ]
    for exchange, index in zip(exchanges, (2, 0, 1), strict=True):
        rest = Client().hear(await exchange.ended())
        assert list(rest.choices) == [index]
        assert rest.usage is not None
        assert (rest.usage["prompt_tokens"], rest.usage["completion_tokens"]) == (39, 60)
        client.hear(exchange)
    for index in range(3):
        assert client.choices[index].text == undisturbed.choices[index].text
        assert client.choices[index].ids == undisturbed.choices[index].ids


async def test_a_newcomer_takes_over_what_still_runs(edge: Edge) -> None:
    undisturbed = (await whole(edge)).choices[0]
    old = edge.post()
    await old.until(lambda: has_ids(old, 10))
    old.writable.clear()  # it hangs, and nobody knows
    one = heard(old)
    newcomer = edge.get(one.told["stream"], f"?starting_after={one.offset}")
    client = Client().hear(old).hear(await newcomer.ended())
    assert client.choices[0].text == undisturbed.text
    assert client.choices[0].ids == undisturbed.ids
    assert len(edge.source.asked) == 2  # the undisturbed one, and this
    old.writable.set()
    error = Client().hear(await old.ended()).error
    assert error is not None
    assert error["code"] == "stream_taken_over"


async def test_of_several_newcomers_the_last_one_has_it(edge: Edge) -> None:
    undisturbed = (await whole(edge)).choices[0]
    old = edge.post()
    await old.until(lambda: has_ids(old, 10))
    stream = heard(old).told["stream"]
    newcomers = [edge.get(stream) for _ in range(4)]
    for one in newcomers:
        await one.ended()
    assert [one.status for one in newcomers[:3]] == [409] * 3
    assert [one.error["code"] for one in newcomers[:3]] == ["stream_taken_over"] * 3
    assert newcomers[0].headers["x-should-retry"] == "false"
    assert heard(newcomers[3]).text == undisturbed.text
    assert len(edge.source.asked) == 2


async def test_one_choice_that_is_taken_over_ends_the_connection_of_all(edge: Edge) -> None:
    undisturbed = await whole(edge, n=2)
    old = edge.post(n=2)
    await old.until(lambda: has_ids(old, 10))
    client = Client().hear(old)
    streams = [client.choices[index].told["stream"] for index in range(2)]
    rest = [edge.get(streams[index]) for index in range(2)]
    for index, exchange in enumerate(rest):
        assert heard(await exchange.ended()).text == undisturbed.choices[index].text
    assert Client().hear(await old.ended()).error is not None


async def test_a_stream_is_forgotten_after_a_while(mesh: Mesh) -> None:
    edge = Edge(mesh, streams=StreamsConfig(keep_s=0.05))
    one = (await left_at(edge, 5)).choices[0]
    await asyncio.sleep(0.1)
    assert (await edge.get(one.told["stream"]).ended()).status == 404


async def test_another_tenant_learns_no_more_than_who_guesses(mesh: Mesh, tmp_path: Path) -> None:
    edge = Edge(mesh, tenants=two_tenants(tmp_path))
    exchange = edge.post(headers=bearer("acme"))
    stream = heard(await exchange.ended()).told["stream"]
    foreign = await edge.get(stream, headers=bearer("other")).ended()
    guessed = await edge.get("0" * 32, headers=bearer("other")).ended()
    beyond = await edge.get(stream, "?starting_after=999", headers=bearer("other")).ended()
    assert foreign.status == guessed.status == beyond.status == 404
    assert foreign.body == guessed.body == beyond.body
    assert foreign.error["code"] == "stream_not_found"
    assert (await edge.get(stream).ended()).status == 401
    assert (await edge.get(stream, headers=bearer("acme")).ended()).status == 200


@pytest.mark.parametrize(
    "query", ["61", "-1", "x", "", "1.5", "%C2%B2", "9" * 30, "1&starting_after=2"]
)
async def test_an_offset_that_cannot_be_is_refused_and_disturbs_nobody(
    edge: Edge, query: str
) -> None:
    old = edge.post()
    await old.until(lambda: has_ids(old, 1))
    refused = await edge.get(heard(old).told["stream"], f"?starting_after={query}").ended()
    assert (refused.status, refused.error["param"]) == (400, "starting_after")
    await old.ended()
    assert Client().hear(old).done


async def test_a_head_request_takes_nothing_over(edge: Edge) -> None:
    old = edge.post()
    await old.until(lambda: has_ids(old, 1))
    path = f"/v1/streams/{heard(old).told['stream']}"
    assert (await Exchange(edge.app, path, method="HEAD").ended()).status == 405
    assert Client().hear(await old.ended()).done


async def test_a_stream_with_logprobs_says_that_it_cannot_be_told_again(edge: Edge) -> None:
    stream = heard(await edge.post(logprobs=1).ended()).told["stream"]
    refused = await edge.get(stream).ended()
    assert (refused.status, refused.error["code"]) == (400, "logprobs_not_kept")
    assert "firstlight.resume.ids" in refused.error["message"]


async def test_an_answer_that_was_not_streamed_is_not_kept(edge: Edge) -> None:
    body = json.loads((await edge.post(stream=False, stream_options=None).ended()).body)
    assert (await edge.get(body["firstlight"]["stream"]).ended()).status == 404


async def test_an_echo_is_told_from_the_beginning_alone(edge: Edge) -> None:
    client = await whole(edge, prompt="ab", echo=True)
    stream = client.choices[0].told["stream"]
    assert client.choices[0].text.startswith("ab")
    assert heard(await edge.get(stream).ended()).text == client.choices[0].text
    assert not heard(await edge.get(stream, "?starting_after=60").ended()).text


async def test_a_stream_that_was_resumed_by_ids_can_be_gone_on_with_by_its_new_id(
    edge: Edge,
) -> None:
    undisturbed = (await whole(edge)).choices[0]
    client = await left_at(edge, 12)
    one = client.choices[0]
    resume = {"cap": one.told["cap"], "seed": 5, "class": "class", "ids": one.ids[: one.offset]}
    exchange = edge.post(firstlight={"ignore_eos": True, "resume": resume})
    await exchange.until(lambda: has_ids(exchange, 10))
    exchange.leave()
    client.hear(await exchange.ended())
    client.hear(await edge.get(one.told["stream"], f"?starting_after={one.offset}").ended())
    assert (one.text, one.ids, client.done) == (undisturbed.text, undisturbed.ids, True)


# The same request again, by its key.


async def test_a_repeated_request_takes_over_the_first_from_its_beginning(edge: Edge) -> None:
    undisturbed = await whole(edge, n=2)
    first = edge.post(headers=KEY, n=2)
    await first.until(lambda: has_ids(first, 10))
    again = Client().hear(await edge.post(headers=KEY, n=2).ended())
    assert again.done
    assert [again.choices[i].text for i in (0, 1)] == [undisturbed.choices[i].text for i in (0, 1)]
    assert again.heads[0] == Client().hear(await first.ended()).heads[0]
    assert len(edge.source.asked) == 2


async def test_a_repeated_request_goes_on_after_the_first_client_left(edge: Edge) -> None:
    undisturbed = await whole(edge)
    client = await left_at(edge, 10, headers=KEY)
    again = Client().hear(await edge.post(headers=KEY).ended())
    assert again.choices[0].text == undisturbed.choices[0].text
    assert again.choices[0].told["stream"] == client.choices[0].told["stream"]
    assert len(edge.source.asked[-1].committed[0]) >= 10


async def test_a_repeated_request_gets_an_ended_answer_again(edge: Edge) -> None:
    first = await whole(edge, headers=KEY, seed=None)
    again = await whole(edge, headers=KEY, seed=None)
    assert (again.choices[0].text, again.usage) == (first.choices[0].text, first.usage)
    assert again.heads == first.heads[: len(again.heads)]


async def test_what_is_told_again_is_explained_by_the_first_request(edge: Edge) -> None:
    first = await edge.post(headers=KEY).ended()
    client = Client()
    client.hear(first)
    again = await edge.post(headers=KEY).ended()
    by_id = await edge.get(client.choices[0].told["stream"]).ended()
    names = {one.headers["x-firstlight-request"] for one in (first, again, by_id)}
    assert len(names) == 1


async def test_duplicates_that_start_together_are_computed_once(edge: Edge) -> None:
    undisturbed = await whole(edge)
    exchanges = [edge.post(headers=KEY) for _ in range(5)]
    for exchange in exchanges:
        await exchange.ended()
    assert [exchange.status for exchange in exchanges] == [409] * 4 + [200]
    assert Client().hear(exchanges[4]).choices[0].text == undisturbed.choices[0].text
    assert len(edge.source.asked) == 2


@pytest.mark.parametrize("together", [False, True])
async def test_a_repeated_request_without_a_stream_gets_the_same_body(
    edge: Edge, together: bool
) -> None:
    plain = {"stream": False, "stream_options": None, "seed": None}
    first = edge.post(headers=KEY, **plain)
    if not together:
        await first.ended()
    again = await edge.post(headers=KEY, **plain).ended()
    body = json.loads(again.body)
    assert body["usage"]["completion_tokens"] == 60
    assert body["choices"][0]["finish_reason"] == "length"
    if together:
        assert (await first.ended()).status == 409
    else:
        assert json.loads(first.body)["choices"] == body["choices"]
        assert json.loads(first.body)["id"] == body["id"]
    assert len(edge.source.asked) == 1 + (not together)
    if not together:  # what is asked of the mesh the second time is complete already
        assert len(edge.source.asked[1].committed[0]) == 60


async def test_a_key_with_another_body_is_refused(edge: Edge) -> None:
    first = edge.post(headers=KEY)
    other = await edge.post(headers=KEY, seed=6).ended()
    assert (other.status, other.error["code"]) == (422, "idempotency_mismatch")
    assert Client().hear(await first.ended()).done


async def test_a_key_is_its_tenants_own(mesh: Mesh, tmp_path: Path) -> None:
    edge = Edge(mesh, tenants=two_tenants(tmp_path))
    mine = await edge.post(headers=KEY | bearer("acme")).ended()
    theirs = await edge.post(headers=KEY | bearer("other"), seed=6).ended()
    assert (mine.status, theirs.status) == (200, 200)
    assert heard(mine).told["stream"] != heard(theirs).told["stream"]


@pytest.mark.parametrize("key", ["", "x" * 256, "tab\there", "ä"])
async def test_a_key_that_is_none_is_refused(edge: Edge, key: str) -> None:
    refused = await edge.post(headers={"idempotency-key": key}).ended()
    assert (refused.status, refused.error["code"]) == (400, "invalid_idempotency_key")


async def test_a_refusal_does_not_stick_to_its_key(edge: Edge, mesh: Mesh) -> None:
    await mesh.kill_core("core-eu")
    await mesh.kill_core("core-us")
    await mesh.linked(0)
    assert (await edge.post(headers=KEY).ended()).status == 503
    mesh.infos.clear()
    await mesh.start_core("core-new", "eu")
    mesh.announce()
    await mesh.linked(1)
    assert Client().hear(await edge.post(headers=KEY, seed=6).ended()).done


async def test_a_key_is_refused_where_it_could_not_be_remembered(mesh: Mesh) -> None:
    edge = Edge(mesh, streams=StreamsConfig(streams_max=1))
    first = edge.post()
    await first.until(lambda: has_ids(first, 1))
    refused = await edge.post(headers=KEY).ended()
    assert (refused.status, refused.error["code"]) == (503, "overloaded")
    plain = heard(await edge.post().ended())
    assert (await edge.get(plain.told["stream"]).ended()).status == 404
    assert Client().hear(await first.ended()).done


async def test_logprobs_are_not_told_again_for_a_key(edge: Edge) -> None:
    await edge.post(headers=KEY, logprobs=1).ended()
    refused = await edge.post(headers=KEY, logprobs=1).ended()
    assert (refused.status, refused.error["code"]) == (400, "logprobs_not_kept")
