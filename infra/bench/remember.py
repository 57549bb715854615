"""What a core that remembers, or asks another one, saves of the time to the first token.

    python -m firstlight.infra.bench.remember [--tokens 2048] [--trials 3] [--links 0 50 5]
                                              [--restart] [--seed 1]

Two cores of one region and a Valkey. Core A is asked a prompt of random ids, then core B the same:
beside it stands the time that B takes for a prompt that nobody has seen. `--links` are bandwidths
between the two in Mbit/s, 0 for loopback as it is. `fetch alone` is arithmetic: the bytes over the
bandwidth, the least that a fetch without computing could take. `--restart` asks a core with a disk
tier, starts it anew and asks again. The bars are judged by medians; the ids must always be equal.
"""

import argparse
import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from firstlight.infra.bench.direct import DirectLink, Told, direct_link
from firstlight.infra.bench.machine import heading
from firstlight.infra.bench.slow_link import SlowLink
from firstlight.infra.mesh import Mesh, new_mesh
from firstlight.infra.mesh_config import HOST, MeshPlan, NodePlan, Ports
from firstlight.infra.valkey import ValkeyPlan
from firstlight.shared.blocks import BLOCK_TOKENS
from firstlight.shared.config import state_dir
from firstlight.shared.types import Role

TOLD_S = 1.0
"""How long the index may take to hear of a prefix."""
JOINED_S = 2.0
SAVED_S = 6.0
"""How long a core may take to save a prefix once it is idle."""
BLOCK_BYTES = 737_280
"""Of the small model: 30 layers, keys and values, 3 heads of 64, 16 tokens, float32."""
FAST_SHARE_MAX, SLOW_SHARE_MAX, RESTART_SHARE_MAX = 0.35, 1.1, 0.4
VOCAB = 49_152


def cores_plan(ports: Ports, *, relay: bool, disk: Path | None = None) -> tuple[MeshPlan, int]:
    """(a load balancer, two cores and an index server in one region, port of the relay to A)."""
    http, control, one, other, valkey, relayed = ports(6)
    join = f"{HOST}:{control}"
    lb = {"http": {"listen": f"{HOST}:{http}"}, "control": {"listen": join}}
    nodes = [NodePlan("lb", Role.LB, "eu", lb)]
    for name, port in (("core-a", one), ("core-b", other)):
        settings: dict[str, Any] = {
            "listen": f"{HOST}:{port}",
            "load_balancers": [join],
            "drain_s": 2.0,
            "model": {"threads": 1},
        }
        if relay and name == "core-a":
            settings["advertise"] = f"{HOST}:{relayed}"
        if disk is not None:
            settings["kv"] = {"disk": {"directory": str(disk / name)}}
        nodes.append(NodePlan(name, Role.CORE, "eu", settings))
    plan = MeshPlan(
        tuple(nodes), f"https://{HOST}:{http}", (), (ValkeyPlan("valkey", "eu", HOST, valkey),)
    )
    return plan, relayed


@dataclass(frozen=True, slots=True)
class Cores:
    """Two cores that run, and a link to each."""

    mesh: Mesh
    a: DirectLink
    b: DirectLink


@asynccontextmanager
async def cores(mbit_s: float, disk: Path | None = None) -> AsyncIterator[Cores]:
    """Start them, with a relay of this bandwidth before A unless it is 0."""
    relayed = 0

    def plan(ports: Ports) -> MeshPlan:
        nonlocal relayed
        made, relayed = cores_plan(ports, relay=mbit_s > 0, disk=disk)
        return made

    mesh = new_mesh(state_dir(), plan)
    async with AsyncExitStack() as stack:
        stack.callback(mesh.stop)
        await asyncio.to_thread(_start, mesh, mesh.plan.names)
        addresses = {n: mesh.plan.node(n).settings["listen"] for n in ("core-a", "core-b")}
        if mbit_s > 0:
            port = int(addresses["core-a"].rpartition(":")[2])
            await stack.enter_async_context(SlowLink(relayed, port, mbit_s * 1e6))
        links = [
            await stack.enter_async_context(direct_link(where, name, mesh.state))
            for name, where in addresses.items()
        ]
        await asyncio.sleep(JOINED_S)
        yield Cores(mesh, *links)


def _start(mesh: Mesh, names: Sequence[str]) -> None:
    mesh.start_valkeys()
    for name in names:
        mesh.start_node(name)
    mesh.wait_ready(list(names))


