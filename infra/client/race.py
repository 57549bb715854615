"""The race to the first connection: which handshakes begin when.

Sans-IO. The best known edge begins, the second follows after max(50 ms, 1.25 · round trip) up to
250 ms, both over HTTP/3; then the same two over TCP, for networks that swallow UDP; then the other
edges. A lane that fails lets the next one begin at once. The first complete handshake wins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from firstlight.infra.client.edges import Edge, Ranked, is_rtt

STAGGER_MIN_S, STAGGER_MAX_S = 0.05, 0.25
STAGGER_RTTS = 1.25
LANES_MAX = 8
"""Two edges over two transports, twice: who is not found in so many is not found."""
RUNNING_MAX = 4
Spoken = Literal["1", "2", "3"]
"""HTTP/3 is over UDP, the others over TCP."""
OVER_TCP: Spoken = "1"
"""Where nobody says which: a connection has one request, so that leaving an answer ends it."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One handshake: with whom, and over what."""

    edge: Edge
    http: Spoken
    rtt_s: float | None = None


def stagger_s(rtt_s: float | None) -> float:
    """How long a lane with this round trip has before the next one begins."""
    if rtt_s is None or not is_rtt(rtt_s):
        return STAGGER_MIN_S
    return min(STAGGER_MAX_S, max(STAGGER_MIN_S, STAGGER_RTTS * rtt_s))


def lanes_of(
    ranking: Sequence[Ranked], *, udp_doubted: bool = False, only: Spoken | None = None
) -> list[Lane]:
    """The lanes of a race in the order in which they begin; `only` over this version, if any."""
    lanes: list[Lane] = []
    for first in range(0, len(ranking), 2):
        two = ranking[first : first + 2]
        quic = [
            Lane(one.edge, "3", one.rtt_s) for one in two if one.edge.quic and only in ("3", None)
        ]
        tcp = [Lane(one.edge, only or OVER_TCP, one.rtt_s) for one in two if only != "3"]
        lanes += tcp + quic if udp_doubted else quic + tcp
    return lanes[:LANES_MAX]


class Race:
    """One race. The caller runs the handshakes, and tells what becomes of them."""

    def __init__(self, lanes: Sequence[Lane], now: float) -> None:
        self._waiting = list(lanes)
        self._began: dict[Lane, float] = {}
        self._running: list[Lane] = []
        self._begun_s = now
        self._next_at_s = now
        self._failures: list[str] = []

    @property
    def lost(self) -> bool:
        """Whether nobody can win any more."""
        return not self._running and not self._waiting

    @property
    def failures(self) -> str:
        """What went wrong, lane by lane."""
        return "; ".join(self._failures) or "no edge is known"

    def start(self, now: float) -> list[Lane]:
        """The lanes that begin now."""
        begin: list[Lane] = []
        while self._waiting and len(self._running) < RUNNING_MAX and now >= self._due_s():
            lane = self._waiting.pop(0)
            begin.append(lane)
            self._running.append(lane)
            self._began[lane] = now
            self._next_at_s = now + stagger_s(lane.rtt_s)
        return begin

    def wait_s(self, now: float) -> float | None:
        """Until the next lane begins, if none ends before; None: none is to begin by itself."""
        if not self._waiting or len(self._running) >= RUNNING_MAX:
            return None
        return max(0.0, self._due_s() - now)

    def failed(self, lane: Lane, reason: str, now: float) -> None:
        """This lane came to nothing: whoever is next begins now."""
        self._running.remove(lane)
        self._failures.append(reason)
        self._next_at_s = now

    def quic_tried_s(self, now: float, winner: Lane) -> float | None:
        """For how long the longest handshake over UDP had heard nothing when somebody else won;
        None: none was running."""
        tried = [
            now - self._began[lane]
            for lane in self._running
            if lane.http == "3" and lane is not winner
        ]
        return max(tried, default=None)

    def _due_s(self) -> float:
        """When the next lane may begin. TCP waits while QUIC may win."""
        lane = self._waiting[0]
        quic_first = lane.http != "3" and any(one.http == "3" for one in self._running)
        return (
            max(self._next_at_s, self._begun_s + STAGGER_MAX_S) if quic_first else self._next_at_s
        )
