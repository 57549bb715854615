"""Regions that lend each other room, in virtual time: what is shed, and how often a share turns."""

from collections import deque
from itertools import pairwise
from math import pi, sin
from random import Random

import pytest
from queue_bed import Edge, Server, World

from firstlight.shared.routing.choose import SHED, Cores, choose
from firstlight.shared.routing.rank import Wanted
from firstlight.shared.routing.spill import RegionSupply
from firstlight.shared.routing.spill_step import Spill, step

REGIONS = ("lon", "nyc", "par")
RTT_MS = {
    (a, b): ms
    for one, other, ms in (("lon", "nyc", 72.0), ("lon", "par", 9.0), ("nyc", "par", 79.0))
    for a, b in ((one, other), (other, one))
}
PLACES, CORES = 8, 3
CAPACITY = PLACES * CORES
"""Requests a second of a region: each takes one second of a place."""
SUPPLY = {region: RegionSupply(CAPACITY, 1.0) for region in REGIONS}
AVERAGE_S = 10


def busy(now: float) -> dict[str, float]:
    """Days and nights of two minutes, one after the other: 0.83 of all capacity in all."""
    waves = {
        region: 1.0 + 0.9 * sin(2 * pi * (now / 120.0 + n / 3)) for n, region in enumerate(REGIONS)
    }
    return {
        region: 0.83 * 3 * CAPACITY * wave / sum(waves.values()) for region, wave in waves.items()
    }


class Mesh:
    """One edge a region, and a load balancer that hears of demand `delay_s` late."""

    def __init__(self, delay_s: int, seed: int) -> None:
        self.rng = Random(seed)
        self.servers = [
            Server(f"{region}-{n}", region, places=PLACES, room=2 * PLACES)
            for region in REGIONS
            for n in range(CORES)
        ]
        self.world = World(self.servers, [Edge.of(n, self.servers) for n in range(len(REGIONS))])
        self.world.speak(self.rng)
        self.spill = Spill()
        self.sent = self.shed = 0
        self.homes: list[float] = []
        self._arrived: list[dict[str, int]] = [dict.fromkeys(REGIONS, 0)]
        self._told: deque[dict[str, float]] = deque(maxlen=delay_s + 1)

    def run(self, seconds: int) -> None:
        self.world.at(1.0, self._balance)
        for number in range(len(REGIONS)):
            self.world.at(0.0, lambda number=number: self._arrive(number))  # type: ignore[misc]
        self.world.run(float(seconds))

    def _arrive(self, number: int) -> None:
        home, edge, now = REGIONS[number], self.world.edges[number], self.world.now
        self._arrived[-1][home] += 1
        wanted = Wanted(home, 1, model="m", spill=self.spill.table.get(home))
        states = edge.states(
            self.servers, now, lambda server: RTT_MS.get((home, server.region), 1.0)
        )
        route = choose(Cores.of(states), wanted, self.rng)
        self.sent += 1
        if not route.candidates or route.reason.startswith(SHED):
            self.shed += 1
        else:
            names = [server.name for server in self.servers]
            place = names.index(route.candidates[0].core)
            self.world.send(edge, place, self.rng.uniform(0.5, 1.5))
        self.world.at(now + self.rng.expovariate(busy(now)[home]), lambda: self._arrive(number))

    def _balance(self) -> None:
        lately = self._arrived[-AVERAGE_S:]
        average = {r: sum(second[r] for second in lately) / len(lately) for r in REGIONS}
        self._told.append(average)
        self._arrived.append(dict.fromkeys(REGIONS, 0))
        self.spill = step(self.spill, self._told[0], SUPPLY, RTT_MS, self.world.now)
        self.homes.append(self.spill.table["lon"].share("lon"))
        self.world.at(self.world.now + 1.0, self._balance)


@pytest.mark.parametrize(("delay_s", "seed"), [(1, 1), (3, 2), (10, 3)])
def test_nothing_is_shed_below_85_percent_however_demand_wanders(delay_s: int, seed: int) -> None:
    mesh = Mesh(delay_s, seed)
    mesh.run(130)
    assert mesh.sent > 7_000
    assert mesh.shed == 0
    assert min(mesh.homes) < 0.9, "nothing had to be lent"


def turns(shares: list[float]) -> int:
    """How often a share that fell begins to rise, or the other way."""
    moves = [b - a for a, b in pairwise(shares) if abs(b - a) > 1e-6]
    return sum((a < 0) != (b < 0) for a, b in pairwise(moves))


@pytest.mark.parametrize("delay_s", [1, 3, 10])
@pytest.mark.parametrize("seed", range(5))
def test_after_a_step_of_demand_a_share_turns_at_most_twice(delay_s: int, seed: int) -> None:
    rng, spill, shares = Random(seed), Spill(), []
    seen: deque[float] = deque(maxlen=AVERAGE_S)
    told: deque[float] = deque(maxlen=delay_s + 1)
    for second in range(180):
        rate = 60.0 if second < 30 else 130.0
        seen.append(rng.gauss(rate, rate**0.5))  # as many as come by chance
        told.append(sum(seen) / len(seen))
        demand = {"lon": told[0], "nyc": 40.0, "par": 40.0}
        supply = dict.fromkeys(REGIONS, RegionSupply(100.0, 1.0))
        spill = step(spill, demand, supply, RTT_MS, float(second))
        shares.append(spill.table["lon"].share("lon"))
    assert shares[-1] == pytest.approx(85 / 130, abs=0.1)
    assert turns(shares[30:]) <= 2
