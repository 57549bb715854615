"""The control plane with real processes and sockets: joining, leaving, being refused, surviving."""

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import grpc
import grpc.aio
import httpx
import pytest

from firstlight.edge_node.control import EdgeControl
from firstlight.edge_node.view import MeshMemory
from firstlight.global_lb.balance import STEP_EVERY_S
from firstlight.global_lb.control import EXPIRE_EVERY_S
from firstlight.shared import rpc
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError
from firstlight.shared.join import Joiner
from firstlight.shared.lifecycle import incarnation
from firstlight.shared.proto.convert_mesh import to_report
from firstlight.shared.tls import NodeFiles, ensure_ca, issue
from firstlight.shared.types import Load, NodeInfo, Report, Role

_LB = """
import sys
from functools import partial
from pathlib import Path
from firstlight.global_lb.control import EXPIRE_EVERY_S
from firstlight.global_lb.app import main
from firstlight.global_lb.config import LbSettings
from firstlight.shared import lifecycle
from firstlight.shared.config import load_settings
sys.exit(lifecycle.run(partial(main, load_settings(LbSettings, Path(sys.argv[1])))))
"""


@dataclass
class Lb:
    """A load balancer process; the same ports after each restart."""

    config: Path
    tls_dir: Path
    http: str
    control: str
    process: "subprocess.Popen[str] | None" = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _LB, str(self.config)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = json.loads(self.process.stdout.readline())
        assert line == {"ready": True, "node": "lb", "address": self.http, "control": self.control}

    def end(self, number: int) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=10)
        return self.process.returncode


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@contextmanager
def _balancing(directory: Path) -> Iterator[Lb]:
    made = Lb(directory / "lb.yaml", directory / "tls", _free_address(), _free_address())
    made.config.write_text(
        f"node: lb\nhttp: {{listen: '{made.http}'}}\ncontrol: {{listen: '{made.control}'}}\n"
        f"tls: {{directory: '{made.tls_dir}'}}\nlog_level: warning\n"
    )
    made.start()
    try:
        yield made
    finally:
        made.end(signal.SIGKILL)


@pytest.fixture(scope="module")
def lb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lb]:
    """One that all tests share."""
    with _balancing(tmp_path_factory.mktemp("lb")) as made:
        yield made


@pytest.fixture
def mortal_lb(tmp_path: Path) -> Iterator[Lb]:
    """One that the test may end."""
    with _balancing(tmp_path) as made:
        yield made


@pytest.fixture
def tls_dir(tmp_path: Path) -> Path:
    return tmp_path / "tls"


def _files(tls_dir: Path, role: Role, node: str) -> NodeFiles:
    return issue(ensure_ca(tls_dir), role, node, ["127.0.0.1"], tls_dir)


def _info(node: str, role: Role) -> NodeInfo:
    address = f"{node}.example:1"
    return NodeInfo(node, role, incarnation(), "lon", address, models=("m",), context_max=4096)


@asynccontextmanager
async def _core(lb: Lb, node: str = "c1") -> AsyncIterator[Joiner]:
    load = Load(running=3, sequences_max=8)
    control = Joiner(
        _info(node, Role.CORE),
        _files(lb.tls_dir, Role.CORE, node),
        [lb.control],
        load=lambda: load,
        rng=Random(1),
    )
    async with control.member(asyncio.Event()):
        yield control


@asynccontextmanager
async def _edge(lb: Lb) -> AsyncIterator[tuple[EdgeControl, MeshMemory]]:
    memory = MeshMemory()
    control = EdgeControl(
        _info("e1", Role.EDGE),
        _files(lb.tls_dir, Role.EDGE, "e1"),
        [lb.control],
        memory,
        load=Load,
        rtt_ms=lambda: (("c1", 7.5),),
        rng=Random(2),
    )
    async with control.member(asyncio.Event()):
        yield control, memory


async def _until(true: Callable[[], bool], timeout_s: float = 15.0) -> float:
    begun = monotonic_s()
    while not true():
        assert monotonic_s() - begun < timeout_s, "did not come true in time"
        await asyncio.sleep(0.02)
    return monotonic_s() - begun


def _cores(memory: MeshMemory) -> list[str]:
    return [core.info.node for core in memory.cores(monotonic_s())]


async def test_nodes_that_join_are_told_of_each_other(lb: Lb) -> None:
    async with _edge(lb) as (_, memory), _core(lb):
        await _until(lambda: _cores(memory) == ["c1"])
        (core,) = memory.cores(monotonic_s())
        assert core.load == Load(running=3, sequences_max=8)
        assert core.info.address == "c1.example:1"
        await asyncio.sleep(1)
        assert memory.cores(monotonic_s())[0].age_s < 0.75


