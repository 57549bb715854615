"""NVIDIA Stargate: round trip, queue and prefill, compared among a few.

    TTFT = round trip + queue + prefill of the whole prompt
    queue = 0 while a slot is free, else queued tokens · time of a token

    power-of-n       of n servers drawn at random the least TTFT, ties at random
    wait-and-widen   servers in the order of TTFT fall into buckets of 20 ms; a later bucket opens
                     when the request has waited 0.25 of the gap to it; of those open and with a
                     free slot, n drawn at random, the least TTFT; none: it waits, at most 60 s

Source: NVIDIA/nvcf, `src/libraries/rust/stargate`: `docs/load-balancer-configuration.md`
(002ee39f), `load_balancer/power_of_n.rs`, `wait_and_widen.rs`, and `tests.rs` for the examples.
Defaults as above with n = 2; prefix affinity is off unless clients send a key. Requests that this
decider sent count at once, as the reservations there do.
"""

from collections.abc import Iterator, Sequence
from math import isfinite
from random import Random

from firstlight.infra.sim.policies.lowest import NOBODY, in_flight, lowest
from firstlight.infra.sim.policies.outstanding import Outstanding
from firstlight.infra.sim.policies.policy import Ask, Pick, Policy, Seen

_SOURCE = "NVIDIA/nvcf, src/libraries/rust/stargate/docs/load-balancer-configuration.md"
BUCKET_MS = 20.0
WAIT_MAX_S = 60.0
WAIT_STEP_S = 0.05
"""When no bucket is going to open, slots are looked at again so soon; ours."""
WAIT_MIN_S = 0.001
WAITING_MAX = 65_536
"""Requests whose arrival is remembered; beyond it the oldest starts to wait anew."""


def ttft_ms(ask: Ask, one: Seen, outstanding: Outstanding) -> float:
    """The estimate that both rules compare."""
    free = in_flight(one) < one.sequences_max
    queued_tokens = 0 if free else outstanding.prefill_tokens(one)
    return one.rtt_ms + (queued_tokens + ask.prompt_tokens) * one.prefill_ms_per_token


class PowerOfN(Policy):
    """The least TTFT of a few."""

    name = "stargate_power_of_n"
    source = _SOURCE
    has_network_term = True
    knobs = (2.0, 3.0, 4.0, 8.0, 64.0)
    "n"

    def __init__(self, knob: float = knobs[0]) -> None:
        self.sample_count = int(knob)
        self._outstanding = Outstanding()

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """Draw and compare."""
        if not seen:
            return NOBODY
        some = rng.sample(seen, min(self.sample_count, len(seen)))
        times = [ttft_ms(ask, one, self._outstanding) for one in some]
        index = lowest(times, rng)
        return Pick(some[index].server, reason=f"{times[index]:.0f} ms, least of {len(some)}")

    def sent(self, ask: Ask, server: int) -> None:
        """Reserve."""
        self._outstanding.sent(ask.request, server, ask.prompt_tokens, ask.prompt_tokens)

    def first_token(self, ask: Ask, server: int, ttft_ms: float, now_s: float) -> None:
        """It waits no longer."""
        self._outstanding.first_token(ask.request)

    def ended(self, ask: Ask, server: int, latency_ms: float, now_s: float) -> None:
        """Give back."""
        self._outstanding.ended(ask.request)


class WaitAndWiden(Policy):
    """Near and fast ones first, others when waiting has cost as much."""

    name = "stargate_wait_and_widen"
    source = _SOURCE
    has_network_term = True
    knobs = (0.25, 0.0, 0.1, 0.5, 1.0)
    "next_bucket_unlock_factor"

    def __init__(self, knob: float = knobs[0], *, sample_count: int = 2) -> None:
        self.unlock_factor = knob
        self.sample_count = sample_count
        self._outstanding = Outstanding()
        self._since_s: dict[int, float] = {}
        """When a request that waits came."""

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """One of those open and free, or wait for the next to open."""
        estimates = [(ttft_ms(ask, one, self._outstanding), one) for one in seen]
        known = [(time, one) for time, one in estimates if isfinite(time)]
        if not known:
            return NOBODY
        waited_s = max(0.0, ask.now_s - self._since_s.get(ask.request, ask.now_s))
        opened: list[tuple[float, Seen]] = []
        next_s = WAIT_STEP_S
        for opens_s, time, one in self._opening(known):
            if in_flight(one) >= one.sequences_max:
                continue
            if opens_s > waited_s:
                next_s = min(next_s, opens_s - waited_s)
                break
            opened.append((time, one))
        if not opened:
            return self._wait(ask, waited_s, next_s)
        some = rng.sample(opened, min(self.sample_count, len(opened)))
        time, one = some[lowest([time for time, _ in some], rng)]
        self._since_s.pop(ask.request, None)
        return Pick(one.server, reason=f"{time:.0f} ms, one of {len(opened)} open")

    def sent(self, ask: Ask, server: int) -> None:
        """Reserve."""
        self._outstanding.sent(ask.request, server, ask.prompt_tokens, ask.prompt_tokens)

    def first_token(self, ask: Ask, server: int, ttft_ms: float, now_s: float) -> None:
        """It waits no longer."""
        self._outstanding.first_token(ask.request)

    def ended(self, ask: Ask, server: int, latency_ms: float, now_s: float) -> None:
        """Give back."""
        self._outstanding.ended(ask.request)

    def _opening(self, known: list[tuple[float, Seen]]) -> Iterator[tuple[float, float, Seen]]:
        """After how long each opens, its TTFT, and it; in that order."""
        known.sort(key=lambda pair: (pair[0], pair[1].server))
        start_ms, opens_ms = known[0][0], 0.0
        for time, one in known:
            if time - start_ms > BUCKET_MS:
                opens_ms += (time - start_ms) * self.unlock_factor
                start_ms = time
            yield opens_ms / 1e3, time, one

    def _wait(self, ask: Ask, waited_s: float, next_s: float) -> Pick:
        if waited_s >= WAIT_MAX_S:
            self._since_s.pop(ask.request, None)
            return Pick(None, reason=f"no slot for {waited_s:.0f} s")
        if ask.request not in self._since_s and len(self._since_s) >= WAITING_MAX:
            del self._since_s[next(iter(self._since_s))]
        self._since_s.setdefault(ask.request, ask.now_s)
        wait_s = max(WAIT_MIN_S, min(next_s, WAIT_MAX_S - waited_s))
        return Pick(None, wait_s=wait_s, reason="waits for a slot or a later bucket")