async def over_link(mbit_s: float, tokens: int, trials: int, rng: random.Random) -> dict[str, Any]:
    """Recompute and shared, over one bandwidth."""
    recompute: list[float] = []
    shared: list[Told] = []
    same = True
    async with cores(mbit_s) as running:
        for trial in range(trials):
            fresh = await running.b.ask(_prompt(tokens, rng))
            prompt, seed = _prompt(tokens, rng), rng.randrange(1 << 31)
            first = await running.a.ask(prompt, seed=seed)
            await asyncio.sleep(TOLD_S)
            second = await running.b.ask(prompt, seed=seed)
            same = same and first.ids == second.ids
            recompute.append(fresh.ttft_ms)
            shared.append(second)
            print(
                f"  {mbit_s:g} Mbit/s, trial {trial + 1}: recompute {fresh.ttft_ms:.0f} ms, shared "
                f"{second.ttft_ms:.0f} ms with {second.cached_tokens} tokens cached, "
                f"same {first.ids == second.ids}",
                flush=True,
            )
    bytes_all = (tokens - 1) // BLOCK_TOKENS * BLOCK_BYTES
    alone_ms = bytes_all * 8 / (mbit_s * 1e3) if mbit_s else 0.0
    computed, told = median(recompute), median(one.ttft_ms for one in shared)
    better = min(computed, alone_ms) if mbit_s else computed
    limit = SLOW_SHARE_MAX if mbit_s else FAST_SHARE_MAX
    return {
        "link_mbit_s": mbit_s or "loopback",
        "recompute_ms": round(computed),
        "fetch_alone_ms": round(alone_ms) if mbit_s else None,
        "shared_ms": round(told),
        "share": round(told / better, 3),
        "limit": limit,
        "same": same,
        "ok": same and told <= limit * better,
    }


async def after_restart(tokens: int, trials: int, rng: random.Random) -> dict[str, Any]:
    """Cold, and after a restart that found its disk."""
    with TemporaryDirectory() as disk:
        return await _restarts(Path(disk), tokens, trials, rng)


async def _restarts(disk: Path, tokens: int, trials: int, rng: random.Random) -> dict[str, Any]:
    cold: list[float] = []
    warm: list[float] = []
    same = True
    async with cores(0, disk) as running:
        mesh = running.mesh
        where = mesh.plan.node("core-a").settings["listen"]
        for trial in range(trials):
            prompt, seed = _prompt(tokens, rng), rng.randrange(1 << 31)
            async with direct_link(where, "core-a", mesh.state) as link:
                first = await link.ask(prompt, seed=seed)
                await asyncio.sleep(SAVED_S)
            await asyncio.to_thread(_restart, mesh, "core-a", hard=trial % 2 == 1)
            async with direct_link(where, "core-a", mesh.state) as link:
                second = await link.ask(prompt, seed=seed)
            same = same and first.ids == second.ids
            cold.append(first.ttft_ms)
            warm.append(second.ttft_ms)
            print(
                f"  restart {trial + 1}: cold {first.ttft_ms:.0f} ms, then {second.ttft_ms:.0f} ms "
                f"with {second.cached_tokens} tokens cached, same {first.ids == second.ids}",
                flush=True,
            )
    share = median(warm) / median(cold)
    return {
        "cold_ms": round(median(cold)),
        "restarted_ms": round(median(warm)),
        "share": round(share, 3),
        "limit": RESTART_SHARE_MAX,
        "same": same,
        "ok": same and share <= RESTART_SHARE_MAX,
    }


def _restart(mesh: Mesh, name: str, *, hard: bool) -> None:
    """Every second time as a crash would."""
    child = mesh.children[name]
    if hard:
        mesh.kill(name)
    else:
        child.terminate()
        child.wait(20.0)
        mesh.children.pop(name)
    child.wait(5.0)
    mesh.start_node(name)
    mesh.wait_ready([name])


def _prompt(tokens: int, rng: random.Random) -> list[int]:
    return [rng.randrange(VOCAB) for _ in range(tokens)]


async def run(options: argparse.Namespace) -> bool:
    """All that was asked for; whether every bar is met."""
    rng = random.Random(options.seed)
    results = [await over_link(link, options.tokens, options.trials, rng) for link in options.links]
    if options.restart:
        results.append(await after_restart(options.tokens, options.trials, rng))
    for result in results:
        print(json.dumps(result))
    return all(result["ok"] for result in results)


def main() -> int:
    """The command; exit code 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--links", type=float, nargs="*", default=[0.0, 50.0, 5.0])
    parser.add_argument("--restart", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(heading(), flush=True)
    return 0 if asyncio.run(run(options)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
