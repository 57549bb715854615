"""The default model, loaded once, and a way to run it over a sequence."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from firstlight.kernels.ops import open_kernels
from firstlight.kernels.pages import Heads
from firstlight.shared.engine.kv.storage import KvStorage
from firstlight.shared.engine.model.batch import SequenceRows, join_rows
from firstlight.shared.engine.model.load import LoadedModel, load_model
from firstlight.shared.engine.model.transformer import Transformer
from firstlight.shared.engine.model.weights import weights_from_gguf
from firstlight.shared.model_files import default_model_path, read_gguf

Prefill = Callable[..., torch.Tensor]


@pytest.fixture(scope="session")
def loaded() -> LoadedModel:
    return load_model(default_model_path(), threads=1)


@pytest.fixture(scope="session")
def shallow(loaded: LoadedModel) -> LoadedModel:
    """The same weights, but only the first three layers: enough to show what depends on what."""
    config = replace(loaded.config, layers=3)
    kernels = open_kernels("cpu", Heads(config.heads, config.kv_heads, config.head_dim))
    weights = weights_from_gguf(read_gguf(default_model_path()), config)
    transformer = Transformer(config, weights, kernels, torch.float32)
    return replace(loaded, config=config, transformer=transformer)


@pytest.fixture(scope="session")
def prefill() -> Prefill:
    def run(
        model: LoadedModel,
        kv: KvStorage,
        ids: list[int],
        table: list[int],
        chunk: int = 512,
        last: int = 0,
    ) -> torch.Tensor:
        """Logits [last, vocab] of the last rows of a sequence that is run in chunks."""
        parts = []
        for start in range(0, len(ids), chunk):
            piece = ids[start : start + chunk]
            skip = max(len(ids) - last - start, 0)
            rows = SequenceRows(piece, start, table, range(skip, len(piece)))
            parts.append(model.transformer.logits(join_rows([rows]), kv))
        return torch.cat(parts)

    return run
