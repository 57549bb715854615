"""What a core has once its model is there, and the request that is run before anyone asks."""

from collections.abc import Callable
from dataclasses import dataclass

from firstlight.core_node.admission import Offer
from firstlight.core_node.drafting import Foretold
from firstlight.shared.clock import monotonic_s
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.plan import Runner
from firstlight.shared.types import Request, Sampling

WARM_TOKENS = (32, 4)
"""Prompt and answer of the request that is run before anyone asks."""
WARM_STEPS_MAX = 64


@dataclass(frozen=True, slots=True)
class Loaded:
    """An engine, and what to tell others of it."""

    engine: Engine
    offer: Offer
    hint_ids_max: int
    numerics_class: str
    namespace: str
    """Cores of the same one can use each other's KV."""
    prepare: Callable[[], None]
    """To be called first on the thread that will step the engine."""
    foretold: Foretold | None = None
    """Of a timed engine."""


def as_it_is(runner: Runner) -> Runner:
    """Nothing is put around a runner."""
    return runner


def warm(engine: Engine, offer: Offer) -> None:
    """Touch every code path once, so that the first client does not pay for it."""
    prompt_tokens, answer_tokens = WARM_TOKENS
    if prompt_tokens + answer_tokens > offer.context_max:
        return
    request = Request(
        id="warm",
        model=offer.models[0],
        tokenizer_hash=offer.tokenizer_hash,
        salt=bytes(16),
        prompt=tuple(i % offer.vocab for i in range(prompt_tokens)),
        sampling=Sampling(),
        seed=0,
        choice=0,
        max_tokens=answer_tokens,
        eos_ids=frozenset(),
    )
    engine.add(request, epoch=1, credit=offer.context_max, now=monotonic_s())
    for _ in range(WARM_STEPS_MAX):
        if not engine.has_work:
            break
        engine.step(monotonic_s())
    engine.cancel(request.id)
    engine.flush_cache()
