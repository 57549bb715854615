"""llm-d: scores between 0 and 1, each with a weight; the highest sum wins, ties at random.

    prefix   blocks cached there / blocks of the prompt
    queue    (longest − waiting)/(longest − shortest); 1 if all are equal
    kv       1 − share of KV in use

Source: llm-d/llm-d-inference-scheduler, `pkg/epp/scheduling/scheduler_profile.go` (520af478) and
the READMEs of the scorers; weights 2, 1, 1 as in
`deploy/config/epp-precise-prefix-cache-config.yaml`. There are two ways to know what is cached.
Precise: the servers' own events, and for 2 s what was just sent there (`speculativeIndexing`).
Approximate: what was sent there, 31,250 blocks of 16 tokens a server, and of a prompt the first 256
of them; in blocks of 512 tokens 976 and 8. No network term.
"""

from collections.abc import Sequence
from random import Random

from firstlight.infra.sim.policies.known_blocks import KnownBlocks
from firstlight.infra.sim.policies.lowest import NOBODY, lowest
from firstlight.infra.sim.policies.policy import BLOCK_TOKENS, Ask, Pick, Policy, Seen

SPECULATIVE_TTL_S = 2.0
SPECULATIVE_BLOCKS_MAX = 65_536
"""A server's, within those two seconds; a limit of ours."""
APPROXIMATE_BLOCKS_MAX = 31_250 * 16 // BLOCK_TOKENS
MATCHED_BLOCKS_MAX = 256 * 16 // BLOCK_TOKENS


def clamped(score: float) -> float:
    """Between 0 and 1; what is no number scores nothing."""
    return min(1.0, score) if score > 0.0 else 0.0


def _choose(
    seen: Sequence[Seen], prefixes: Sequence[float], prefix_weight: float, rng: Random
) -> Pick:
    """The highest weighted sum."""
    shortest = min(one.waiting for one in seen)
    longest = max(one.waiting for one in seen)
    spread = longest - shortest
    sums = [
        prefix_weight * clamped(prefix)
        + clamped(1.0 - one.kv_used_share)
        + ((longest - one.waiting) / spread if spread else 1.0)
        for one, prefix in zip(seen, prefixes, strict=True)
    ]
    index = lowest([-total for total in sums], rng)
    return Pick(seen[index].server, reason=f"score {sums[index]:.2f}")


class LlmDPrecise(Policy):
    """With the servers' word on what they have cached."""

    name = "llm_d_precise"
    source = "llm-d/llm-d-inference-scheduler, deploy/config/epp-precise-prefix-cache-config.yaml"
    has_network_term = False
    knobs = (2.0, 0.5, 1.0, 4.0, 8.0)
    "weight of the prefix score; the others are 1"

    def __init__(self, knob: float = knobs[0]) -> None:
        self.prefix_weight = knob
        self._just_sent = KnownBlocks(SPECULATIVE_BLOCKS_MAX, SPECULATIVE_TTL_S)

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """Score by what is cached, or will be when what was just sent is computed."""
        if not seen:
            return NOBODY
        matched = self._just_sent.matched(ask.blocks, ask.now_s)
        prefixes = [
            max(one.cached_tokens, matched.get(one.server, 0) * BLOCK_TOKENS)
            / max(1, ask.prompt_tokens)
            for one in seen
        ]
        return _choose(seen, prefixes, self.prefix_weight, rng)

    def sent(self, ask: Ask, server: int) -> None:
        """The server will have it in a moment."""
        self._just_sent.add(server, ask.blocks, ask.now_s)


class LlmDApproximate(Policy):
    """With a guess at what they have cached, from what was sent there."""

    name = "llm_d_approximate"
    source = "llm-d/llm-d-inference-scheduler, scorer/prefix and approximateprefix/types.go"
    has_network_term = False
    knobs = (2.0, 0.5, 1.0, 4.0, 8.0)
    "weight of the prefix score; the others are 1"

    def __init__(self, knob: float = knobs[0]) -> None:
        self.prefix_weight = knob
        self._known = KnownBlocks(APPROXIMATE_BLOCKS_MAX)

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """Score by what was sent there before."""
        if not seen:
            return NOBODY
        blocks = ask.blocks[:MATCHED_BLOCKS_MAX]
        matched = self._known.matched(blocks, ask.now_s)
        prefixes = [matched.get(one.server, 0) / max(1, len(blocks)) for one in seen]
        return _choose(seen, prefixes, self.prefix_weight, rng)

    def sent(self, ask: Ask, server: int) -> None:
        """Remember its beginning."""
        self._known.add(server, ask.blocks[:MATCHED_BLOCKS_MAX], ask.now_s)
