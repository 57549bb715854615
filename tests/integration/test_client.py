"""The official `openai` package over our transport, on a real mesh whose edges are killed."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import openai
import pytest

from firstlight.client import AsyncTransport, Transport
from firstlight.infra.chat import Question, ask_any
from firstlight.infra.client.directory import keys_in
from firstlight.infra.mesh import Mesh
from firstlight.infra.nearest import DIRECTORY_KEYS, edges_of
from firstlight.infra.reply import Reply

ASKED: dict[str, Any] = {
    "model": "auto",
    "messages": [{"role": "user", "content": "Tell me about rivers."}],
    "seed": 12,
    "temperature": 0.9,
    "max_tokens": 40,
    "stream": True,
    "extra_body": {"firstlight": {"ignore_eos": True}},
}
KILL_AFTER = 12
"""Pieces of text."""


def options(mesh: Mesh) -> dict[str, Any]:
    keys = mesh.ca_file.with_name(DIRECTORY_KEYS)
    known = keys_in(keys.read_text()) if keys.exists() else []
    return {"ca_file": mesh.ca_file, "directory_keys": known}


@pytest.fixture
def seeds(mesh: Mesh) -> list[str]:
    return [edge.url for edge in mesh.plan.edges]


@pytest.fixture
def client(mesh: Mesh, seeds: list[str]) -> Iterator[openai.OpenAI]:
    http_client = httpx.Client(transport=Transport(*seeds, **options(mesh)), timeout=60)
    base_url = f"{seeds[0]}/v1"
    with openai.OpenAI(
        base_url=base_url, api_key="local", http_client=http_client, max_retries=0
    ) as made:
        yield made


@pytest.fixture
async def async_client(mesh: Mesh, seeds: list[str]) -> AsyncIterator[openai.AsyncOpenAI]:
    http_client = httpx.AsyncClient(transport=AsyncTransport(*seeds, **options(mesh)), timeout=60)
    base_url = f"{seeds[0]}/v1"
    async with openai.AsyncOpenAI(
        base_url=base_url, api_key="local", http_client=http_client, max_retries=0
    ) as made:
        yield made


class Told:
    """What the chunks of a stream come to, and which edges sent them."""

    def __init__(self) -> None:
        self.text, self.ids, self.edges, self.roles = "", [], [], 0  # type: ignore[var-annotated]
        self.finish: list[str] = []

    def add(self, chunk: Any) -> None:
        (choice,) = chunk.choices
        self.text += choice.delta.content or ""
        self.roles += choice.delta.role is not None
        self.finish += [choice.finish_reason] if choice.finish_reason else []
        extra = chunk.firstlight
        if "cap" in extra:
            self.edges.append(extra["edge"])
            del self.ids[self.offset() :]
        self.ids += extra.get("ids", [])
        self._offset = extra.get("offset", self.offset())

    def offset(self) -> int:
        return getattr(self, "_offset", 0)


def read(client: openai.OpenAI, mesh: Mesh | None = None) -> Told:
    """The whole answer; of a mesh that is given, the edge dies in the middle of it."""
    told, killed = Told(), False
    with client.chat.completions.create(**ASKED) as stream:
        for number, chunk in enumerate(stream):
            told.add(chunk)
            if mesh is not None and number >= KILL_AFTER and not killed:
                mesh.kill(told.edges[0])
                killed = True
    return told


def check(told: Told, whole: Told) -> None:
    assert (told.text, told.ids) == (whole.text, whole.ids)
    assert len(told.ids) == ASKED["max_tokens"]
    assert told.finish == ["length"]
    assert told.roles == 1
    assert len(set(told.edges)) == 2


def test_it_all_goes_over_http3(mesh: Mesh, client: openai.OpenAI) -> None:
    answer = client.chat.completions.with_raw_response.create(**ASKED | {"stream": False})
    assert answer.http_response.http_version == "HTTP/3"
    assert answer.parse().firstlight["protocol"] == "h3"
    assert client.models.list().data


def test_what_the_edge_refuses_is_the_errors_of_the_package(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(**ASKED | {"temperature": 9})


def test_a_load_balancer_is_enough_to_begin_with(mesh: Mesh) -> None:
    transport = Transport(mesh.plan.lb_url, **options(mesh))
    with httpx.Client(transport=transport, base_url=mesh.plan.lb_url) as client:
        answer = client.get("/v1/models")
        assert (answer.status_code, answer.http_version) == (200, "HTTP/3")
        assert {one.edge.node for one in transport.nearest()} == {"edge-eu", "edge-us"}


def test_a_stream_goes_on_at_another_edge_when_its_own_is_killed(
    mesh: Mesh, client: openai.OpenAI
) -> None:
    whole = read(client)
    check(read(client, mesh), whole)
    assert read(client).text == whole.text, "and so do the requests after it"


async def test_async_streams_and_our_chat_go_on_when_their_edge_is_killed(
    mesh: Mesh, async_client: openai.AsyncOpenAI
) -> None:
    async def read() -> Told:
        told = Told()
        async with await async_client.chat.completions.create(**ASKED) as stream:
            async for chunk in stream:
                told.add(chunk)
        return told

    killed: list[str] = []

    def kill(text: str, reply: Reply) -> None:
        if len(reply.token_ids) > KILL_AFTER and not killed:
            killed.append(str(reply.details["edge"]))
            mesh.kill(killed[0])

    question = Question("Tell me about rivers.", seed=12, max_tokens=40, ignore_eos=True)
    async with edges_of(mesh.running) as edges:
        whole, asked = await read(), await ask_any(edges, question)
        again, *streams = await asyncio.gather(
            ask_any(edges, question, on_text=kill), *(read() for _ in range(4))
        )
    assert (again.reply.text, again.reply.token_ids) == (asked.reply.text, asked.reply.token_ids)
    assert again.resumed == 1
    assert again.reply.details["edge"] != killed[0]
    for told in streams:
        check(told, whole)
