"""Two load balancers, and what is left when they or Redis are killed: nothing fails for it."""

import asyncio
import json
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from firstlight.infra.chat import Asked, Question, ask
from firstlight.infra.mesh import Mesh, new_mesh
from firstlight.infra.mesh_config import HOST, MeshPlan, NodePlan, Ports, plan_mesh
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError
from firstlight.shared.types import Role

LBS = ("lb", "lb-2")
NODES = {"edge-eu", "edge-us", "core-eu", "core-us"}
SHORT = Question("Count.", temperature=0.0, max_tokens=4)


def _plan(ports: Ports) -> MeshPlan:
    """The usual mesh with a second load balancer, and cores that only take time."""
    plan = plan_mesh(ports)
    http, control, one, two = ports(4)
    first = plan.node("lb").settings
    addresses = [first["control"]["listen"], f"{HOST}:{control}"]
    second = {"http": {"listen": f"{HOST}:{http}"}, "control": {"listen": addresses[1]}}
    nodes = [
        NodePlan("lb", Role.LB, "eu", first | {"admin": f"{HOST}:{one}"}),
        NodePlan("lb-2", Role.LB, "eu", second | {"admin": f"{HOST}:{two}"}),
    ]
    for node in plan.peers:
        more: dict[str, Any] = {"load_balancers": addresses}
        if node.role is Role.CORE:
            more["model"] = {"timed": "h100-8b"}
        nodes.append(replace(node, settings=node.settings | more))
    return replace(plan, nodes=tuple(nodes))


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    state = tmp_path_factory.mktemp("replicas")
    made = new_mesh(state, _plan)
    try:
        try:
            made.start()
        except ConfigError as error:
            if "in use" not in str(error):
                raise
            made.stop()  # somebody took a port in between
            made = new_mesh(state, _plan)
            made.start()
        yield made
    finally:
        made.stop()


def _tls(mesh: Mesh) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(mesh.ca_file))


async def get(mesh: Mesh, lb: str, path: str) -> Any:
    """A document of a load balancer; None if it does not answer."""
    url = f"https://{mesh.plan.node(lb).settings['http']['listen']}{path}"
    context = _tls(mesh)

    def fetch() -> Any:
        try:
            with urllib.request.urlopen(url, context=context, timeout=2) as answer:
                return json.load(answer)
        except OSError:
            return None

    return await asyncio.to_thread(fetch)


async def draining(mesh: Mesh, lb: str) -> list[str]:
    """What a load balancer has on its list."""
    url = f"http://{mesh.plan.node(lb).settings['admin']}/v1/drain"

    def fetch() -> list[str]:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return list(json.load(answer)["draining"])

    return await asyncio.to_thread(fetch)


async def drain(mesh: Mesh, lb: str, node: str, wanted: bool = True) -> Mapping[str, Any]:
    url = f"http://{mesh.plan.node(lb).settings['admin']}/v1/drain"
    body = json.dumps({"node": node, "drain": wanted}).encode()
    request = urllib.request.Request(url, body, {"content-type": "application/json"})

    def post() -> Mapping[str, Any]:
        with urllib.request.urlopen(request, timeout=5) as answer:
            told: Mapping[str, Any] = json.load(answer)
            return told

    return await asyncio.to_thread(post)


async def nodes(mesh: Mesh, lb: str) -> dict[str, Mapping[str, Any]]:
    found = await get(mesh, lb, "/v1/mesh")
    return {} if found is None else {node["node"]: node for node in found["data"]}


async def until(true: Callable[[], Any], timeout_s: float = 20.0) -> float:
    """Seconds until `true`, which is asynchronous, says so."""
    begun = monotonic_s()
    while not await true():
        assert monotonic_s() - begun < timeout_s, "did not come true in time"
        await asyncio.sleep(0.05)
    return monotonic_s() - begun


async def asked(mesh: Mesh, edge: int = 0) -> Asked:
    return await ask(mesh.plan.edges[edge].url, SHORT, http="2", ca_file=mesh.ca_file)


