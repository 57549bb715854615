"""A model on a GPU, as everything that runs models knows one."""

from collections.abc import Iterator

import torch
from torch import Tensor

from firstlight.kernels.gpu.kernels import GpuKernels
from firstlight.kernels.pages import FLOAT_PAGES, PageForm, Span
from firstlight.kernels.plan import plan_attention
from firstlight.shared.engine.device.buckets import SPAN_ROWS
from firstlight.shared.engine.device.decoder import Decoder
from firstlight.shared.engine.device.memory import Widths
from firstlight.shared.engine.device.place import Placer
from firstlight.shared.engine.kv.storage import KvStorage
from firstlight.shared.engine.model.batch import StepBatch
from firstlight.shared.engine.model.config import ModelConfig
from firstlight.shared.engine.model.weights import FORMATS, Weights
from firstlight.shared.engine.sampler import pick_rows
from firstlight.shared.errors import ConfigError

BFLOAT_PAGES = PageForm("bf16", torch.bfloat16)


class GpuModel:
    """Weights placed on a GPU. Whoever serves with it has a `runner.GpuRunner` over it."""

    pick = staticmethod(pick_rows)

    def __init__(
        self, config: ModelConfig, source: Weights, kernels: GpuKernels, weight_format: str
    ) -> None:
        """Raises `ConfigError` for weights, or a model, that these kernels cannot run, and if the
        memory of the GPU is too small for them."""
        if weight_format not in FORMATS:
            known = ", ".join(FORMATS)
            raise ConfigError(f"weights {weight_format!r} are unknown, expected {known}")
        if config.sinks:
            raise ConfigError("sinks: kernels on a GPU have no window with sinks of this kind")
        placer = Placer(config, source, kernels, weight_format)
        with kernels.here():
            self.decoder = Decoder(config, placer, kernels)
        self.config, self.kernels, self.device = config, kernels, kernels.device
        self.weights_bytes = placer.bytes + self.decoder.turns_bytes
        """On the device."""
        self.form = FLOAT_PAGES if placer.dtype == torch.float32 else BFLOAT_PAGES
        forms = "+".join(sorted(placer.forms))
        self.signature = f"{kernels.signature} weights={forms} rows={self.form.name}"
        self.in_force = f"{self.signature} on {kernels.device}"

    @torch.inference_mode()
    def logits(self, batch: StepBatch, kv: KvStorage) -> Tensor:
        """Float32 [m, vocab] on the host: raw logits of `batch.logit_rows`; writes keys and values.

        Raises:
            ValueError: the batch contradicts itself, the pool or the vocabulary.

        """
        for name, tensor, end in (
            ("ids", batch.ids, self.config.vocab),
            ("positions", batch.positions, self.config.context_max),
            ("logit_rows", batch.logit_rows, len(batch.ids)),
        ):
            if tensor.numel() and not 0 <= int(tensor.min()) <= int(tensor.max()) < end:
                raise ValueError(f"{name} has a value outside of 0…{end - 1}")
        with self.kernels.here():
            return self._logits(batch, kv)

    def _logits(self, batch: StepBatch, kv: KvStorage) -> Tensor:
        spans = [(part, place) for place, span in enumerate(batch.spans) for part in cut(span)]
        plan = plan_attention(
            [part for part, _ in spans],
            [batch.block_tables[place] for _, place in spans],
            kv.blocks,
            device=self.device,
        )
        rows = self.decoder.layers(batch.ids.to(self.device), plan, kv.pages)
        wanted = rows.index_select(0, batch.logit_rows.to(self.device))
        return self.decoder.head(wanted).cpu()

    @property
    def widths(self) -> Widths:
        """What decides how large a step is."""
        config, experts = self.config, self.config.experts
        chosen = experts.chosen if experts else 0
        wide = experts.intermediate * chosen if experts else 0
        return Widths(
            hidden=config.hidden,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            wide=2 * max(config.intermediate, wide),
            chosen=chosen,
            vocab=config.vocab,
            value_bytes=self.form.dtype.itemsize,
        )


def cut(span: Span) -> Iterator[Span]:
    """The rows of a sequence as spans that attention takes at once."""
    for start in range(0, span.rows, SPAN_ROWS):
        count = min(SPAN_ROWS, span.rows - start)
        yield Span(span.first_row + start, count, span.first_position + start + count)
