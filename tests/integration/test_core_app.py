"""A core's process logic in one piece over an engine without a model: serve, drain, give up."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from doubles import VOCAB, PagedRunner, alone, config, request

from firstlight.core_node import app
from firstlight.core_node.admission import Offer
from firstlight.core_node.backends.native import NativeBackend
from firstlight.core_node.config import CoreSettings
from firstlight.core_node.drafting import DraftingSection
from firstlight.core_node.kv.memory import KvMemory
from firstlight.core_node.kv.seal import BlockSeals
from firstlight.shared import rpc
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.plan import StepPlan, StepRows
from firstlight.shared.errors import ConfigError, PeerError
from firstlight.shared.proto import core_pb2, core_pb2_grpc
from firstlight.shared.proto.convert import from_commits, to_open
from firstlight.shared.stream import TokenStream
from firstlight.shared.tls import ensure_ca, issue
from firstlight.shared.types import NodeInfo, Request, Role

OFFER = Offer(("m",), "t", VOCAB, 256)
INFO = NodeInfo("core-eu", Role.CORE, 1, "eu", "127.0.0.1:0", "class", ("m",), "t", 256)


class TurningRunner(PagedRunner):
    """A `PagedRunner` that takes its time, and after some steps finds a bug in itself."""

    def __init__(self, steps_good: int) -> None:
        super().__init__(32)
        self.steps_left = steps_good

    def run(self, plan: StepPlan) -> StepRows:
        assert self.steps_left > 0, "blocks do not add up"
        self.steps_left -= 1
        sleep(0.005)
        return super().run(plan)


@dataclass
class Running:
    """A core that serves in this process."""

    task: "asyncio.Task[None]"
    stop: asyncio.Event
    address: str
    folder: Path
    frames: list[core_pb2.CoreFrame] = field(default_factory=list)

    @asynccontextmanager
    async def link(self) -> AsyncIterator[Any]:
        files = issue(
            ensure_ca(self.folder / "ca"), Role.EDGE, "edge", ["127.0.0.1"], self.folder / "edge"
        )
        async with rpc.channel(self.address, files, Role.CORE) as channel:
            call = core_pb2_grpc.CoreStub(channel).Link()
            yield call
            call.cancel()


@asynccontextmanager
async def served(
    folder: Path, capsys: pytest.CaptureFixture[str], steps_good: int = 10_000
) -> AsyncIterator[Running]:
    limits = config(speculation="always")
    backend = NativeBackend(
        Engine(TurningRunner(steps_good), limits),
        OFFER,
        hint_ids_max=7,
        drafting=DraftingSection(ngram=True),
    )
    settings = CoreSettings(node="core-eu", listen="127.0.0.1:0", drain_s=30.0)
    files = issue(ensure_ca(folder / "ca"), Role.CORE, "core-eu", ["127.0.0.1"], folder / "core")
    stop = asyncio.Event()
    memory = KvMemory(
        settings.kv.index,
        None,
        INFO,
        backend,
        disk=None,
        seals=BlockSeals((bytes(32),), "0123456789abcdef"),
        block_bytes=128,
        connect=partial(rpc.channel, files=files, peer_role=Role.CORE),
    )
    task = asyncio.create_task(app._serve(settings, stop, backend, memory, INFO, files))
    async with asyncio.timeout(10):
        while not (line := capsys.readouterr().out):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    ready = json.loads(line)
    assert (ready["ready"], ready["node"]) == (True, "core-eu")
    try:
        yield Running(task, stop, ready["address"], folder)
    finally:
        stop.set()
        await asyncio.gather(task, return_exceptions=True)


def asking(name: str, max_tokens: int) -> Request:
    return replace(request(name, max_tokens=max_tokens), salt=bytes(16))


async def answer(call: Any, name: str) -> list[int]:
    """Follow one request to its end."""
    stream = TokenStream((1, 2, 3))
    stream.assign()
    while True:
        frame = await asyncio.wait_for(call.read(), 10)
        for commits in (c for c in frame.commits if c.request == name):
            stream.receive(from_commits(commits))
        if any(done.request == name for done in frame.done):
            return stream.ids


async def test_requests_are_answered_over_the_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with served(tmp_path, capsys) as core, core.link() as call:
        welcome = (await call.read()).welcome
        assert welcome.info.address == core.address
        asked = asking("a", 40)
        await call.write(core_pb2.EdgeFrame(opens=[to_open(asked, 1, ())]))
        assert await answer(call, "a") == alone(asked)


async def test_told_to_stop_it_finishes_what_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with served(tmp_path, capsys) as core, core.link() as call:
        asked = asking("a", 100)
        await call.write(core_pb2.EdgeFrame(opens=[to_open(asked, 1, ())]))
        while not (await call.read()).commits:
            pass
        core.stop.set()
        while not (await asyncio.wait_for(call.read(), 10)).load.draining:
            pass
        await call.write(core_pb2.EdgeFrame(opens=[to_open(asking("b", 4), 1, ())]))
        refused, finished = "", False
        while not refused or not finished:
            frame = await asyncio.wait_for(call.read(), 10)
            refused = next((f.kind for f in frame.failed if f.request == "b"), refused)
            finished |= any(done.request == "a" for done in frame.done)
        assert refused == "capacity"
        await asyncio.wait_for(core.task, 10)


async def test_a_bug_in_the_engine_sends_all_elsewhere_and_ends_the_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with served(tmp_path, capsys, steps_good=5) as core, core.link() as call:
        opens = [to_open(asking(name, 200), 1, ()) for name in "ab"]
        await call.write(core_pb2.EdgeFrame(opens=opens))
        failed = []
        while len(failed) < 2:
            failed += (await asyncio.wait_for(call.read(), 10)).failed
        assert sorted(one.request for one in failed) == ["a", "b"]
        assert {(one.kind, one.retry_elsewhere) for one in failed} == {("died", True)}
        with pytest.raises(PeerError, match="the engine failed: AssertionError: blocks do not"):
            await asyncio.wait_for(core.task, 10)


async def test_a_port_in_use_is_told_before_the_model_is_loaded() -> None:
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
        rpc.check_free(f"127.0.0.1:{port}")
    taken.close()
    await taken.wait_closed()


def test_a_core_that_listens_everywhere_must_say_where_edges_reach_it() -> None:
    wide = CoreSettings(listen="0.0.0.0:8500", load_balancers=("127.0.0.1:1",))
    with pytest.raises(ConfigError, match="advertise is null"):
        app._names(wide, "0.0.0.0")
    named = wide.model_copy(update={"advertise": "core.example:8500"})
    assert app._names(named, "0.0.0.0") == ["0.0.0.0", "core.example", "localhost"]
