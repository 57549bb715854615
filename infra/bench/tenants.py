"""Whether a tenant can tell, by the time that an answer takes, what another tenant has asked.

    python -m firstlight.infra.bench.tenants [--trials 800] [--tokens 40] [--seed 1]

One tenant asks a prompt; then another asks the same, or one that nobody has asked, in random order.
The classifier is the time to the first token itself: its AUC is the chance that a random probe of
a known prompt is faster than one of a new prompt, and 0.5 says that the time tells nothing. Then
two tenants of one sharing group ask the same prompt: the second must find it.
"""

import argparse
import asyncio
import json
import random
from collections.abc import Sequence

from firstlight.edge_node.tenants import Salts
from firstlight.infra.bench.machine import heading
from firstlight.infra.bench.remember import VOCAB, cores
from firstlight.shared.blocks import BLOCK_TOKENS

AUC_MIN, AUC_MAX = 0.45, 0.55


def auc(known: Sequence[float], new: Sequence[float]) -> float:
    """Chance that a value of `known` is below one of `new`; equals count half."""
    wins = sum((a < b) + 0.5 * (a == b) for a in known for b in new)
    return wins / (len(known) * len(new))


async def run(options: argparse.Namespace) -> bool:
    """Whether both bars are met."""
    rng = random.Random(options.seed)
    salts = Salts(rng.randbytes(32), {"lab": ("ann", "ben")})
    known: list[float] = []
    new: list[float] = []
    hits = 0

    def prompt() -> list[int]:
        return [rng.randrange(VOCAB) for _ in range(options.tokens)]

    async with cores(0) as running:
        link = running.a
        for _ in range(options.trials):
            asked = prompt()
            await link.ask(asked, max_tokens=1, salt=salts.of("victim"))
            probes_known = rng.random() < 0.5
            probe = asked if probes_known else prompt()
            told = await link.ask(probe, max_tokens=1, salt=salts.of("curious"))
            (known if probes_known else new).append(told.ttft_ms)
            hits += told.cached_tokens > 0
        shared = prompt()
        await link.ask(shared, max_tokens=1, salt=salts.of("ann"))
        found = (await link.ask(shared, max_tokens=1, salt=salts.of("ben"))).cached_tokens
    area = auc(known, new)
    wanted = (options.tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    good = AUC_MIN <= area <= AUC_MAX and hits == 0 and found == wanted
    print(
        json.dumps(
            {
                "trials": options.trials,
                "auc": round(area, 4),
                "hits_across_tenants": hits,
                "cached_in_group": found,
                "of": wanted,
                "ok": good,
            }
        )
    )
    return good


def main() -> int:
    """The command; exit code 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=800)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(heading(), flush=True)
    return 0 if asyncio.run(run(options)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
