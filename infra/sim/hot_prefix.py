"""Requests most of which begin with one system prompt: what tempts a rule to use one core for all.

Sans-IO.
"""

from random import Random

from firstlight.infra.bench.load.schedule import BLOCK_TOKENS, Arrival

SYSTEM_TOKENS, OWN_TOKENS = 4096, 512
ANSWER_TOKENS = 200
"""The mean; exponential."""
_SYSTEM = tuple(range(SYSTEM_TOKENS // BLOCK_TOKENS))
_BLOCKS = len(_SYSTEM) + OWN_TOKENS // BLOCK_TOKENS


def hot_prefix(requests: int, share: float, rng: Random) -> tuple[Arrival, ...]:
    """One a second on average, by chance. `share` of them begin with the system prompt; each has
    512 tokens of its own behind it, and the others are as long and have nothing in common."""
    made, at_s = list[Arrival](), 0.0
    for number in range(1, requests + 1):
        at_s += rng.expovariate(1.0)
        own = tuple(range(number * _BLOCKS, (number + 1) * _BLOCKS))
        blocks = _SYSTEM + own[len(_SYSTEM) :] if rng.random() < share else own
        answer = 1 + int(rng.expovariate(1 / ANSWER_TOKENS))
        made.append(Arrival(at_s, SYSTEM_TOKENS + OWN_TOKENS, min(answer, 2000), blocks))
    return tuple(made)
