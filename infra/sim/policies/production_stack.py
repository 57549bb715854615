"""vLLM production-stack's three routers: by prefix, by the KV that is there, by session.

    prefix    the servers that the longest known prefix was sent to, one at random;
              a match below `prefix_min_match_length`: the fewest requests, within one at random
    kv        the server with the most of the prompt cached, if no more than 2000 tokens are
              missing; else by session
    session   a consistent hash of the session, so that few move when servers come or go

Source: vllm-project/production-stack, `src/vllm_router/routers/routing_logic.py` (008a23bd), its
`prefix/hashtrie.py` and `tests/test_prefixaware_router.py` (12a66d06, for the minimum, 0 unless
set). The trie there never forgets; here a server's 262,144 blocks are a limit that no trace of
ours reaches, and those not sent for longest would go first. Load does not matter to any of them.
The hash is the highest of all (server, session), which spreads sessions more evenly than the ring
there and moves as few. No network term.
"""

from collections.abc import Sequence
from random import Random

from firstlight.infra.sim.policies.known_blocks import KnownBlocks
from firstlight.infra.sim.policies.lowest import NOBODY, in_flight, lowest
from firstlight.infra.sim.policies.policy import BLOCK_TOKENS, Ask, Pick, Policy, Seen

BLOCKS_MAX = 262_144
NEAR_TIE = 1
_SOURCE = "vllm-project/production-stack, src/vllm_router/routers/routing_logic.py"
_MASK = (1 << 64) - 1


def mixed(value: int) -> int:
    """64 well-mixed bits of a number (splitmix64's finalizer, Steele et al. 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & _MASK
    return value ^ value >> 31


def of_session(session: int, seen: Sequence[Seen]) -> int:
    """The server of a session: it stays while that server is there."""
    its = mixed(session)
    return max((mixed(its ^ one.server), one.server) for one in seen)[1]


class PrefixAware(Policy):
    """Where the longest prefix went."""

    name = "production_stack_prefix"
    source = _SOURCE
    has_network_term = False
    knobs = (0.0, 512.0, 2048.0, 4096.0, 8192.0)
    "prefix_min_match_length, in tokens"

    def __init__(self, knob: float = knobs[0]) -> None:
        self.match_tokens_min = knob
        self._known = KnownBlocks(BLOCKS_MAX)

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """Match; what matches nowhere may go anywhere."""
        if not seen:
            return NOBODY
        matched = self._known.matched(ask.blocks, ask.now_s)
        blocks = [matched.get(one.server, 0) for one in seen]
        if max(blocks) * BLOCK_TOKENS >= self.match_tokens_min:
            index = lowest([-count for count in blocks], rng)
            return Pick(seen[index].server, reason=f"{blocks[index]} blocks known there")
        loads = [in_flight(one) for one in seen]
        near = [index for index, load in enumerate(loads) if load <= min(loads) + NEAR_TIE]
        return Pick(seen[rng.choice(near)].server, reason="match too short, few requests")

    def sent(self, ask: Ask, server: int) -> None:
        """Put it into the trie."""
        self._known.add(server, ask.blocks, ask.now_s)


class KvAware(Policy):
    """Where the KV is."""

    name = "production_stack_kv"
    source = _SOURCE
    has_network_term = False
    knobs = (2000.0, 500.0, 1000.0, 4000.0, 8000.0)
    "tokens of a prompt that may be missing"

    def __init__(self, knob: float = knobs[0]) -> None:
        self.missing_tokens_max = knob

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """The longest, if it is long enough."""
        if not seen:
            return NOBODY
        index = lowest([-one.cached_tokens for one in seen], rng)
        cached_tokens = seen[index].cached_tokens
        if 0 < cached_tokens >= ask.prompt_tokens - self.missing_tokens_max:
            return Pick(seen[index].server, reason=f"{cached_tokens} tokens cached there")
        return Pick(of_session(ask.session, seen), reason="too little cached, by session")


class BySession(Policy):
    """Where its session is."""

    name = "production_stack_session"
    source = _SOURCE
    has_network_term = False
    knobs = (0.0,)

    def __init__(self, knob: float = knobs[0]) -> None:
        """There is nothing to turn."""

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """By hash."""
        if not seen:
            return NOBODY
        return Pick(of_session(ask.session, seen), reason="by session")
