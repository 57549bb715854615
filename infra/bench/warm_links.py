"""How long a prompt of 128 KB is on its way from an edge to a far core, with and without padding.

    python -m firstlight.infra.bench.warm_links [--rtt-ms 140] [--idle-s 60] [--repeat 3]
                                                [--congestion-control reno]

A laboratory (root, Linux) with an edge and a timed core at this distance, once without padding and
once with it. Prompts of 43,700 ids, 131 KB as a message: the first one just after the start, then
some at once, then each after a while without requests. The way is from the moment at which the edge
hands the message over to the core's own first mark, both taken from the request's timeline: first
commit at the edge, less what the core took until then by its own clock, less half a round trip.
Exit code 1 if a prompt, warmed, took more than 1.3 round trips after the while.
"""

import argparse
import asyncio
import json
import random
import tempfile
import threading
from pathlib import Path
from typing import Any

import yaml

from firstlight.infra.bench.machine import heading, percentile
from firstlight.infra.client.client import open_client
from firstlight.infra.client.response import Client
from firstlight.infra.lab.lab import Lab, start_lab
from firstlight.infra.lab.plan import KEY
from firstlight.shared.errors import PeerError

IDS = 43_700
"""So many of three bytes each."""
FIRST_ID, LAST_ID = 16_500, 49_000
"""Ids of the packaged vocabulary that take three bytes on the wire."""
ROUND_TRIPS_MAX = 1.3
SETTLE_S = 2.0
HEADERS = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
ENGINE = {"blocks": 8192, "host_blocks": 0, "context_max": 65_536}
CHUNKS = {"step_tokens_max": 8192, "prefill_chunk": 8192}


def topology(rtt_ms: float, padding_bytes_per_s: int, tcp: dict[str, Any]) -> dict[str, Any]:
    """An edge beside the user, all else far away."""
    core = {"model": {"timed": "h100-8b"}, "engine": ENGINE | CHUNKS}
    links = {"links": {"padding_bytes_per_s": padding_bytes_per_s}}
    return {
        "tcp": tcp,
        "regions": {"eu": {}, "us": {}},
        "nodes": {
            "lb": {"role": "lb", "region": "us"},
            "edge": {"role": "edge", "region": "eu", "settings": links},
            "core": {"role": "core", "region": "us", "settings": core},
            "user": {"role": "client", "region": "eu"},
        },
        "links": [{"between": ["eu", "us"], "rtt_ms": rtt_ms}],
    }


async def way_ms(client: Client, model: str, rtt_ms: float, rng: random.Random) -> float:
    """One prompt that nobody asked before. Raises `PeerError` if it is not answered."""
    prompt = [rng.randrange(FIRST_ID, LAST_ID) for _ in range(IDS)]
    asked = {"model": model, "prompt": prompt, "max_tokens": 2, "temperature": 0}
    answer = await client.request("POST", "/v1/completions", HEADERS, json.dumps(asked).encode())
    if answer.status != 200:
        raise PeerError(f"HTTP {answer.status}: {answer.body[:200]!r}")
    told = await client.request("GET", f"/v1/requests/{json.loads(answer.body)['id']}", HEADERS)
    at: dict[str, float] = {}
    for entry in json.loads(told.body)["entries"]:
        at.setdefault(entry["what"], entry.get("core_ms", entry["ms"]))
    return at["first commit"] - at["opened"] - at["first id"] - rtt_ms / 2


async def measure(url: str, ca_file: Path, given: argparse.Namespace) -> dict[str, Any]:
    """The ways of all prompts against one mesh, ms."""
    rng = random.Random(given.seed)
    async with open_client(url, "2", ca_file=ca_file) as client:
        listed = await client.request("GET", "/v1/models", HEADERS)
        model = json.loads(listed.body)["data"][0]["id"]
        await asyncio.sleep(SETTLE_S)

        async def ways(count: int, after_s: float) -> list[float]:
            found = []
            for _ in range(count):
                await asyncio.sleep(after_s)
                found.append(await way_ms(client, model, given.rtt_ms, rng))
            return found

        return {
            "first_ms": round((await ways(1, 0.0))[0], 1),
            "second_ms": round((await ways(1, 0.0))[0], 1),
            "later_p50_ms": round(percentile(await ways(given.repeat, 0.0), 50), 1),
            "after_idle_ms": [round(ms, 1) for ms in await ways(given.repeat, given.idle_s)],
        }


def inside(lab: Lab, given: argparse.Namespace) -> dict[str, Any]:
    """Measure from the user's place, in a thread that is there."""
    found: list[dict[str, Any]] = []
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            with lab.inside("user"):
                url = lab.mesh.plan.edges[0].url
                found.append(asyncio.run(measure(url, lab.mesh.ca_file, given)))
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if wrong:
        raise wrong[0]
    return found[0]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, prog="warm_links")
    parser.add_argument("--rtt-ms", type=float, default=140.0)
    parser.add_argument("--idle-s", type=float, default=60.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--congestion-control", default=None)
    parser.add_argument("--padding-bytes-per-s", type=int, default=64 << 10)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(heading(), flush=True)
    tcp = {"congestion_control": given.congestion_control, "slow_start_after_idle": True}
    figures: dict[str, Any] = {"rtt_ms": given.rtt_ms, "idle_s": given.idle_s, **tcp}
    for name, padding in (("cold", 0), ("padded", given.padding_bytes_per_s)):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "topology.yaml"
            file.write_text(yaml.safe_dump(topology(given.rtt_ms, padding, tcp)), "utf-8")
            with start_lab(file, Path(folder)) as lab:
                figures[name] = inside(lab, given)
        print(f"  {name}: {figures[name]}", flush=True)
    print(json.dumps(figures))
    worst_ms = max([figures["padded"]["first_ms"], *figures["padded"]["after_idle_ms"]])
    return 1 if worst_ms > ROUND_TRIPS_MAX * given.rtt_ms else 0


if __name__ == "__main__":
    raise SystemExit(main())
