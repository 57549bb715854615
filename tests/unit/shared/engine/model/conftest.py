"""The default model, loaded once, and a way to run it over a sequence."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from firstlight.shared.engine.kv.storage import KvStorage
from firstlight.shared.engine.model.batch import SequenceRows, join_rows
from firstlight.shared.engine.model.load import LoadedModel, load_model, place
from firstlight.shared.engine.model.weights import weights_from_gguf
from firstlight.shared.model_files import default_model_path, read_gguf

Prefill = Callable[..., torch.Tensor]
FirstLayers = Callable[..., LoadedModel]


@pytest.fixture(scope="session")
def loaded() -> LoadedModel:
    return load_model(default_model_path(), threads=1)


@pytest.fixture(scope="session")
def exact() -> LoadedModel:
    """In float32 throughout."""
    return load_model(default_model_path(), weights="f32", kernels="eager", threads=1)


@pytest.fixture(scope="session")
def first_layers(loaded: LoadedModel) -> FirstLayers:
    def place_them(kernels: str, threads: int = 1) -> LoadedModel:
        """The same weights, but only three layers: enough to show what depends on what."""
        config = replace(loaded.config, layers=3)
        weights = weights_from_gguf(read_gguf(default_model_path()), config)
        model = place(config, weights, kernels=kernels, threads=threads)
        return replace(loaded, config=config, transformer=model)

    return place_them


@pytest.fixture(scope="session")
def shallow(first_layers: FirstLayers) -> LoadedModel:
    return first_layers("auto")


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
