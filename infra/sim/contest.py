"""Rules against each other on the same requests, each at its best.

Each way of a rule (everywhere, nearby) gets the best of its knob's values, found on the first part
of the requests with another seed; then all is run, and the way with the lower p95 counts.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random

from firstlight.infra.bench.load.schedule import Arrival
from firstlight.infra.sim.figures import Figures, figures
from firstlight.infra.sim.rules import Way, knobs, ways
from firstlight.infra.sim.setup import Setup
from firstlight.infra.sim.simulation import Run, simulate
from firstlight.infra.sim.workload import Asked, at_load, placed
from firstlight.shared.errors import ConfigError

TUNING_SEED = 1_000_003
"""Added to a seed: a knob is not to be tuned to the draw that it is judged on."""


@dataclass(frozen=True, slots=True)
class Course:
    """What all rules have to run."""

    arrivals: tuple[Arrival, ...]
    setup: Setup
    load: float
    diurnal: float = 0.0
    speed: float | None = None
    """None: what the load makes of it."""

    def asked(self, seed: int) -> tuple[tuple[Asked, ...], float]:
        """The requests of one draw, and how much faster than in the trace they come."""
        rng = Random(f"{seed} regions")
        regions = len(self.setup.matrix.regions)
        asked = placed(self.arrivals, regions, rng, diurnal=self.diurnal)
        if self.speed is not None:
            sped = tuple(replace(one, at_s=one.at_s / self.speed) for one in asked)
            return sped, self.speed
        return at_load(asked, self.load, self.setup.servers, self.setup.spec)

    def part(self, requests: int) -> "Course":
        """Its first requests."""
        return replace(self, arrivals=self.arrivals[:requests])

    def run(self, way: Way, seed: int) -> Run:
        """One rule, one draw."""
        asked, _ = self.asked(seed)
        return simulate(asked, way.make, self.setup.with_seed(seed))


@dataclass(frozen=True, slots=True)
class Result:
    """A rule at its best."""

    way: Way
    """Of the first seed."""
    figures: Figures
    """Of all seeds together."""
    each: tuple[tuple[int, Way, Figures], ...]
    """By seed."""
    first: Run
    """Of the first seed, for plots."""


Map = Callable[..., Iterable[tuple[Figures, Run]]]


@contextmanager
def workers(jobs: int) -> Iterator[Map]:
    """A `map` over so many processes; one: over none."""
    if jobs < 2:
        yield map
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield pool.map


def contest(
    course: Course,
    rules: Sequence[str],
    seeds: Sequence[int],
    *,
    tune_requests: int,
    spread: Map = map,
) -> dict[str, Result]:
    """Every rule over every seed."""
    if not seeds:
        raise ConfigError("no seed")
    found: dict[str, list[tuple[int, Way, Figures, Run]]] = {rule: [] for rule in rules}
    for seed in seeds:
        best = _tuned(course.part(tune_requests), rules, seed + TUNING_SEED, spread)
        tasks = [(course, way, seed) for way in best]
        for way, (told, run) in zip(best, spread(_task, tasks), strict=True):
            found[way.rule].append((seed, way, told, run))
    return {rule: _result(runs, seeds) for rule, runs in found.items()}


def _tuned(part: Course, rules: Sequence[str], seed: int, spread: Map) -> list[Way]:
    """Each way of each rule with the best value of its knob."""
    each = [[Way(r, near, knob) for knob in knobs(r)] for r in rules for near in ways(r)]
    open_ones = [way for some in each for way in some if len(some) > 1]
    tasks = [(part, way, seed) for way in open_ones]
    told = dict(zip(open_ones, (f for f, _ in spread(_task, tasks)), strict=True))
    return [min(some, key=lambda way: _score(told[way])) if some[1:] else some[0] for some in each]


def _result(runs: list[tuple[int, Way, Figures, Run]], seeds: Sequence[int]) -> Result:
    """For each seed the better way counts."""
    best = [
        min((one for one in runs if one[0] == seed), key=lambda one: _score(one[2]))
        for seed in seeds
    ]
    return Result(
        way=best[0][1],
        figures=figures([run for _, _, _, run in best]),
        each=tuple((seed, way, told) for seed, way, told, _ in best),
        first=best[0][3],
    )


def _score(told: Figures) -> tuple[float, int, float]:
    return told.ttft_p95_ms, told.refused, told.ttft_p50_ms


def _task(task: tuple[Course, Way, int]) -> tuple[Figures, Run]:
    course, way, seed = task
    run = course.run(way, seed)
    return figures([run]), run
