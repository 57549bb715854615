"""From a path to a model that is ready to run, and the class of numbers that it produces."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from firstlight.kernels.pages import PageForm
from firstlight.kernels.sets import open_gpu, open_kernels
from firstlight.shared.engine.kv.storage import KvStorage
from firstlight.shared.engine.model.batch import StepBatch
from firstlight.shared.engine.model.config import (
    ModelConfig,
    config_from_gguf,
    config_from_json,
    with_eos,
    with_sinks,
)
from firstlight.shared.engine.model.entries import Entries
from firstlight.shared.engine.model.native import NativeModel, native_fits
from firstlight.shared.engine.model.quantized import quantization_from_json
from firstlight.shared.engine.model.transformer import Transformer, heads_of
from firstlight.shared.engine.model.weights import (
    FORMATS,
    Weights,
    weights_from_folder,
    weights_from_gguf,
)
from firstlight.shared.errors import ConfigError
from firstlight.shared.model_files import read_gguf, read_json
from firstlight.shared.sampling import Draw, Floats

_EAGER_WEIGHTS = {"auto": torch.float32, "f32": torch.float32, "bf16": torch.bfloat16}
KERNELS = ("auto", "cpu", "eager", "reference")
_THREADS_MAX = 256


class Model(Protocol):
    """Weights placed for one implementation of the kernels."""

    @property
    def form(self) -> PageForm:
        """What its pool holds."""
        ...

    @property
    def signature(self) -> str:
        """All that can change a bit of its logits, beside the weights."""
        ...

    @property
    def in_force(self) -> str:
        """Which kernels it runs on, in words."""
        ...

    @property
    def device(self) -> torch.device:
        """Where its pool has to lie."""
        ...

    def logits(self, batch: StepBatch, kv: KvStorage) -> Tensor:
        """Float32 [m, vocab]: raw logits of `batch.logit_rows`; writes keys and values of all rows.

        Raises:
            ValueError: the batch contradicts itself, the pool or the vocabulary.

        """
        ...

    def pick(self, logits: Floats, draws: Sequence[Draw]) -> Sequence[int]:
        """Its `sampler.Pick`."""
        ...


@dataclass(frozen=True)
class LoadedModel:
    """A model and its identity."""

    config: ModelConfig
    transformer: Model
    name: str
    weights_hash: str
    """BLAKE2b-128 of the weight files."""
    numerics_class: str
    """Two processes with the same class compute the same bits."""

    @property
    def kernels(self) -> str:
        """Which kernels are in force, in words."""
        return self.transformer.in_force

    def storage(self, blocks: int, host_blocks: int = 0) -> KvStorage:
        """A pool, and a host tier, for its keys and values. Raises `ConfigError`."""
        model = self.transformer
        return KvStorage(self.config, blocks, host_blocks, model.form, model.device)


def load_model(
    path: Path,
    *,
    weights: str = "auto",
    kernels: str = "auto",
    threads: int = 1,
    window: int = 0,
    sinks: int = 0,
    device: str = "cpu",
    graphs: bool = True,
) -> LoadedModel:
    """Load a GGUF file, or a folder with `config.json` and safetensors.

    `auto` kernels are those in C++ if they were built, this machine runs them and the model's shape
    fits them; else torch's. Sets torch's number of threads for the whole process, since it is part
    of the numerics class of torch's kernels. With `window` and `sinks` rows see the first and the
    last tokens only (`with_sinks`). A `device` other than cpu is a GPU, and nothing else will do;
    `graphs` says whether its steps are captured.

    Raises:
        ConfigError: a file is wrong, an architecture unsupported, an option unknown.

    """
    if not 0 < threads <= _THREADS_MAX:
        raise ConfigError(f"threads is {threads}, expected 1…{_THREADS_MAX}")
    torch.set_num_threads(threads)
    name, config, source = open_model(path)
    if window or sinks:
        config = with_sinks(config, window, sinks)
    transformer = place(
        config,
        source,
        weights=weights,
        kernels=kernels,
        threads=threads,
        device=device,
        graphs=graphs,
    )
    digest = source.digest()
    shape = replace(config, eos_ids=())
    parts = f"{digest}\n{shape}\n{transformer.signature}"
    return LoadedModel(
        config=config,
        transformer=transformer,
        name=name,
        weights_hash=digest,
        numerics_class=blake2b(parts.encode(), digest_size=8).hexdigest(),
    )


def place(
    config: ModelConfig,
    source: Weights,
    *,
    weights: str = "auto",
    kernels: str = "auto",
    threads: int = 1,
    device: str = "cpu",
    graphs: bool = True,
) -> Model:
    """The weights, placed for the kernels of this name, or on a GPU. Raises `ConfigError`."""
    if device != "cpu":
        if kernels != "auto":
            raise ConfigError(f"kernels {kernels!r} are a CPU's, and device is {device!r}")
        return _on_gpu(config, source, weights, device, graphs=graphs)
    if kernels not in KERNELS:
        raise ConfigError(f"kernels {kernels!r} are unknown, expected {', '.join(KERNELS)}")
    if weights not in FORMATS:
        raise ConfigError(f"weights {weights!r} are unknown, expected {', '.join(FORMATS)}")
    if kernels == "cpu" or (kernels == "auto" and native_fits(config, weights)):
        return NativeModel(config, source, weights, threads)
    if weights not in _EAGER_WEIGHTS:
        raise ConfigError(
            f"weights {weights!r} need the C++ kernels, and {kernels} kernels are torch's; "
            f"they take {', '.join(_EAGER_WEIGHTS)}"
        )
    chosen = open_kernels("eager" if kernels == "auto" else kernels, heads_of(config))
    return Transformer(config, source, chosen, _EAGER_WEIGHTS[weights], threads)


def _on_gpu(
    config: ModelConfig, source: Weights, weights: str, device: str, *, graphs: bool
) -> Model:
    try:
        kernels = open_gpu(device, graphs=graphs)
    except ValueError as error:
        raise ConfigError(f"model.{error}") from error
    # Only now is Triton known to be here.
    from firstlight.shared.engine.device.model import GpuModel

    return GpuModel(config, source, kernels, weights)


def open_model(path: Path) -> tuple[str, ModelConfig, Weights]:
    """Name, configuration and weights of a model that is not placed yet; raises `ConfigError`."""
    if path.is_file():
        file = read_gguf(path)
        config = config_from_gguf(file)
        return path.stem, config, weights_from_gguf(file, config)
    if not path.is_dir():
        raise ConfigError(f"{path}: no such model file or folder")
    config_path, more = path / "config.json", path / "generation_config.json"
    raw = read_json(config_path)
    config = config_from_json(config_path, raw)
    quantization = quantization_from_json(Entries(config_path, raw))
    if more.is_file():
        config = with_eos(config, more, read_json(more))
    return path.resolve().name, config, weights_from_folder(path, config, quantization)
