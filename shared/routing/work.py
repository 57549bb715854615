"""Work and capacity in one unit: prefill-token equivalents, the time of one uncached prompt token.

    capacity of a core, a second = 1000 / prefill_ms_per_token
    work of a request = uncached prompt tokens + answer tokens · weight
    weight            = (t_step(n)/n) / prefill_ms_per_token

n is the core's cap and not what runs there now: work is what arrives, and no load feeds back into
it.
"""

from collections.abc import Iterable

from firstlight.shared.routing.cost import PREFILL_MS_MAX, PREFILL_MS_MIN, step_ms
from firstlight.shared.types import Load

ANSWER_WEIGHT_PRIOR = 4.0
"""Of an answer's token where no core has measured a step."""
ANSWER_WEIGHT_MAX = 1000.0
ROWS_MAX = 256
"""A cap above it says how many may wait, not how many run in one step."""


def capacity(load: Load) -> float:
    """What a core can do in a second; 0: it has not measured itself yet, or not in earnest."""
    prefill_ms = load.prefill_ms_per_token
    return 1000.0 / prefill_ms if PREFILL_MS_MIN <= prefill_ms <= PREFILL_MS_MAX else 0.0


def answer_weight(load: Load) -> float:
    """What a token of an answer is worth on a core whose places are taken; 0: not known."""
    rows = max(1, min(load.sequences_max, ROWS_MAX))
    weight = step_ms(load.step_ms, rows) / rows * capacity(load) / 1000.0
    return weight if 0.0 <= weight <= ANSWER_WEIGHT_MAX else 0.0


def typical_weight(loads: Iterable[Load]) -> float:
    """The median of the cores that have measured it; a prior if none has."""
    known = sorted(weight for load in loads if (weight := answer_weight(load)) > 0.0)
    return known[len(known) // 2] if known else ANSWER_WEIGHT_PRIOR


def work(
    prompt_tokens: float, answer_tokens: float, *, cached_tokens: float = 0.0, weight: float
) -> float:
    """What a request takes; `weight`: of a token of its answer. At least one token is computed."""
    return max(1.0, prompt_tokens - cached_tokens) + max(0.0, answer_tokens) * weight