async def test_a_node_that_stops_is_gone_for_others_at_once(lb: Lb) -> None:
    async with _edge(lb) as (_, memory), _core(lb, "c2"):
        async with _core(lb, "c1"):
            await _until(lambda: _cores(memory) == ["c1", "c2"])
        assert await _until(lambda: _cores(memory) == ["c2"]) < 2


async def test_the_view_survives_the_load_balancer_and_nodes_rejoin(mortal_lb: Lb) -> None:
    async with _edge(mortal_lb) as (edge, memory), _core(mortal_lb) as core:
        await _until(lambda: _cores(memory) == ["c1"])
        mortal_lb.end(signal.SIGKILL)
        await _until(lambda: not edge.joined and not core.joined)
        await asyncio.sleep(5.5)
        assert _cores(memory) == ["c1"]
        assert memory.cores(monotonic_s())[0].age_s > 5
        mortal_lb.start()
        await _until(lambda: bool(edge.joined and core.joined))
        await _until(lambda: memory.cores(monotonic_s())[0].age_s < 1)
        assert _cores(memory) == ["c1"]


async def test_clients_are_told_where_the_edges_are_and_where_a_request_would_go(lb: Lb) -> None:
    verify = ssl.create_default_context(cafile=lb.tls_dir / "ca" / "cert.pem")
    async with (
        _edge(lb) as (_, memory),
        _core(lb),
        httpx.AsyncClient(base_url=f"https://{lb.http}", verify=verify) as client,
    ):
        await _until(lambda: _cores(memory) == ["c1"])
        await asyncio.sleep(1.5 * STEP_EVERY_S)  # round trips are gathered each second
        (edge,) = (await client.get("/v1/edges", params={"region": "lon"})).json()["data"]
        assert (edge["node"], edge["address"], edge["region"]) == ("e1", "e1.example:1", "lon")
        assert edge["expected_rtt_ms"] == 7.5
        assert edge["rtt_from"] == "cores"
        mesh = (await client.get("/v1/mesh")).json()["data"]
        assert [(node["node"], node["role"]) for node in mesh] == [("c1", "core"), ("e1", "edge")]
        assert mesh[0]["load"]["running"] == 3
        query = {"edge": "e1", "prompt_tokens": 10, "model": "m"}
        route = (await client.get("/v1/route", params=query)).json()
        assert route["candidates"][0]["core"] == "c1"
        assert (await client.get("/readyz")).status_code == 200
        await asyncio.sleep(2 * EXPIRE_EVERY_S)  # nodes are counted when leases are looked at
        metrics = (await client.get("/metrics")).text
        assert 'firstlight_mesh_nodes{role="core"} 1.0' in metrics
        for path, status, param in [
            ("/v1/route?edge=nobody", 404, "edge"),
            ("/v1/route", 400, "edge"),
            ("/v1/route?edge=e1&prompt_tokens=-1", 400, "prompt_tokens"),
            ("/v1/none", 404, None),
        ]:
            answer = await client.get(path)
            assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


async def _refusal(lb: Lb, files: NodeFiles, report: Report) -> grpc.StatusCode:
    async with rpc.channel(lb.control, files, Role.LB) as channel:
        call = rpc.join(channel)
        try:
            async with asyncio.timeout(10):
                await call.write(to_report(report))
                while isinstance(await call.read(), rpc.View):
                    pass
        except grpc.aio.AioRpcError as error:
            return error.code()
        except asyncio.InvalidStateError:
            pass
        return await call.code()


async def test_a_node_may_report_only_itself(lb: Lb) -> None:
    files = _files(lb.tls_dir, Role.CORE, "c1")
    for other in (_info("c2", Role.CORE), _info("c1", Role.EDGE)):
        code = await _refusal(lb, files, Report(other, 1))
        assert code is grpc.StatusCode.PERMISSION_DENIED


async def test_a_report_that_says_nothing_is_refused(lb: Lb) -> None:
    nameless = NodeInfo("", Role.CORE, 1, "lon", "a:1")
    code = await _refusal(lb, _files(lb.tls_dir, Role.CORE, "c1"), Report(nameless, 1))
    assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_node_of_another_authority_cannot_join(lb: Lb, tmp_path: Path) -> None:
    stranger = _files(tmp_path / "other", Role.CORE, "c1")
    trusting = NodeFiles(stranger.cert, stranger.key, ensure_ca(lb.tls_dir).cert)
    report = Report(_info("c1", Role.CORE), 1)
    assert await _refusal(lb, trusting, report) is grpc.StatusCode.UNAVAILABLE
    assert await _refusal(lb, stranger, report) is grpc.StatusCode.UNAVAILABLE


