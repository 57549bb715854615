"""What a client knows of edges, and which one it would ask next.

Sans-IO. A round trip that was measured from here stands above one that somebody expects, and an
edge that failed a moment ago stands behind all that did not. Nothing is struck off for good: when
every edge has failed, they are tried again in the order in which their time comes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from random import Random

from firstlight.shared.retry import full_jitter_s

EDGES_MAX = 64
"""As many as a directory lists. What comes after the first so many is not remembered."""
RTT_MAX_S = 60.0
AVOID_BASE_S, AVOID_MAX_S = 1.0, 60.0
"""An edge that failed k times running is avoided for up to base · 2^k seconds."""
UDP_DOUBT_S = 300.0
"""After TCP won where QUIC had every chance, QUIC is not waited for, for so long."""
NEARER_SHARE, NEARER_S = 0.7, 0.005
"""An edge is left for one whose round trip is below this share of its own, and shorter by this."""
_SMOOTH = 0.25


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge as a directory, or the caller, names it."""

    url: str
    """Scheme, host and port."""
    node: str = ""
    region: str = ""
    expected_rtt_s: float | None = None
    """From this client, as the directory guesses."""
    quic: bool = True
    """Whether it speaks HTTP/3."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """An edge at its place, and why it stands there."""

    edge: Edge
    rtt_s: float | None
    why: str


@dataclass(slots=True)
class _Known:
    edge: Edge
    measured_s: float | None = None
    failures: int = 0
    avoid_until_s: float = -inf
    reason: str = ""


@dataclass(slots=True)
class EdgeBook:
    """All of it. Every method takes the time."""

    rng: Random
    _known: dict[str, _Known] = field(default_factory=dict)
    _winner: str | None = None
    _udp_doubted_until_s: float = -inf

    def learn(self, edges: Iterable[Edge]) -> None:
        """These are the edges now. What was measured of those that stay is kept.

        An empty list teaches nothing: edges that were there are better than none.
        """
        listed: dict[str, _Known] = {}
        for edge in edges:
            if len(listed) < EDGES_MAX and edge.url not in listed:
                known = self._known.get(edge.url)
                if known is not None:
                    known.edge = edge
                listed[edge.url] = known or _Known(edge)
        if listed:
            self._known = listed

    def measured(self, url: str, rtt_s: float) -> None:
        """A round trip to this edge took so long; what cannot be a round trip is not one."""
        known = self._known.get(url)
        if known is None or not is_rtt(rtt_s):
            return
        before = known.measured_s
        # Delays only add to a round trip: a lower one counts at once, a higher one bit by bit.
        slow = before is not None and rtt_s > before
        known.measured_s = before + _SMOOTH * (rtt_s - before) if slow and before else rtt_s

    def won(self, url: str, *, tcp: bool, quic_tried_s: float | None, now: float) -> None:
        """A handshake with this edge was the first to be complete, and is remembered.

        `quic_tried_s`: for how long a handshake over UDP had been tried and heard nothing, if one
        had; when TCP then wins, this network may well swallow UDP.
        """
        known = self._known.get(url)
        if known is not None:
            known.failures, known.avoid_until_s, known.reason = 0, -inf, ""
            self._winner = url
        if not tcp:
            self._udp_doubted_until_s = -inf
        elif quic_tried_s is not None:
            rtt_s = self._rtt_s(known) if known else None
            if quic_tried_s >= 2 * (rtt_s or 0.1):
                self._udp_doubted_until_s = now + UDP_DOUBT_S

    def failed(self, url: str, reason: str, now: float) -> None:
        """This edge could not be reached, or broke off."""
        known = self._known.get(url)
        if known is None:
            return
        wait_s = full_jitter_s(known.failures, self.rng, base_s=AVOID_BASE_S, max_s=AVOID_MAX_S)
        known.failures += 1
        known.avoid_until_s, known.reason = now + wait_s, reason
        if self._winner == url:
            self._winner = None

    def network_changed(self) -> None:
        """Nothing that was measured or that failed says anything about the new network."""
        self._winner, self._udp_doubted_until_s = None, -inf
        for known in self._known.values():
            known.measured_s, known.failures, known.avoid_until_s = None, 0, -inf

    def udp_doubted(self, now: float) -> bool:
        """Whether UDP seems to be blocked here."""
        return now < self._udp_doubted_until_s

    def rtts_s(self) -> dict[str, float]:
        """What was measured, by node."""
        return {
            known.edge.node: known.measured_s
            for known in self._known.values()
            if known.measured_s is not None and known.edge.node
        }

    def much_nearer(self, url: str, now: float) -> bool:
        """Whether another edge was measured to be so much nearer than this one that a new
        connection pays."""
        here = self._known.get(url)
        if here is None:
            return bool(self._known)
        if here.measured_s is None:
            return False
        return any(
            known.measured_s < NEARER_SHARE * here.measured_s
            and known.measured_s + NEARER_S < here.measured_s
            for known in self._known.values()
            if known.measured_s is not None and now >= known.avoid_until_s
        )

    def ranking(self, now: float, avoid: Sequence[str] = ()) -> list[Ranked]:
        """All edges, best first; those in `avoid` behind all others, in the order given there."""
        return [self._ranked(known, now, avoid) for known in self._in_order(now, avoid)]

    def __len__(self) -> int:
        """How many are known."""
        return len(self._known)

    def __contains__(self, url: object) -> bool:
        """Whether an edge is known at this URL."""
        return url in self._known

    def _in_order(self, now: float, avoid: Sequence[str]) -> list[_Known]:
        def place(known: _Known) -> tuple[int, float, float]:
            url, rtt_s = known.edge.url, self._rtt_s(known)
            if url in avoid:
                return 3, float(avoid.index(url)), 0.0
            if now < known.avoid_until_s:
                return 2, known.avoid_until_s, 0.0
            if url == self._winner and known.measured_s is None:
                return 0, 0.0, 0.0
            return (1, inf, 0.0) if rtt_s is None else (0, rtt_s, known.measured_s is None)

        return sorted(self._known.values(), key=place)

    def _ranked(self, known: _Known, now: float, avoid: Sequence[str]) -> Ranked:
        rtt_s = self._rtt_s(known)
        if known.edge.url in avoid:
            why = "just lost"
        elif now < known.avoid_until_s:
            why = f"avoided for {known.avoid_until_s - now:.1f} s: {known.reason}"
        elif known.measured_s is not None:
            why = f"measured {known.measured_s * 1e3:.1f} ms"
        elif rtt_s is not None:
            why = f"expected {rtt_s * 1e3:.1f} ms"
        else:
            why = "not measured"
        return Ranked(known.edge, rtt_s, why)

    def _rtt_s(self, known: _Known) -> float | None:
        return known.edge.expected_rtt_s if known.measured_s is None else known.measured_s


def is_rtt(rtt_s: float | None) -> bool:
    """Whether this can be a round trip between two places on earth, in seconds."""
    return rtt_s is not None and isfinite(rtt_s) and 0.0 <= rtt_s <= RTT_MAX_S
