"""What the edge and the link add to the engine's own time to first token, one stream, loopback.

    python -m firstlight.infra.bench.overhead [--requests 40] [--seed 1]

Engine: from the arrival of the request at the engine to its first id, as the core reports it (queue
+ prefill). Client: from sending the request on an open connection to the first byte of text. The
difference is everything between: HTTP, the chat template, tokenizing, routing, the link both ways,
detokenizing, and the event back. Every prompt is new, so that no prefix is cached beyond the
template's.
"""

import argparse
import asyncio
import json
import random

from firstlight.infra.bench.machine import heading, loop_ms, percentile
from firstlight.infra.chat import Question
from firstlight.infra.client.client import open_client
from firstlight.infra.client.response import Client, HttpVersion
from firstlight.infra.mesh import Mesh, start_mesh
from firstlight.infra.reply import Reply
from firstlight.shared.clock import monotonic_s
from firstlight.shared.config import state_dir

WARM_UP = 3
VERSIONS: tuple[HttpVersion, ...] = ("3", "2", "1")
WORDS = ("river", "stone", "lamp", "north", "paper", "winter", "green", "engine", "salt", "mirror")


async def one(client: Client, rng: random.Random) -> tuple[float, float]:
    """(client's TTFT, the engine's own), ms, of one request."""
    words = " ".join(rng.choice(WORDS) for _ in range(12))
    body = Question(f"Use these words: {words}.", seed=rng.randrange(1 << 31), max_tokens=4).body()
    headers = {"content-type": "application/json"}
    reply, first_s = Reply(), None
    begun_s = monotonic_s()
    async with client.stream(
        "POST", "/v1/chat/completions", headers=headers, body=body
    ) as response:
        async for event in response.events():
            if reply.feed(event.data, monotonic_s()) and first_s is None:
                first_s = monotonic_s()
    reply.close()
    parts = reply.details["ttft_ms"]
    return ((first_s or monotonic_s()) - begun_s) * 1e3, parts["queue"] + parts["prefill"]


async def measure(mesh: Mesh, requests: int, seed: int) -> dict[str, dict[str, float]]:
    """Medians by HTTP version."""
    rng, edge = random.Random(seed), mesh.plan.edges[0]
    figures = {}
    for http in VERSIONS:
        async with open_client(edge.url, http, ca_file=mesh.ca_file) as client:
            times = [await one(client, rng) for _ in range(WARM_UP + requests)][WARM_UP:]
        added = [total - engine for total, engine in times]
        figures[f"h{http}"] = {
            "client_ttft_p50_ms": round(percentile([total for total, _ in times], 50), 2),
            "engine_ttft_p50_ms": round(percentile([engine for _, engine in times], 50), 2),
            "added_p50_ms": round(percentile(added, 50), 2),
            "added_p95_ms": round(percentile(added, 95), 2),
        }
        print(f"  h{http}: {figures[f'h{http}']}", flush=True)
    return figures


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, prog="overhead")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(heading(), flush=True)
    with start_mesh(state_dir(), print) as mesh:
        figures = asyncio.run(measure(mesh, given.requests, given.seed))
    speed = {"python_loop_ms": round(loop_ms(), 1)}
    print(json.dumps({"requests": given.requests, **speed, **figures}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