async def test_a_core_cannot_pose_as_a_load_balancer(tls_dir: Path) -> None:
    """A client that expects a load balancer fails the handshake with a core's certificate."""
    listening = await rpc.server(
        "127.0.0.1:0", _files(tls_dir, Role.CORE, "c1"), lambda server: None
    )
    try:
        posing = Lb(tls_dir, tls_dir, "", f"127.0.0.1:{listening.port}")
        report = Report(_info("e1", Role.EDGE), 1)
        code = await _refusal(posing, _files(tls_dir, Role.EDGE, "e1"), report)
        assert code is grpc.StatusCode.UNAVAILABLE
    finally:
        await listening.server.stop(0)


async def test_a_server_refuses_roles_that_it_does_not_serve(tls_dir: Path) -> None:
    seen: list[object] = []

    async def serve(request: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        seen.append(await rpc.require_role(context, {Role.EDGE}))
        return b"yes"

    handlers = {"Ask": grpc.unary_unary_rpc_method_handler(serve)}
    listening = await rpc.server(
        "127.0.0.1:0",
        _files(tls_dir, Role.CORE, "c1"),
        lambda server: server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("t.T", handlers),)
        ),
    )

    async def ask(role: Role) -> bytes:
        files = _files(tls_dir, role, "x")
        address = f"127.0.0.1:{listening.port}"
        async with rpc.channel(address, files, Role.CORE) as channel:
            answer: bytes = await channel.unary_unary("/t.T/Ask")(b"", timeout=10)
            return answer

    try:
        assert await ask(Role.EDGE) == b"yes"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(Role.LB)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert caught.value.details() == "certificate has role lb, expected edge"
        assert len(seen) == 1
    finally:
        await listening.server.stop(0)


async def test_a_port_in_use_is_one_clear_error(lb: Lb) -> None:
    files = _files(lb.tls_dir, Role.LB, "lb")
    with pytest.raises(ConfigError, match=f"cannot listen on {lb.control}: Address already in use"):
        await rpc.server(lb.control, files, lambda server: None)
    second = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _LB,
        str(lb.config),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "FIRSTLIGHT_HTTP__LISTEN": "127.0.0.1:0"},
    )
    stdout, stderr = await asyncio.wait_for(second.communicate(), 30)
    assert (second.returncode, stdout) == (1, b"")
    assert stderr.decode() == (
        f"firstlight: cannot listen on {lb.control}: Address already in use\n"
    )


async def test_a_load_balancer_that_is_told_to_stop_ends_well(mortal_lb: Lb) -> None:
    async with _core(mortal_lb) as core:
        await _until(lambda: bool(core.joined))
        assert mortal_lb.end(signal.SIGTERM) == 0


async def test_nonsense_costs_a_node_its_word_and_not_its_place(lb: Lb) -> None:
    """NaN on the wire, and figures that no core has: counted, and the last good word stays."""
    verify = ssl.create_default_context(cafile=lb.tls_dir / "ca" / "cert.pem")
    info = _info("c9", Role.CORE)
    good = to_report(Report(info, 1, Load(running=3, sequences_max=8)))
    not_a_number = to_report(Report(info, 2, Load(running=99)))
    not_a_number.load.kv_used_share = float("nan")
    absurd = to_report(Report(info, 3, Load(running=98, prefill_ms_per_token=1e-9)))
    async with (
        rpc.channel(lb.control, _files(lb.tls_dir, Role.CORE, "c9"), Role.LB) as channel,
        httpx.AsyncClient(base_url=f"https://{lb.http}", verify=verify) as client,
    ):
        call = rpc.join(channel)
        for message in (good, not_a_number, absurd):
            await call.write(message)
        for _ in range(4):
            assert isinstance(await call.read(), rpc.View)
        (node,) = (await client.get("/v1/mesh")).json()["data"]
        assert (node["node"], node["load"]["running"], node["seq"]) == ("c9", 3, 3)
        metrics = (await client.get("/metrics")).text
        for reason in ("number", "absurd"):
            assert f'firstlight_mesh_ignored_total{{reason="{reason}",role="lb"}} 1.0' in metrics
        await call.write(to_report(Report(info, 4, leaving=True)))
        await call.done_writing()


async def test_of_two_processes_with_one_name_all_hear_of_the_later_one_only(lb: Lb) -> None:
    files = _files(lb.tls_dir, Role.CORE, "c1")
    earlier = NodeInfo("c1", Role.CORE, 1_000, "lon", "old.example:1")
    async with _edge(lb) as (_, memory), _core(lb), rpc.channel(lb.control, files, Role.LB) as old:
        await _until(lambda: _cores(memory) == ["c1"])
        call, seen = rpc.join(old), set()
        for seq in range(8):
            await call.write(to_report(Report(earlier, seq + 1)))
            await asyncio.sleep(0.15)
            seen |= {core.info.address for core in memory.cores(monotonic_s())}
        assert seen == {"c1.example:1"}