def kill(mesh: Mesh, name: str) -> None:
    mesh.may_end.add(name)
    mesh.kill(name)


def start(mesh: Mesh, *names: str) -> None:
    for name in names:
        mesh.start_node(name)
    mesh.wait_ready(names)
    mesh.may_end -= set(names)


@dataclass
class Load:
    """Requests at both edges, one after the other."""

    answered: int = 0
    failures: list[str] = field(default_factory=list)


@asynccontextmanager
async def under_load(mesh: Mesh) -> AsyncIterator[Load]:
    load = Load()

    async def go_on(edge: int) -> None:
        while True:
            try:
                reply = (await asked(mesh, edge)).reply
                assert len(reply.token_ids) == SHORT.max_tokens
                load.answered += 1
            except Exception as error:
                load.failures.append(repr(error))

    going = [asyncio.create_task(go_on(edge)) for edge in (0, 1)]
    try:
        yield load
    finally:
        for task in going:
            task.cancel()
        await asyncio.gather(*going, return_exceptions=True)


async def answered_more(load: Load, count: int) -> None:
    wanted = load.answered + count

    async def there() -> bool:
        return load.answered >= wanted

    await until(there, 30.0)


async def test_nothing_fails_while_load_balancers_and_redis_are_killed(mesh: Mesh) -> None:
    async with under_load(mesh) as load:
        await answered_more(load, 4)
        for name in LBS:
            kill(mesh, name)
            await answered_more(load, 6)
        for valkey in mesh.valkeys.values():
            valkey.kill()
        await asyncio.sleep(2.5)  # until nothing that was told counts as fresh
        await answered_more(load, 6)
        await asyncio.to_thread(start, mesh, *LBS)
        await asyncio.to_thread(mesh.start_valkeys)
        await answered_more(load, 6)
    assert load.failures == []


async def test_a_new_replica_soon_has_the_full_view(mesh: Mesh) -> None:
    kill(mesh, "lb-2")
    await asyncio.sleep(3.0)  # nodes try again as seldom as they ever do
    await asyncio.to_thread(start, mesh, "lb-2")

    async def whole() -> bool:
        return (await nodes(mesh, "lb-2")).keys() == NODES

    assert await until(whole) < 4.0, "2 s, and what a busy machine adds"


async def test_both_replicas_tell_the_same_rows_and_signals(mesh: Mesh) -> None:
    async def told() -> bool:
        for lb in LBS:
            rows, scale = [await get(mesh, lb, path) for path in ("/v1/spill", "/v1/scale")]
            if not rows or set(rows["rows"]) != {"eu", "us"}:
                return False
            if not scale or not all(region["offered_per_s"] for region in scale["data"]):
                return False
        return True

    async with under_load(mesh):
        await until(told, 40.0)
        for lb in LBS:
            rows = (await get(mesh, lb, "/v1/spill"))["rows"]
            assert {region: rows[region]["shares"] for region in rows} == {
                "eu": {"eu": 1.0},
                "us": {"us": 1.0},
            }
            scale = {one["region"]: one for one in (await get(mesh, lb, "/v1/scale"))["data"]}
            assert scale["eu"]["cores"] == 1
            assert scale["eu"]["offered_per_s"] > 0
            assert scale["eu"]["ttft"]["interactive"]["promised_ms"] == 1000.0


async def test_a_core_that_falls_silent_is_suspect_for_both_replicas(mesh: Mesh) -> None:
    core = mesh.children["core-us"].process
    core.send_signal(19)  # SIGSTOP: it is there, and says nothing

    async def suspected() -> bool:
        found = [await nodes(mesh, lb) for lb in LBS]
        return all(one.get("core-us", {"suspect": True})["suspect"] for one in found)

    async def well() -> bool:
        found = [await nodes(mesh, lb) for lb in LBS]
        return all("core-us" in one and not one["core-us"]["suspect"] for one in found)

    try:
        await until(well)
        assert await until(suspected) < 4.0, "1.6 s, and what a busy machine adds"
        assert (await asked(mesh, 1)).summary()["region"] == "eu"
    finally:
        core.send_signal(18)
    await until(well)


