"""A model on the C++ kernels: its matrices in the format asked for, a whole step in one call.

`auto` takes a matrix as its file holds it where the kernels can (blocks of 4 or 8 bits of GGUF),
and makes 8-bit blocks of everything else, so that quality is the file's own. A format asked for by
name holds for every matrix but the embedding and the head under q4: they stay at 8 bits, since
their errors go straight to the logits.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firstlight.kernels.cpu import extension
from firstlight.kernels.pages import HALF_PAGES
from firstlight.shared.engine.kv.storage import KvStorage
from firstlight.shared.engine.model.batch import StepBatch
from firstlight.shared.engine.model.config import ModelConfig
from firstlight.shared.engine.model.native_sampler import native_pick
from firstlight.shared.engine.model.rope import frequencies
from firstlight.shared.engine.model.weights import Floats, Weights
from firstlight.shared.errors import ConfigError
from firstlight.shared.sampling import Draw

if TYPE_CHECKING:
    from firstlight.kernels.cpu._native import Decoder, Matrix

_OF_BLOCKS = {"Q4_0": "q4", "Q4_1": "q4", "Q8_0": "q8"}
_ABSENT = np.empty(0, np.float32)
_Join: TypeAlias = Callable[[Sequence[NDArray[Any]]], NDArray[Any]]


def native_lacks(config: ModelConfig) -> str:
    """What this model has that the kernels in C++ do not; empty: nothing."""
    if config.experts is not None:
        return "a mixture of experts"
    if config.windows:
        return "a sliding window"
    if config.rope_scaling is not None and config.rope_scaling.magnitude != 1.0:
        return "rotary embedding of another magnitude (yarn)"
    return ""


def native_fits(config: ModelConfig, weight_format: str) -> bool:
    """Whether there are such kernels here, and they can run this model and its shape."""
    wanted = 32 if weight_format in ("auto", "q4", "q8") else 16
    inputs = (config.hidden, config.heads * config.head_dim, config.intermediate)
    return (
        bool(extension.instruction_sets())
        and not native_lacks(config)
        and all(size % wanted == 0 for size in inputs)
        and config.head_dim % 16 == 0
    )


class NativeModel:
    """Weights placed in a decoder of `kernels.cpu`."""

    form = HALF_PAGES
    device = torch.device("cpu")

    def __init__(
        self, config: ModelConfig, weights: Weights, weight_format: str, threads: int
    ) -> None:
        """Raises `ConfigError` for a shape or weights that the kernels cannot run, or if there are
        none."""
        lacking = native_lacks(config)
        if lacking:
            raise ConfigError(f"kernels cpu: no {lacking}; kernels eager have it")
        self._config = config
        placer = _Placer(weights, weight_format)
        try:
            extension.native()
            kernels = extension.instruction_sets()[0]
            self._decoder = _build(config, weights, placer, kernels, threads)
        except ValueError as error:
            raise ConfigError(f"kernels cpu: {error}") from error
        except MemoryError as error:
            raise ConfigError(f"kernels cpu: no memory for the model: {error}") from error
        self.signature = (
            f"cpu weights={'+'.join(sorted(placer.formats))} kv={self.form.name} "
            f"revision={extension.REVISION}"
        )
        """All that can change a bit of the logits. Threads and the instruction set cannot."""
        self.in_force = f"{self.signature} ({kernels})"

    def logits(self, batch: StepBatch, kv: KvStorage) -> Tensor:
        """Float32 [m, vocab]: raw logits of `batch.logit_rows`; writes keys and values of all rows.

        Raises:
            ValueError: the batch contradicts itself, the pool or the vocabulary.

        """
        context_max = self._config.context_max
        if len(batch.positions) and int(batch.positions.max()) >= context_max:
            raise ValueError(f"positions has a value outside of 0…{context_max - 1}")
        spans = [(span.first_row, span.rows, span.context) for span in batch.spans]
        tables = [np.array(table, np.int32) for table in batch.block_tables]
        logits = np.empty((len(batch.logit_rows), self._config.vocab), np.float32)
        self._decoder.run(
            ids=batch.ids.numpy(),
            positions=batch.positions.numpy(),
            slots=batch.slots.numpy(),
            spans=np.array(spans, np.int32).reshape(-1, 3),
            tables=np.concatenate(tables) if tables else np.empty(0, np.int32),
            table_offsets=np.cumsum([0, *map(len, tables)], dtype=np.int32),
            logit_rows=batch.logit_rows.numpy(),
            pages=kv.pages.numpy(),
            logits=logits,
        )
        return torch.from_numpy(logits)

    def pick(self, logits: Floats, draws: Sequence[Draw]) -> Sequence[int]:
        """A `sampler.Pick` that shares the rows out on the decoder's threads."""
        return native_pick(self._decoder, logits, draws)


class _Placer:
    """Puts matrices into the format that they shall have, and notes which these were."""

    def __init__(self, weights: Weights, weight_format: str) -> None:
        self._weights, self._format = weights, weight_format
        self.formats: set[str] = set()

    def matrix(self, names: Sequence[str], layer: int, join: _Join = np.concatenate) -> "Matrix":
        """One matrix of several of the file, their outputs joined."""
        native, weights = extension.native(), self._weights
        found = (weights.blocks(name, layer) for name in names)
        blocks = [one for one in found if one is not None]
        alike = len(blocks) == len(names) and len({one.type for one in blocks}) == 1
        held = _OF_BLOCKS[blocks[0].type] if alike else ""
        chosen = self._format
        if chosen == "auto":
            chosen = held or "q8"
        elif chosen == "q4" and names[0] in ("embedding", "head"):
            chosen = "q8"
        self.formats.add(chosen)
        made: Matrix
        try:
            if held == chosen:
                rows = np.ascontiguousarray(join([one.rows for one in blocks]))
                made = native.Matrix.from_blocks(blocks[0].type, rows, blocks[0].inputs)
            else:
                floats = join([weights.read(name, layer) for name in names])
                made = native.Matrix.from_floats(chosen, np.ascontiguousarray(floats))
        except ValueError as error:
            raise ValueError(f"{', '.join(names)} of layer {layer}: {error}") from error
        return made


def _build(
    config: ModelConfig, weights: Weights, placer: _Placer, kernels: str, threads: int
) -> "Decoder":
    decoder: Decoder = extension.native().Decoder(
        kernels=kernels,
        threads=threads,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        hidden=config.hidden,
        intermediate=config.intermediate,
        vocab=config.vocab,
        rms_eps=config.rms_eps,
        frequencies=frequencies(config.rope_theta, config.head_dim, config.rope_scaling),
    )

    def vector(name: str, layer: int, there: bool = True) -> Floats:
        return weights.read(name, layer) if there else _ABSENT

    for layer in range(config.layers):
        biases = [vector(name + "_bias", layer, config.qkv_bias) for name in ("q", "k", "v")]
        decoder.add(
            attention_norm=vector("attention_norm", layer),
            qkv=placer.matrix(("q", "k", "v"), layer),
            qkv_bias=np.concatenate(biases),
            q_norm=vector("q_norm", layer, config.qk_norm),
            k_norm=vector("k_norm", layer, config.qk_norm),
            output=placer.matrix(("o",), layer),
            mlp_norm=vector("mlp_norm", layer),
            gate_up=placer.matrix(("gate", "up"), layer, extension.in_turn),
            down=placer.matrix(("down",), layer),
        )
    embedding = placer.matrix(("embedding",), 0)
    head = embedding if config.tied else placer.matrix(("head",), 0)
    decoder.end(embedding=embedding, norm=vector("norm", 0), head=head)
    return decoder
