"""A core as a real process with the real model: its link, its listener and its exit code."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from firstlight.shared import rpc
from firstlight.shared.proto import core_pb2, core_pb2_grpc
from firstlight.shared.proto.convert import from_commits, from_done, from_node, to_hint, to_open
from firstlight.shared.stream import TokenStream
from firstlight.shared.tls import ensure_ca, issue
from firstlight.shared.types import Done, Hint, NodeInfo, Request, Role, Sampling

PROMPT = tuple(range(1000, 1040))
START_S = 180.0
"""A loaded machine loads the model slowly."""


@dataclass
class Process:
    """A running core."""

    child: asyncio.subprocess.Process
    address: str
    admin: str
    folder: Path

    http: httpx.AsyncClient

    async def blocks(self) -> dict[str, int]:
        status = (await self.http.get(f"http://{self.admin}/admin/status")).json()
        blocks: dict[str, int] = status["blocks"]
        return blocks


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Process]:
    config = folder / "core.yaml"
    config.write_text(
        f"node: core-eu\nregion: eu\nlisten: 127.0.0.1:0\ntls: {{directory: {folder / 'ca'}}}\n"
        "engine: {blocks: 128, speculation: always}\ndrain_s: 60\n"
    )
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "firstlight", "core", "--config", str(config)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        ready = json.loads(await asyncio.wait_for(child.stdout.readline(), START_S))
        async with httpx.AsyncClient() as http:
            yield Process(child, ready["address"], ready["admin"], folder, http)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
        child._transport.close()  # type: ignore[attr-defined]


@dataclass
class Answer:
    """What a link brought for one request."""

    ids: tuple[int, ...]
    cached_tokens: int
    frames: int
    done: Done


class Link:
    """A raw client of the link."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def welcome(self) -> NodeInfo:
        return from_node((await self.call.read()).welcome.info)

    async def answer(self, request: Request, hints: tuple[Hint, ...] = ()) -> Answer:
        frame = core_pb2.EdgeFrame(
            opens=[to_open(request, 1, ())], hints=[to_hint(hint) for hint in hints]
        )
        await self.call.write(frame)
        stream, frames, cached = TokenStream(request.prompt), 0, -1
        stream.assign()
        while True:
            told = await self.call.read()
            assert not told.failed, told.failed
            for commits in (c for c in told.commits if c.request == request.id):
                commit = from_commits(commits)
                stream.receive(commit)
                frames += 1
                cached = commit.cached_tokens if commit.cached_tokens is not None else cached
            for done in (d for d in told.done if d.request == request.id):
                return Answer(tuple(stream.ids), cached, frames, from_done(done))


@asynccontextmanager
async def linked(core: Process) -> AsyncIterator[Link]:
    files = issue(ensure_ca(core.folder / "ca"), Role.EDGE, "edge-eu", ["127.0.0.1"], core.folder)
    async with rpc.channel(core.address, files, Role.CORE) as channel:
        call = core_pb2_grpc.CoreStub(channel).Link()
        try:
            yield Link(call)
        finally:
            call.cancel()


def asking(info: NodeInfo, name: str, max_tokens: int = 16) -> Request:
    return Request(
        id=name,
        model=info.models[0],
        tokenizer_hash=info.tokenizer_hash,
        salt=bytes(16),
        prompt=PROMPT,
        sampling=Sampling(temperature=0.9),
        seed=11,
        choice=0,
        max_tokens=max_tokens,
        eos_ids=frozenset(),
    )


async def unused(core: Process) -> dict[str, int]:
    """The blocks once no sequence holds any; a busy machine may take long for the step."""
    async with asyncio.timeout(10.0):
        while (blocks := await core.blocks())["used"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return blocks


async def test_a_core_serves_cancels_forgets_and_stops(tmp_path: Path) -> None:
    async with running(tmp_path) as core:
        async with linked(core) as link:
            info = await link.welcome()
            assert (info.node, info.role, info.region) == ("core-eu", Role.CORE, "eu")
            assert info.address == core.address

            first = await link.answer(asking(info, "first"))
            assert (len(first.ids), first.cached_tokens) == (16, 0)

            # The known answer as a hint, a wrong hint in front: fewer frames, the same ids, counts.
            chain = TokenStream(PROMPT).chain
            hints = (
                Hint("second", len(PROMPT), chain, (7, 8, 9), "edge-ngram"),
                Hint("second", len(PROMPT), chain, first.ids, "edge-model"),
            )
            second = await link.answer(asking(info, "second"), hints)
            assert second.ids == first.ids
            assert second.cached_tokens == 32  # two full blocks of the 40 prompt tokens
            assert second.frames < first.frames / 2
            counts = dict(second.done.hints)
            assert counts["edge-model"].accepted >= 10

            # A cancelled request frees its blocks, and a flush empties the cache.
            long = asking(info, "long", 1500)
            await link.call.write(core_pb2.EdgeFrame(opens=[to_open(long, 1, ())]))
            while not any(c.request == "long" for c in (await link.call.read()).commits):
                pass
            cancel = core_pb2.Cancel(request="long", epoch=1)
            await link.call.write(core_pb2.EdgeFrame(cancels=[cancel]))
            blocks = await unused(core)
            assert blocks["cached"] > 0
            assert blocks["free"] + blocks["cached"] == blocks["total"] == 128
            flushed = await core.http.post(f"http://{core.admin}/admin/flush-cache")
            assert flushed.status_code == 202
            third = await link.answer(asking(info, "third", 2))
            assert third.cached_tokens == 0
            metrics = (await core.http.get(f"http://{core.admin}/metrics")).text
            assert "vllm:generation_tokens_total" in metrics
            steps = (await core.http.get(f"http://{core.admin}/steps.json")).json()
            names = {event["name"] for event in steps["traceEvents"]}
            assert {"prefill", "decode", "hand over", "queued", "KV"} <= names

            # A link that breaks off leaves nothing behind.
            last = asking(info, "last", 1500)
            await link.call.write(core_pb2.EdgeFrame(opens=[to_open(last, 1, ())]))
            while not any(c.request == "last" for c in (await link.call.read()).commits):
                pass
        await unused(core)

        # Told to stop, it refuses what is new and finishes what runs.
        async with linked(core) as link:
            info = await link.welcome()
            running_one = asyncio.create_task(link.answer(asking(info, "running", 20)))
            await asyncio.sleep(0.1)
            core.child.send_signal(signal.SIGTERM)
            answer = await asyncio.wait_for(running_one, 60)
            assert answer.ids[:16] == first.ids
        assert await asyncio.wait_for(core.child.wait(), 60) == 0


async def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    config = tmp_path / "core.yaml"
    config.write_text(f"listen: 127.0.0.1:{port}\ntls: {{directory: {tmp_path / 'ca'}}}\n")
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "firstlight", "core", "--config", str(config)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(child.communicate(), START_S)
    taken.close()
    await taken.wait_closed()
    assert (child.returncode, out) == (1, b"")
    [line] = err.decode().splitlines()
    assert str(port) in line
