"""One run: requests come to edges, edges ask their rule, cores serve. In simulated time, by a seed.

    arrival ─► look (what the edge knows) ─► pick ─► open ─► core ─► first token ─► end
                  ▲  refused by the core, or the core is lost: again, with the others ─┘

What the client sees is measured at its edge: the time to the first token is from the request's
arrival there until the first token is there. A request that is refused, or given up, has none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from random import Random

from firstlight.infra.sim.core import Core, Ended, First
from firstlight.infra.sim.edge import Edge, Flight, Server
from firstlight.infra.sim.events import Events
from firstlight.infra.sim.faults import SILENCE_S, Fault
from firstlight.infra.sim.mesh import Hears, Mesh
from firstlight.infra.sim.moves import move_s
from firstlight.infra.sim.policies.policy import Ask, Policy
from firstlight.infra.sim.setup import Setup
from firstlight.infra.sim.workload import ANSWER_GUESS_TOKENS, Asked
from firstlight.shared.engine.sequence import Counted

TRIES_MAX = 4
"""A request is opened so often, all refusals and losses together."""
WAITS_MAX = 10_000
"""A rule may put a request off so often."""
DRAIN_S = 600.0
"""How long after the last arrival the run goes on at most."""

Make = Callable[[int, Mesh], Policy]
"""A rule for the edge of this number."""


@dataclass(frozen=True, slots=True)
class Served:
    """What became of one request."""

    number: int
    origin: int
    at_s: float
    ttft_ms: float
    """inf: it was refused, or given up."""
    e2e_ms: float
    region: int | None
    """Of the core that made its first token."""
    prompt_tokens: int
    cached_tokens: int
    refused: str
    tries: int


@dataclass(frozen=True, slots=True)
class Run:
    """All requests, and what the cores did."""

    served: tuple[Served, ...]
    span_s: float
    """From the first arrival to the last."""
    busy: tuple[float, ...]
    """Share of that time in which each region's cores were busy."""
    held: tuple[float, ...]
    """Requests that each core had in that time, on average."""
    steps: int


def simulate(asked: Sequence[Asked], make: Make, setup: Setup) -> Run:
    """Serve all requests. Same arguments, same result, to the bit."""
    return _Simulation(asked, make, setup).run()


