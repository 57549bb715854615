"""One system prompt in most requests: whether our rule reuses it as others do, and still spreads.

    python -m firstlight.infra.bench.hot_prefix [--policies all] [--share 0.8] [--load 0.75]
        [--requests 3000] [--seeds 3]

The simulator's requests of `infra.sim.hot_prefix` over eight cores of one region (H100, 8B) and
four edges, every rule with the best of its knob's values. Bars: hits at least nine tenths of those
of the best rule; the core that has most requests has at most 1.3 times the mean. Figures are the
same on every machine.
"""

import argparse
from random import Random

from firstlight.infra.bench.engine.report import aligned
from firstlight.infra.bench.machine import heading
from firstlight.infra.sim.contest import Course, Result, contest
from firstlight.infra.sim.hot_prefix import hot_prefix
from firstlight.infra.sim.matrix import Matrix
from firstlight.infra.sim.ours import Firstlight
from firstlight.infra.sim.report import ordered
from firstlight.infra.sim.rules import chosen
from firstlight.infra.sim.setup import Setup

HITS_MIN, UNEVEN_MAX = 0.9, 1.3
ONE_REGION = Matrix("one", ("here",), ((2.0,),))
TUNE_REQUESTS = 600


def course(requests: int, share: float, load: float) -> Course:
    """What all rules have to run."""
    arrivals = hot_prefix(requests, share, Random("hot prefix"))
    return Course(arrivals, Setup(ONE_REGION, cores=8, edges=4), load)


def _row(name: str, result: Result) -> list[str]:
    told = result.figures
    ways = "; ".join(dict.fromkeys(way.told for _, way, _ in result.each))
    ms = f"{told.ttft_p50_ms:.0f}", f"{told.ttft_p95_ms:.0f}"
    return [name, f"{told.hit_rate:.3f}", f"{told.uneven:.2f}", *ms, f"{told.refused}", ways]


def main() -> int:
    """0 if the bars hold."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--policies", default="all")
    parser.add_argument("--share", type=float, default=0.8)
    parser.add_argument("--load", type=float, default=0.75)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print(heading(), flush=True)
    results = contest(
        course(options.requests, options.share, options.load),
        list(dict.fromkeys((Firstlight.name, *chosen(options.policies)))),
        range(options.seeds),
        tune_requests=TUNE_REQUESTS,
    )
    heads = ["rule", "hits", "uneven", "TTFT p50 ms", "p95", "refused", "in which way"]
    print("\n".join(aligned([heads, *(_row(name, one) for name, one in ordered(results))])))
    ours = results[Firstlight.name].figures
    best = max(one.figures.hit_rate for one in results.values())
    held = ours.hit_rate >= HITS_MIN * best and ours.uneven <= UNEVEN_MAX
    print(f"hits {ours.hit_rate / best:.3f} of the best, uneven {ours.uneven:.2f}: held {held}")
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