async def test_a_node_that_is_to_drain_stays_so_when_everything_restarts(mesh: Mesh) -> None:
    async def goes_to(core: str) -> bool:
        return (await asked(mesh, 0)).summary()["core"] == core

    async def spared() -> bool:
        return await goes_to("core-us")

    async def used() -> bool:
        return await goes_to("core-eu")

    async def drains() -> bool:
        told = [await draining(mesh, lb) for lb in LBS]
        found = [await nodes(mesh, lb) for lb in LBS]
        return told == [["core-eu"]] * 2 and all(
            one["core-eu"]["load"]["draining"] for one in found
        )

    told = await drain(mesh, "lb-2", "core-eu")
    assert told["draining"] == ["core-eu"]
    assert told["kept"] == "redis"
    await until(spared)
    for name in LBS:
        kill(mesh, name)
    assert await spared()
    await asyncio.to_thread(start, mesh, *LBS)
    await until(_whole(mesh))
    await until(drains)
    await asyncio.sleep(1.0)
    assert await drains()
    assert await spared()
    assert (await drain(mesh, "lb", "core-eu", False))["draining"] == []
    await until(used)


def _whole(mesh: Mesh) -> Callable[[], Any]:
    async def whole() -> bool:
        found = [await nodes(mesh, lb) for lb in LBS]
        return all(one.keys() == NODES for one in found)

    return whole


async def test_without_redis_a_drain_is_kept_in_memory_and_that_is_said(mesh: Mesh) -> None:
    valkey = mesh.valkeys["valkey-eu"]
    valkey.kill()
    assert valkey.wait(10)
    try:
        told = await drain(mesh, "lb", "core-us")
        assert told["draining"] == ["core-us"]
        assert told["kept"] == "memory"
    finally:
        await asyncio.to_thread(mesh.start_valkeys)

    async def kept() -> bool:
        return (await drain(mesh, "lb", "core-us", False))["kept"] == "redis"

    await until(kept)


def drain_command(mesh: Mesh, *arguments: str) -> subprocess.CompletedProcess[str]:
    at = str(mesh.plan.node("lb").settings["admin"])
    command = [sys.executable, "-m", "firstlight", "drain", "--at", at, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_an_operator_drains_by_a_command(mesh: Mesh) -> None:
    done = drain_command(mesh, "core-us")
    assert (done.returncode, done.stdout) == (0, "to drain: core-us\n"), done.stderr
    undone = drain_command(mesh, "core-us", "--undo", "--json")
    assert json.loads(undone.stdout)["draining"] == []


def test_a_node_that_nobody_knows_cannot_be_drained(mesh: Mesh) -> None:
    done = drain_command(mesh, "core-eü")
    assert done.returncode == 1
    assert "no node 'core-eü' lives" in done.stderr


async def test_whom_to_drain_is_not_asked_of_clients(mesh: Mesh) -> None:
    address = mesh.plan.node("lb").settings["http"]["listen"]
    async with httpx.AsyncClient(verify=_tls(mesh)) as client:
        answer = await client.post(f"https://{address}/v1/drain", json={"node": "core-eu"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


async def test_what_is_asked_wrongly_of_an_operators_listener_is_said(mesh: Mesh) -> None:
    url = f"http://{mesh.plan.node('lb').settings['admin']}/v1/drain"
    async with httpx.AsyncClient() as client:
        for body, param in (
            ({}, "node"),
            ({"node": ""}, "node"),
            ({"node": "x" * 500}, "node"),
            ({"node": "core-eu", "drain": "perhaps"}, "drain"),
            ({"node": "core-eu", "all": True}, "all"),
        ):
            answer = await client.post(url, json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
