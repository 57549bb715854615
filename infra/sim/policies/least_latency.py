"""Least latency: the server whose reports promise the earliest end.

    latency = queue + prefill for a token · g + decode for a token · a

g and a are guesses at any request's prompt and answer, not this request's: its length does not
matter, nor does what is cached, nor the network. Source: vllm-project/aibrix, `least_latency.go`
(0338af7d); the guesses are the means over what was served, 10 and 100 before anything was. There,
means come from each server's histograms; here from its report and its table of step times.
"""

from collections.abc import Sequence
from random import Random

from firstlight.infra.sim.policies.lowest import NOBODY, lowest
from firstlight.infra.sim.policies.policy import Ask, Pick, Policy, Seen

PROMPT_TOKENS_GUESS = 10.0
ANSWER_TOKENS_GUESS = 100.0


def decode_ms_per_token(one: Seen) -> float:
    """A step's time with the rows that run now: the next entry of the table, or its last."""
    for rows, step_ms in one.step_ms:
        if rows >= one.running:
            return step_ms
    return one.step_ms[-1][1] if one.step_ms else 0.0


def latency_ms(one: Seen, prompt_tokens: float, answer_tokens: float) -> float:
    """What a request of such a length is expected to take there."""
    prefill_tokens = one.queued_prefill_tokens + prompt_tokens
    return prefill_tokens * one.prefill_ms_per_token + answer_tokens * decode_ms_per_token(one)


class LeastLatency(Policy):
    """The least expected latency of a mean request."""

    name = "least_latency"
    source = "vllm-project/aibrix, pkg/plugins/gateway/algorithms/least_latency.go"
    has_network_term = False
    knobs = (0.0,)

    def __init__(self, knob: float = knobs[0]) -> None:
        self._sent = 0
        self._prompt_tokens = 0
        self._answer_tokens = 0

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """Compare the promises."""
        if not seen:
            return NOBODY
        prompt, answer = PROMPT_TOKENS_GUESS, ANSWER_TOKENS_GUESS
        if self._sent:
            prompt, answer = self._prompt_tokens / self._sent, self._answer_tokens / self._sent
        latencies = [latency_ms(one, prompt, answer) for one in seen]
        index = lowest(latencies, rng)
        return Pick(seen[index].server, reason=f"{latencies[index]:.0f} ms for a mean request")

    def sent(self, ask: Ask, server: int) -> None:
        """It is in the means from now on."""
        self._sent += 1
        self._prompt_tokens += ask.prompt_tokens
        self._answer_tokens += ask.answer_tokens_guess
