"""Streams gone on with on a mesh of real processes, over HTTP/3."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from stream_bed import Valkey

from firstlight.infra.client.client import open_client
from firstlight.infra.mesh import Mesh
from firstlight.infra.reply import Reply
from firstlight.shared.clock import monotonic_s

BODY: dict[str, Any] = {
    "model": "auto",
    "messages": [{"role": "user", "content": "Tell me about a river."}],
    "stream": True,
    "seed": 4,
    "temperature": 0.8,
    "max_tokens": 24,
}
EXTRA: dict[str, Any] = {"ignore_eos": True}
PATH = "/v1/chat/completions"


async def tell(
    mesh: Mesh,
    edge: int,
    reply: Reply,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    until_ids: int = 1000,
) -> None:
    """Read into `reply` until it has so many ids, then leave."""
    raw = b"" if body is None else json.dumps(body).encode()
    url = mesh.plan.edges[edge].url
    async with (
        open_client(url, "3", ca_file=mesh.ca_file) as client,
        client.stream(method, path, {"content-type": "application/json"}, raw) as response,
    ):
        assert response.status == 200, [chunk async for chunk in response.chunks()]
        async for event in response.events():
            reply.feed(event.data, monotonic_s())
            if len(reply.token_ids) >= until_ids:
                return


async def undisturbed(mesh: Mesh) -> Reply:
    reply = Reply()
    await tell(mesh, 0, reply, "POST", PATH, BODY | {"firstlight": EXTRA})
    assert len(reply.token_ids) == 24
    return reply


async def test_a_connection_that_broke_is_gone_on_with_at_the_same_edge(mesh: Mesh) -> None:
    whole, reply = await undisturbed(mesh), Reply()
    await tell(mesh, 0, reply, "POST", PATH, BODY | {"firstlight": EXTRA}, until_ids=12)
    assert not reply.complete
    told = reply.resume()  # forgets ids without text, as any client must
    assert told is not None
    path = f"/v1/streams/{reply.details['stream']}?starting_after={len(told['ids'])}"
    await tell(mesh, 0, reply, "GET", path)
    assert (reply.text, reply.token_ids) == (whole.text, whole.token_ids)
    assert reply.complete


@pytest.fixture
def journaled(mesh: Mesh, tmp_path: Path) -> Iterator[Mesh]:
    """The mesh with a journal at both edges, which the next test finds without one."""
    valkey, before = Valkey(tmp_path), {}
    names = [edge.node for edge in mesh.plan.edges]
    for name in names:
        path = mesh.run / f"{name}.yaml"
        before[path] = path.read_text()
        journal = {"redis": {"url": valkey.url}, "timeout_s": 2.0, "write_s": 0.02}
        path.write_text(yaml.safe_dump(yaml.safe_load(before[path]) | {"journal": journal}))
        mesh.kill(name)
        mesh.start_node(name)
    mesh.wait_ready(names)
    mesh.wait_linked()
    yield mesh
    for path, text in before.items():
        path.write_text(text)
    for name in names:
        if name in mesh.children:
            mesh.kill(name)
    valkey.stop()


async def test_a_killed_edge_is_taken_over_from_its_journal(journaled: Mesh) -> None:
    whole, reply = await undisturbed(journaled), Reply()
    await tell(journaled, 0, reply, "POST", PATH, BODY | {"firstlight": EXTRA}, until_ids=12)
    journaled.kill("edge-eu")
    told = reply.resume()
    assert told is not None
    resume = {name: told[name] for name in ("cap", "seed", "class")} | {
        "streams": [reply.details["stream"]],
        "offsets": [len(told["ids"])],
    }
    body = BODY | {"firstlight": EXTRA | {"resume": resume}}
    await tell(journaled, 1, reply, "POST", PATH, body)
    assert (reply.text, reply.token_ids) == (whole.text, whole.token_ids)
    assert (reply.details["edge"], reply.details["continuation"]) == ("edge-us", "exact")