class _Simulation:
    def __init__(self, asked: Sequence[Asked], make: Make, setup: Setup) -> None:
        self._asked, self._setup = asked, setup
        self._events = Events()
        regions = range(len(setup.matrix.regions))
        self._servers = [
            Server(index, index // setup.cores, Core(setup.spec, stretches=setup.stretches))
            for index in range(setup.servers)
        ]
        self.mesh = Mesh(setup)
        self._edges = [
            [
                Edge(
                    number := region * setup.edges + place,
                    region,
                    self._servers,
                    setup.matrix,
                    make(number, self.mesh),
                    Random(f"{setup.seed} edge {number}"),
                )
                for place in range(setup.edges)
            ]
            for region in regions
        ]
        self._rng = Random(f"{setup.seed} edges")
        self._flights: list[Flight] = []
        self._open_flights: dict[str, Flight] = {}
        self._busy_at_end: list[float] = []
        self._held_at_end: list[float] = []

    def run(self) -> Run:
        """Everything, and what became of it."""
        events, last_s = self._events, max((one.at_s for one in self._asked), default=0.0)
        for number, one in enumerate(self._asked):
            events.at(one.at_s, self._arrive, number, one)
        for fault in self._setup.faults:
            events.at(fault.at_s, self._strike, fault)
        for second in range(1, int(last_s) + 2):
            events.at(float(second), self._tick)
        events.at(last_s, self._note_end, late=True)
        events.run(last_s + DRAIN_S)
        return Run(
            tuple(_served(flight) for flight in self._flights),
            last_s,
            tuple(self._busy_at_end),
            tuple(self._held_at_end),
            sum(one.core.steps for one in self._servers),
        )

    def _note_end(self) -> None:
        """What cores did until now, before those that are late go on."""
        setup, last_s = self._setup, self._events.now or 1e-9
        for region in range(len(setup.matrix.regions)):
            cores = [one.core for one in self._servers if one.region == region]
            busy_s = sum(core.busy_by(last_s) for core in cores)
            self._busy_at_end.append(busy_s / len(cores) / last_s)
        self._held_at_end = [one.mean_held(last_s) for one in self._servers]

    def _tick(self) -> None:
        """Once a second regions tell each other what they have to do."""
        self.mesh.tick(self._servers, self._events.now)

    def _arrive(self, number: int, asked: Asked) -> None:
        edges = self._edges[asked.origin]
        edge = edges[self._rng.randrange(len(edges))]
        flight = Flight(number, asked, self.mesh.names(asked.blocks, asked.prompt_tokens), edge)
        self._flights.append(flight)
        self.mesh.arrived(asked)
        self._decide(flight, 0)

    def _decide(self, flight: Flight, waits: int) -> None:
        edge, asked, now = flight.edge, flight.asked, self._events.now
        if flight.tries >= TRIES_MAX or waits > WAITS_MAX:
            self._refuse(flight, flight.refused or "tried too often")
            return
        seen = edge.look(flight, now)
        ask = Ask(
            request=flight.number,
            prompt_tokens=asked.prompt_tokens + flight.given,
            answer_tokens_guess=ANSWER_GUESS_TOKENS,
            blocks=asked.blocks,
            now_s=now,
            origin=asked.origin,
            session=asked.session,
        )
        flight.ask = ask
        pick = edge.policy.pick(ask, seen, edge.rng)
        if pick.server is not None:
            edge.policy.sent(ask, pick.server)
            edge.opened(flight, pick.server, now)
            there = edge.links[pick.server].there
            self._events.at(there.arrival_s(now), self._open, flight, flight.tries, pick.fetch_from)
        elif pick.wait_s > 0:
            self._events.at(now + pick.wait_s, self._decide, flight, waits + 1)
        else:
            self._refuse(flight, pick.reason or "refused")

    def _refuse(self, flight: Flight, why: str) -> None:
        flight.refused = why

    def _open(self, flight: Flight, tries: int, fetch_from: int | None) -> None:
        """At the core."""
        assert flight.server is not None
        server, now = self._servers[flight.server], self._events.now
        if flight.tries != tries or not server.alive:
            return
        if fetch_from is not None and fetch_from != server.index:
            self._fetch(flight, server, self._servers[fetch_from])
            return
        tokens = flight.asked.prompt_tokens + flight.given
        left = max(1, flight.asked.answer_tokens - flight.given)
        why = server.core.open(flight.name, Counted(tokens, tokens, flight.hashes), left, now)
        if why:
            back = flight.edge.links[server.index].back
            self._events.at(back.arrival_s(now), self._turned_away, flight, tries, why)
            return
        server.held_s -= now
        self._open_flights[flight.name] = flight
        self._wake_when_due(server)

    def _fetch(self, flight: Flight, server: Server, source: Server) -> None:
        """KV comes from another core first."""
        tokens = flight.asked.prompt_tokens
        have = server.core.resident_tokens(flight.hashes, tokens)
        more = source.core.resident_tokens(flight.hashes, tokens) if source.alive else 0
        moved = max(0, more - have)
        took_s = move_s(moved, self._setup.matrix, source.region, server.region)
        blocks = flight.hashes[: more // self._setup.spec.block_tokens] if moved else ()
        now = self._events.now
        self._events.at(now + took_s, self._landed, flight, flight.tries, server, blocks)

    def _landed(
        self, flight: Flight, tries: int, server: Server, blocks: tuple[bytes, ...]
    ) -> None:
        if server.alive and blocks:
            server.core.land(blocks)
        self._open(flight, tries, None)

    def _wake_when_due(self, server: Server) -> None:
        for name in server.core.take_counted():
            if (flight := self._open_flights.get(name)) is not None:
                flight.counted_s = self._events.now
        server.version += 1
        due_s = server.core.due_s
        if due_s is not None:
            self._events.at(due_s, self._wake, server, server.version, late=True)

    def _wake(self, server: Server, version: int) -> None:
        if version != server.version:
            return
        now = self._events.now
        for told in server.core.run(now):
            if isinstance(told, Ended):
                server.held_s += now
            flight = self._open_flights.get(told.request)
            if flight is None:
                continue
            back = flight.edge.links[server.index].back
            if isinstance(told, First):
                self._events.at(back.arrival_s(now), self._began, flight, flight.tries, told)
            else:
                del self._open_flights[told.request]
                self._events.at(back.arrival_s(now), self._ended, flight, flight.tries, told)
        self._wake_when_due(server)

    def _began(self, flight: Flight, tries: int, told: First) -> None:
        if flight.tries != tries or flight.server is None:
            return
        now, edge = self._events.now, flight.edge
        assert flight.ask is not None
        edge.began(flight, told.at_s)
        if flight.first_s is None:
            flight.first_s, flight.first_region = now, self._servers[flight.server].region
            flight.cached_tokens = min(told.cached_tokens, flight.asked.prompt_tokens)
        ttft_ms = (now - flight.sent_s) * 1000
        edge.policy.first_token(flight.ask, flight.server, ttft_ms, now)
        if isinstance(edge.policy, Hears):
            edge.policy.computed(flight.ask, flight.server, told.cached_tokens, now)

    def _ended(self, flight: Flight, tries: int, told: Ended) -> None:
        if flight.tries != tries or flight.server is None:
            return
        now = self._events.now
        flight.edge.left(flight, told_s=told.at_s)
        self._tell_end(flight, now)
        flight.server = None
        if told.error:
            self._refuse(flight, told.error)
        else:
            flight.ended_s = now

    def _tell_end(self, flight: Flight, now: float) -> None:
        assert flight.ask is not None
        assert flight.server is not None
        latency_ms = (now - flight.sent_s) * 1000
        flight.edge.policy.ended(flight.ask, flight.server, latency_ms, now)

    def _turned_away(self, flight: Flight, tries: int, why: str) -> None:
        """The core refused it."""
        if flight.tries != tries or flight.server is None:
            return
        now, edge, server = self._events.now, flight.edge, flight.server
        edge.left(flight)
        self._tell_end(flight, now)
        if isinstance(edge.policy, Hears):
            edge.policy.turned_away(server, now)
        flight.excluded.add(server)
        flight.server, flight.refused = None, why
        self._decide(flight, 0)

    def _strike(self, fault: Fault) -> None:
        setup, now = self._setup, self._events.now
        for index in fault.servers(setup.cores, setup.matrix.regions):
            server = self._servers[index]
            if fault.kind == "slow":
                server.core.slow(fault.factor, now)
                self._wake_when_due(server)
            elif server.alive:
                self._kill(server, silent=fault.kind == "region")
            if fault.for_s is not None:
                self._events.at(now + fault.for_s, self._mend, server, fault)

    def _kill(self, server: Server, *, silent: bool) -> None:
        now = self._events.now
        given = server.core.kill(now)
        server.held_s += now * len(given)
        server.alive = False
        server.version += 1
        for name, tokens in given.items():
            flight = self._open_flights.pop(name, None)
            if flight is not None:
                flight.given += tokens
        for edges in self._edges:
            for edge in edges:
                link = edge.links[server.index]
                wait_s = SILENCE_S if silent else 0.0
                self._events.at(link.back.arrival_s(now + wait_s), self._lost, edge, server)

    def _lost(self, edge: Edge, server: Server) -> None:
        """An edge finds out that a core is gone, and sends what it had there elsewhere."""
        now, link = self._events.now, edge.links[server.index]
        link.lost = not server.alive
        if isinstance(edge.policy, Hears):
            edge.policy.lost(server.index, now)
        for flight in list(link.flights.values()):
            edge.left(flight)
            self._tell_end(flight, now)
            flight.excluded.add(server.index)
            flight.server = None
            self._decide(flight, 0)

    def _mend(self, server: Server, fault: Fault) -> None:
        now = self._events.now
        if fault.kind == "slow":
            server.core.slow(1.0, now)
            self._wake_when_due(server)
            return
        server.alive = True
        for edges in self._edges:
            for edge in edges:
                link = edge.links[server.index]
                self._events.at(link.back.arrival_s(now), self._back, edge, server)

    def _back(self, edge: Edge, server: Server) -> None:
        edge.links[server.index].lost = not server.alive


def _served(flight: Flight) -> Served:
    asked = flight.asked
    first, end = flight.first_s, flight.ended_s
    refused = flight.refused if end is None else ""
    if end is None and not refused:
        refused = "not ended"
    ok = not refused and first is not None
    return Served(
        number=flight.number,
        origin=asked.origin,
        at_s=asked.at_s,
        ttft_ms=(first - asked.at_s) * 1000 if ok and first is not None else inf,
        e2e_ms=(end - asked.at_s) * 1000 if ok and end is not None else inf,
        region=flight.first_region,
        prompt_tokens=asked.prompt_tokens,
        cached_tokens=flight.cached_tokens if ok else 0,
        refused=refused,
        tries=flight.tries,
    )
