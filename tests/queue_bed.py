"""Servers with places and a queue, and edges that choose among them, in virtual time."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random

from firstlight.shared.routing.choose import Cores, choose
from firstlight.shared.routing.cost import CoreState
from firstlight.shared.routing.rank import Wanted
from firstlight.shared.types import Load, Route

STEP_S = 0.05
HEARTBEAT_STEPS = 5
"""A server tells those whose requests run there of its load with each step, and all each 250 ms."""


@dataclass
class Server:
    """Serves `places` requests at a time, `slower` times slower than others, first come first."""

    name: str
    region: str = "home"
    places: int = 4
    slower: float = 1.0
    room: int = 64
    mean_s: float = 1.0
    prefill_ms: float = 0.001
    running: int = 0
    waiting: deque[tuple[float, float, Callable[[], None]]] = field(default_factory=deque)
    cached: set[bytes] = field(default_factory=set)
    """Prefixes that were computed here."""
    in_flight_s: float = 0.0
    """Integral of requests here over time."""
    changed_at: float = 0.0

    @property
    def in_flight(self) -> int:
        return self.running + len(self.waiting)

    def load(self) -> Load:
        """Its own word: how many are here, and what it takes with so many."""
        rows = (1, self.places, *(self.places * n for n in (2, 4, 8)))
        whole_ms = 1000.0 * self.mean_s * self.slower
        return Load(
            running=self.running,
            queued=len(self.waiting),
            sequences_max=self.room,
            step_ms=tuple((n, whole_ms * max(1.0, n / self.places)) for n in rows),
            prefill_ms_per_token=self.prefill_ms,
        )


@dataclass
class Edge:
    """One decider: what it last heard of each server, and what it sent since."""

    number: int
    loads: list[Load]
    heard_at: list[float]
    unseen: list[int]
    active: list[int]

    @classmethod
    def of(cls, number: int, servers: Sequence[Server]) -> "Edge":
        count = len(servers)
        return cls(number, [s.load() for s in servers], [0.0] * count, [0] * count, [0] * count)

    def hear(self, place: int, load: Load, now: float) -> None:
        self.loads[place], self.heard_at[place], self.unseen[place] = load, now, 0

    def states(
        self,
        servers: Sequence[Server],
        now: float,
        rtt_ms: Callable[[Server], float] = lambda server: 1.0,
    ) -> list[CoreState]:
        return [
            CoreState(
                server.name,
                server.region,
                self.loads[n],
                rtt_ms(server),
                age_s=now - self.heard_at[n],
                unseen_opens=self.unseen[n],
                models=("m",),
            )
            for n, server in enumerate(servers)
        ]


@dataclass
class World:
    """Time, and what is to happen in it."""

    servers: list[Server]
    edges: list[Edge]
    now: float = 0.0
    waits_s: list[float] = field(default_factory=list)
    _due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: "count[int]" = field(default_factory=count)

    def at(self, when: float, what: Callable[[], None]) -> None:
        heappush(self._due, (when, next(self._order), what))

    def run(self, until: float) -> None:
        while self._due and self._due[0][0] <= until:
            self.now, _, what = heappop(self._due)
            what()
        self.now = until

    def speak(self, rng: Random) -> None:
        """Each server tells of itself from now on, at times of its own."""
        for place in range(len(self.servers)):
            first = rng.random() * STEP_S
            self.at(first, partial(self._step, place, rng.randrange(HEARTBEAT_STEPS)))

    def _step(self, place: int, number: int) -> None:
        load = self.servers[place].load()
        for edge in self.edges:
            if edge.active[place] or number % HEARTBEAT_STEPS == 0:
                edge.hear(place, load, self.now)
        self.at(self.now + STEP_S, partial(self._step, place, number + 1))

    def send(
        self,
        edge: Edge,
        place: int,
        work_s: float,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Open a request of so much work at a server; its reply carries the server's load."""
        server = self.servers[place]
        edge.unseen[place] += 1
        edge.active[place] += 1
        self._count(server)

        def ended() -> None:
            self._count(server)
            server.running -= 1
            self._start_next(server)
            edge.active[place] -= 1
            edge.hear(place, server.load(), self.now)
            then()

        server.waiting.append((self.now, work_s * server.slower, ended))
        self._start_next(server)

    def _start_next(self, server: Server) -> None:
        while server.waiting and server.running < server.places:
            came_at, took_s, ended = server.waiting.popleft()
            server.running += 1
            self.waits_s.append(self.now - came_at)
            self.at(self.now + took_s, ended)

    def _count(self, server: Server) -> None:
        server.in_flight_s += server.in_flight * (self.now - server.changed_at)
        server.changed_at = self.now


def by_rule(
    world: World, edge: Edge, rng: Random, wanted: Wanted | None = None
) -> tuple[int, Route]:
    """The place that the mesh's own rule picks."""
    states = edge.states(world.servers, world.now)
    route = choose(Cores.of(states), wanted or Wanted("home", 1, model="m"), rng)
    names = [server.name for server in world.servers]
    return names.index(route.candidates[0].core), route


def by_two_choices(edge: Edge, rng: Random) -> int:
    """Power of two choices on the edge's own count of what is in flight."""
    one, other = rng.sample(range(len(edge.active)), 2)
    return one if edge.active[one] <= edge.active[other] else other


def lognormal_s(rng: Random, mean_s: float = 1.0, sigma: float = 1.0) -> float:
    """Work with a long tail and this mean."""
    return mean_s * rng.lognormvariate(-sigma * sigma / 2, sigma)
