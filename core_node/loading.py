"""From settings to an engine that is warm. The only module of the core that reaches torch."""

from collections.abc import Callable
from dataclasses import replace

import torch

from firstlight.core_node.admission import Offer
from firstlight.core_node.config import ModelSection
from firstlight.core_node.loaded import Loaded, as_it_is, warm
from firstlight.shared.blocks import kv_namespace
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.kv.storage import KvStorage
from firstlight.shared.engine.model.load import LoadedModel, load_model
from firstlight.shared.engine.plan import EngineConfig, Runner
from firstlight.shared.engine.runner import TorchRunner, measured_copies
from firstlight.shared.errors import ConfigError
from firstlight.shared.model_files import default_model_path
from firstlight.shared.text.tokenizer import load_tokenizer


def load_engine(
    section: ModelSection, wanted: EngineConfig, around: Callable[[Runner], Runner] = as_it_is
) -> Loaded:
    """Load the model and its tokenizer's identity, and run one request through it.

    `around` is put around what computes.

    Takes seconds; call it off the event loop. Raises `ConfigError`.
    """
    path = section.path or default_model_path()
    model = load_model(
        path,
        weights=section.weights,
        kernels=section.kernels,
        threads=section.threads,
        window=section.window,
        sinks=section.sinks,
        device=section.device,
        graphs=section.gpu.graphs,
    )
    tokenizer = load_tokenizer(path)
    limits, storage, runner = _pooled(model, section, wanted)
    if limits.copy_bytes_per_s is None:
        in_both = min(limits.blocks, limits.host_blocks)
        limits = replace(limits, copy_bytes_per_s=measured_copies(runner, in_both))
    engine = Engine(around(runner), limits)
    offer = Offer(
        models=(section.name or model.name,),
        tokenizer_hash=tokenizer.hash,
        vocab=model.config.vocab,
        context_max=limits.context_max,
    )
    warm(engine, offer)
    return Loaded(
        engine=engine,
        offer=offer,
        hint_ids_max=limits.hint_ids_max,
        numerics_class=model.numerics_class,
        namespace=kv_namespace(model.weights_hash, storage.layout, model.numerics_class),
        prepare=lambda: torch.set_num_threads(section.threads),
    )


def _pooled(
    model: LoadedModel, section: ModelSection, wanted: EngineConfig
) -> tuple[EngineConfig, KvStorage, Runner]:
    """The limits as they are, and a runner over a pool of that many blocks."""
    if section.device == "cpu":
        limits = wanted.fitted(model.config.context_max)
        storage = model.storage(limits.blocks, limits.host_blocks)
        return limits, storage, TorchRunner(model, storage)
    from firstlight.shared.engine.device.model import GpuModel  # where Triton is
    from firstlight.shared.engine.device.runner import GpuRunner, with_pool

    placed = model.transformer
    assert isinstance(placed, GpuModel), section.device
    limits = with_pool(placed, wanted, section.gpu.memory_share).fitted(model.config.context_max)
    storage = model.storage(limits.blocks, limits.host_blocks)
    try:
        runner = GpuRunner(placed, storage, limits)
        runner.warm()
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"no memory on {placed.device} for a step beside a pool of {limits.blocks} blocks; "
            f"model.gpu.memory_share is {section.gpu.memory_share}, try less"
        ) from error
    return limits, storage, runner
