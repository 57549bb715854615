"""A real mesh asked by our client and by independent ones: the text depends on none of them."""

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from firstlight.infra.chat import Asked, Question, ask
from firstlight.infra.client.response import HttpVersion
from firstlight.infra.mesh import Mesh
from firstlight.infra.up import curl_line, openai_snippet

SAMPLED = Question("Tell me about rivers.", seed=11, temperature=0.9, max_tokens=16)
GREEDY = Question("Count from one to nine.", temperature=0.0, max_tokens=24)
MESSAGES: Any = [{"role": "user", "content": SAMPLED.text}]
BODY = {
    "messages": MESSAGES,
    "seed": SAMPLED.seed,
    "temperature": SAMPLED.temperature,
    "max_tokens": SAMPLED.max_tokens,
}
CHANGING = ("id", "created", "system_fingerprint", "firstlight")


async def asked(mesh: Mesh, question: Question, http: HttpVersion = "3", edge: int = 0) -> Asked:
    return await ask(mesh.plan.edges[edge].url, question, http=http, ca_file=mesh.ca_file)


def steady(body: Mapping[str, Any]) -> dict[str, Any]:
    """A body without what may differ: names, time, who served, what the prefix cache had."""
    usage = {k: v for k, v in body["usage"].items() if k != "prompt_tokens_details"}
    return {k: v for k, v in body.items() if k not in CHANGING} | {"usage": usage}


def tls(mesh: Mesh) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(mesh.ca_file))


async def test_a_seed_gives_the_same_text_over_every_http_version(mesh: Mesh) -> None:
    versions: tuple[HttpVersion, ...] = ("3", "2", "1")
    answers = [await asked(mesh, SAMPLED, http=version) for version in versions]
    assert [a.summary()["protocol"] for a in answers] == ["h3", "h2", "h1"]
    assert len(answers[0].reply.token_ids) > 4
    assert len({(a.reply.text, tuple(a.reply.token_ids)) for a in answers}) == 1


async def test_a_seed_gives_the_same_text_at_every_edge(mesh: Mesh) -> None:
    one, other = [await asked(mesh, SAMPLED, edge=edge) for edge in (0, 1)]
    assert (one.summary()["edge"], other.summary()["edge"]) == ("edge-eu", "edge-us")
    assert one.reply.token_ids == other.reply.token_ids


@pytest.mark.parametrize("question", [SAMPLED, GREEDY], ids=["sampled", "greedy"])
async def test_hints_never_change_the_text(mesh: Mesh, question: Question) -> None:
    hinted = await asked(mesh, question)
    plain = await asked(mesh, Question(**{**_fields(question), "hints": False}))
    assert hinted.reply.token_ids == plain.reply.token_ids
    assert hinted.reply.text == plain.reply.text
    assert "edge-ngram" not in plain.summary()["hints"]["by_source"]


def _fields(question: Question) -> dict[str, Any]:
    return {name: getattr(question, name) for name in question.__slots__}


async def test_an_answer_says_where_its_time_went(mesh: Mesh) -> None:
    ttft = (await asked(mesh, GREEDY)).summary()["ttft_ms"]
    parts = [ttft[name] for name in ("network", "queue", "prefill", "first_packet")]
    assert all(part >= 0 for part in parts)
    assert ttft["prefill"] > 0
    assert sum(parts) == pytest.approx(ttft["total"], rel=0.02, abs=0.5)
    assert ttft["total"] <= ttft["client_first_token"]


async def test_an_edge_asks_the_core_of_its_own_region(mesh: Mesh) -> None:
    regions = [(await asked(mesh, GREEDY, edge=edge)).summary()["region"] for edge in (0, 1)]
    assert regions == ["eu", "us"]


async def test_a_mesh_goes_on_without_its_index_servers(mesh: Mesh) -> None:
    before = await asked(mesh, GREEDY)
    try:
        for valkey in mesh.valkeys.values():
            valkey.kill()
            assert valkey.wait(10)
        mesh.check_alive()
        assert (await asked(mesh, GREEDY)).reply.token_ids == before.reply.token_ids
    finally:
        mesh.start_valkeys()
    assert all(valkey.alive for valkey in mesh.valkeys.values())


def test_the_directory_names_both_edges(mesh: Mesh) -> None:
    answer = httpx.get(f"{mesh.plan.lb_url}/v1/edges", verify=tls(mesh), trust_env=False)
    found = {edge["node"]: edge["url"] for edge in answer.json()["data"]}
    assert found == {edge.node: edge.url for edge in mesh.plan.edges}


def run(command: list[str], mesh_state: Path) -> str:
    """Standard output of a command that must succeed."""
    environment = {**os.environ, "FIRSTLIGHT_STATE_DIR": str(mesh_state)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_chat_command_finds_the_running_mesh(mesh: Mesh, mesh_state: Path) -> None:
    command = [sys.executable, "-m", "firstlight", "chat", "--json", "--seed", "5", "--max-tokens"]
    answer = json.loads(run([*command, "8", "Say something."], mesh_state))
    assert answer["protocol"] == "h3"
    assert answer["seed"] == 5
    assert len(answer["token_ids"]) <= 8
    assert {edge.node for edge in mesh.plan.edges} > {answer["edge"]} - {None}


def test_the_explain_command_finds_the_edge_that_answered(mesh: Mesh, mesh_state: Path) -> None:
    firstlight = [sys.executable, "-m", "firstlight"]
    for edge in mesh.plan.edges:
        question = ["--max-tokens", "4", "--url", edge.url, "Say something."]
        answer = json.loads(run([*firstlight, "chat", "--json", *question], mesh_state))
        told = json.loads(run([*firstlight, "explain", "--json", answer["id"]], mesh_state))
        assert (told["id"], told["edge"], told["status"]) == (answer["id"], edge.node, "finished")
        assert "finished" in [e["what"] for e in told["entries"] if e["node"] == answer["core"]]
        shown = run([*firstlight, "explain", told["streams"][0]], mesh_state)
        assert "ms to the first token: " in shown
        assert f"prefill on {answer['core']}" in shown


def test_the_curl_line_works_as_pasted(mesh: Mesh, mesh_state: Path) -> None:
    answer = json.loads(run(["bash", "-c", curl_line(mesh.running)], mesh_state))
    assert answer["choices"][0]["message"]["content"]
    assert answer["firstlight"]["protocol"] == "h2"


def test_the_openai_snippet_works_as_pasted(mesh: Mesh, mesh_state: Path) -> None:
    assert run([sys.executable, "-c", openai_snippet(mesh.running)], mesh_state).strip()
