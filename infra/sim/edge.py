"""A decider: an edge that knows cores by what was told to it, and asks its rule for each request.

What it knows of a core is what the core said at the last report that has reached it: a report comes
every 250 ms, and with every step that commits to a stream of this edge. What it opened itself since
then, it knows too. Sans-IO.
"""

from collections import deque
from dataclasses import dataclass, field
from math import floor, inf
from random import Random

from firstlight.infra.sim.core import Core
from firstlight.infra.sim.matrix import Matrix, Path
from firstlight.infra.sim.policies.policy import Ask, Policy, Seen
from firstlight.infra.sim.workload import Asked
from firstlight.shared.estimate import RttEstimate

HEARTBEAT_S = 0.25
PREFILL_PRIOR_MS = 0.02
"""Of a token, at a core that has said nothing yet: about what one of the table's needs."""


@dataclass(slots=True)
class Server:
    """A core and where it stands."""

    index: int
    region: int
    core: Core
    alive: bool = True
    version: int = 0
    """Grows when it is planned anew when the core is to be woken."""
    held_s: float = 0.0
    """Times of all ends minus times of all beginnings of the requests that it took."""

    def mean_held(self, now: float) -> float:
        """Requests that it had, on average up to now."""
        return (self.held_s + self.core.in_flight * now) / now


@dataclass(slots=True)
class Flight:
    """A request on its way, from its edge's view."""

    number: int
    asked: Asked
    hashes: tuple[bytes, ...]
    """Of the full blocks of its prompt."""
    edge: "Edge"
    server: int | None = None
    tries: int = 0
    excluded: set[int] = field(default_factory=set)
    given: int = 0
    """Tokens of the answer that earlier cores made."""
    sent_s: float = 0.0
    counted_s: float = inf
    """When the core it was opened at began to count it."""
    first_s: float | None = None
    ended_s: float | None = None
    first_region: int | None = None
    """Of the core that made the first token."""
    streams: bool = False
    """Whether the core where it is now has made a token of it, and that is known here."""
    cached_tokens: int = 0
    refused: str = ""
    ask: Ask | None = None

    @property
    def name(self) -> str:
        """At cores; another one each time that it is opened."""
        return f"{self.number}.{self.tries}"


@dataclass(slots=True)
class _Link:
    """To one core, and back."""

    there: Path
    back: Path
    rtt: RttEstimate
    own: int = 0
    """Opens minus ends."""
    streams: int = 0
    """Of those, how many have had their first token here: they bring reports with every step."""
    heard_s: float = -inf
    """What the latest frame told was true then, on the core."""
    opens: deque[Flight] = field(default_factory=deque)
    """Those that the core may not have counted yet."""
    flights: dict[int, Flight] = field(default_factory=dict)
    lost: bool = False


class Edge:
    """One decider of one region."""

    def __init__(
        self,
        index: int,
        region: int,
        servers: list[Server],
        matrix: Matrix,
        policy: Policy,
        rng: Random,
    ) -> None:
        self.index, self.region, self.policy, self.rng = index, region, policy, rng
        self._servers = servers
        self._beat_s = rng.random() * HEARTBEAT_S
        self.links = [
            _Link(
                Path(matrix.rtt_ms[region][one.region], matrix, rng),
                Path(matrix.rtt_ms[region][one.region], matrix, rng),
                RttEstimate(matrix.rtt_ms[region][one.region]),
            )
            for one in servers
        ]

    def look(self, flight: Flight, now: float) -> list[Seen]:
        """The cores that it believes to be there, as it knows them."""
        tokens = flight.asked.prompt_tokens + flight.given
        return [
            self._seen(server, link, flight, tokens, now)
            for server, link in zip(self._servers, self.links, strict=True)
            if not link.lost and server.index not in flight.excluded
        ]

    def opened(self, flight: Flight, server: int, now: float) -> None:
        """A request is on its way to a core."""
        link = self.links[server]
        flight.server, flight.sent_s, flight.counted_s = server, now, inf
        flight.streams = False
        flight.tries += 1
        link.own += 1
        link.opens.append(flight)
        link.flights[flight.number] = flight

    def began(self, flight: Flight, told_s: float) -> None:
        """Its first token came, which the core made at `told_s`."""
        assert flight.server is not None
        link = self.links[flight.server]
        link.streams += 1
        flight.streams = True
        link.heard_s = max(link.heard_s, told_s)

    def left(self, flight: Flight, told_s: float = -inf) -> None:
        """It is at that core no more."""
        assert flight.server is not None
        link = self.links[flight.server]
        link.own -= 1
        link.streams -= flight.streams
        link.heard_s = max(link.heard_s, told_s)
        del link.flights[flight.number]

    def _heard(self, link: _Link, now: float) -> float:
        """When what it knows of a core was true."""
        at_s = now - link.back.one_way_s
        if not link.streams:  # else a step's frame has just come
            beats = floor((at_s - self._beat_s) / HEARTBEAT_S)
            at_s = max(link.heard_s, self._beat_s + beats * HEARTBEAT_S)
        link.heard_s = max(link.heard_s, at_s)
        return link.heard_s

    def _seen(self, server: Server, link: _Link, flight: Flight, tokens: int, now: float) -> Seen:
        heard_s = self._heard(link, now)
        load = server.core.load_at(heard_s)
        opens = link.opens
        while opens and (opens[0].counted_s <= heard_s or opens[0].server != server.index):
            opens.popleft()
        unseen = [one for one in opens if one.counted_s > heard_s]
        return Seen(
            server=server.index,
            region=server.region,
            rtt_ms=link.rtt.ms,
            waiting=load.queued,
            running=load.running,
            sequences_max=load.sequences_max,
            queued_prefill_tokens=load.queued_prefill_tokens,
            kv_used_share=load.kv_used_share,
            cached_tokens=server.core.resident_tokens(flight.hashes, tokens),
            prefill_ms_per_token=load.prefill_ms_per_token or PREFILL_PRIOR_MS,
            step_ms=load.step_ms,
            age_s=now - heard_s,
            own_in_flight=link.own,
            load=load,
            unseen_opens=len(unseen),
            unseen_prompt_tokens=sum(one.asked.prompt_tokens for one in unseen),
        )
