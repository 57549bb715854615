"""From a path to a model that is ready to run, and the class of numbers that it produces."""

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import torch

from firstlight.kernels.ops import open_kernels
from firstlight.kernels.pages import Heads
from firstlight.shared.engine.model.config import (
    ModelConfig,
    config_from_gguf,
    config_from_json,
    with_eos,
)
from firstlight.shared.engine.model.transformer import Transformer
from firstlight.shared.engine.model.weights import (
    Weights,
    weights_from_folder,
    weights_from_gguf,
)
from firstlight.shared.errors import ConfigError
from firstlight.shared.model_files import read_gguf, read_json

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
_THREADS_MAX = 256


@dataclass(frozen=True)
class LoadedModel:
    """A model and its identity."""

    config: ModelConfig
    transformer: Transformer
    name: str
    weights_hash: str
    """BLAKE2b-128 of the weight files."""
    numerics_class: str
    """Two processes with the same class compute the same bits."""
    kernels: str
    """Which kernels are in force, in words."""


def load_model(
    path: Path, *, weights: str = "f32", kernels: str = "cpu", threads: int = 1
) -> LoadedModel:
    """Load a GGUF file, or a folder with `config.json` and safetensors.

    Sets torch's number of threads for the whole process, since it is part of the numerics class.

    Raises:
        ConfigError: a file is wrong, an architecture unsupported, an option unknown.

    """
    if weights not in _DTYPES:
        raise ConfigError(f"weights {weights!r} are unknown, expected {' or '.join(_DTYPES)}")
    if not 0 < threads <= _THREADS_MAX:
        raise ConfigError(f"threads is {threads}, expected 1…{_THREADS_MAX}")
    torch.set_num_threads(threads)
    name, config, source = _open(path)
    try:
        chosen = open_kernels(kernels, Heads(config.heads, config.kv_heads, config.head_dim))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    transformer = Transformer(config, source, chosen, _DTYPES[weights])
    digest = source.digest()
    parts = (
        digest,
        weights,
        chosen.signature,
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        str(threads),
        "cpu",
    )
    return LoadedModel(
        config=config,
        transformer=transformer,
        name=name,
        weights_hash=digest,
        numerics_class=blake2b("\n".join(parts).encode(), digest_size=8).hexdigest(),
        kernels=chosen.signature,
    )


def _open(path: Path) -> tuple[str, ModelConfig, Weights]:
    if path.is_file():
        file = read_gguf(path)
        config = config_from_gguf(file)
        return path.stem, config, weights_from_gguf(file, config)
    if not path.is_dir():
        raise ConfigError(f"{path}: no such model file or folder")
    config_path, more = path / "config.json", path / "generation_config.json"
    config = config_from_json(config_path, read_json(config_path))
    if more.is_file():
        config = with_eos(config, more, read_json(more))
    return path.resolve().name, config, weights_from_folder(path, config)
