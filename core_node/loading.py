"""From settings to an engine that is warm. The only module of the core that reaches torch."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from firstlight.core_node.admission import Offer
from firstlight.core_node.config import ModelSection
from firstlight.shared.blocks import kv_namespace
from firstlight.shared.clock import monotonic_s
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.model.load import load_model
from firstlight.shared.engine.plan import EngineConfig
from firstlight.shared.engine.runner import TorchRunner, measured_copies
from firstlight.shared.model_files import default_model_path
from firstlight.shared.text.tokenizer import load_tokenizer
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


def load_engine(section: ModelSection, wanted: EngineConfig) -> Loaded:
    """Load the model and its tokenizer's identity, and run one request through it.

    Takes seconds; call it off the event loop. Raises `ConfigError`.
    """
    path = section.path or default_model_path()
    model = load_model(
        path, weights=section.weights, kernels=section.kernels, threads=section.threads
    )
    tokenizer = load_tokenizer(path)
    limits = wanted.fitted(model.config.context_max)
    storage = model.storage(limits.blocks, limits.host_blocks)
    runner = TorchRunner(model, storage)
    if limits.copy_bytes_per_s is None:
        in_both = min(limits.blocks, limits.host_blocks)
        limits = replace(limits, copy_bytes_per_s=measured_copies(runner, in_both))
    engine = Engine(runner, limits)
    offer = Offer(
        models=(section.name or model.name,),
        tokenizer_hash=tokenizer.hash,
        vocab=model.config.vocab,
        context_max=limits.context_max,
    )
    _warm(engine, offer)
    return Loaded(
        engine=engine,
        offer=offer,
        hint_ids_max=limits.hint_ids_max,
        numerics_class=model.numerics_class,
        namespace=kv_namespace(model.weights_hash, storage.layout, model.numerics_class),
        prepare=lambda: torch.set_num_threads(section.threads),
    )


def _warm(engine: Engine, offer: Offer) -> None:
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
