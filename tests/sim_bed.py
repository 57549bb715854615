"""A small mesh in simulated time, and requests for it."""

from random import Random

from firstlight.infra.bench.load.schedule import Arrival
from firstlight.infra.sim.core import CoreSpec
from firstlight.infra.sim.matrix import GORGO, Matrix
from firstlight.infra.sim.setup import Setup
from firstlight.infra.sim.workload import Asked, placed
from firstlight.shared.engine.steptable import H100_8B

SPEC = CoreSpec(H100_8B, pool_tokens=60_000, sequences_max=8, waiting_max=8, prefill_chunk=2048)
ONE_REGION = Matrix("one", ("here",), ((10.0,),))


def arrivals(count: int = 60, *, seed: int = 1, rate: float = 20.0) -> tuple[Arrival, ...]:
    """Sessions of a few turns; each turn's prompt begins as the one before."""
    rng, at_s, made = Random(seed), 0.0, []
    chains: dict[int, list[int]] = {}
    for number in range(count):
        at_s += rng.expovariate(rate)
        chain = chains.setdefault(rng.randrange(12), [0])
        chain += [number * 100 + n + 1 for n in range(rng.randrange(1, 5))]
        tokens = len(chain) * 512 - rng.randrange(500)
        made.append(Arrival(at_s, tokens, rng.randrange(1, 80), tuple(chain)))
    return tuple(made)


def asked(
    count: int = 60, *, seed: int = 1, rate: float = 20.0, regions: int = 3
) -> tuple[Asked, ...]:
    """The same, with regions."""
    return placed(arrivals(count, seed=seed, rate=rate), regions, Random(seed))


def mesh(matrix: Matrix = GORGO, *, cores: int = 2, edges: int = 2, **more: object) -> Setup:
    """A few cores and edges in each region."""
    return Setup(matrix, cores, edges, SPEC, **more)  # type: ignore[arg-type]
