"""The model itself: a decoder of any of the `families`, over paged keys and values.

Projections that read the same rows are fused (q, k, v; gate, up). Rotary tables, write positions
and the plan of attention are made once a step and used by every layer. Logits are computed only
for the rows asked for.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from firstlight.kernels.pages import BLOCK_ROWS, FLOAT_PAGES, Heads
from firstlight.kernels.sets import Attention, Kernels, Linear
from firstlight.shared.engine.kv.storage import KvStorage
from firstlight.shared.engine.model.batch import StepBatch
from firstlight.shared.engine.model.config import ModelConfig
from firstlight.shared.engine.model.mlp import Gated, Mixture
from firstlight.shared.engine.model.rope import frequencies
from firstlight.shared.engine.model.weights import Weights
from firstlight.shared.engine.sampler import pick_rows

_FINITE = 65504.0
"""What an infinity becomes in the pool, as in that of the kernels in C++."""


@dataclass(frozen=True)
class _Layer:
    attention_norm: Tensor
    qkv: Linear
    qk_norms: tuple[Tensor, Tensor] | None
    output: Linear
    mlp_norm: Tensor
    mlp: Gated | Mixture
    heads: Heads


@dataclass(frozen=True)
class _Step:
    """What all layers of a step share."""

    cosine: Tensor
    sine: Tensor
    write_index: Tensor
    attention: dict[Heads, Attention]
    """Layers with another window have another plan."""


class Transformer:
    """Weights placed for one of the implementations in torch."""

    form = FLOAT_PAGES
    device = torch.device("cpu")
    pick = staticmethod(pick_rows)

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        kernels: Kernels,
        dtype: torch.dtype,
        threads: int,
    ) -> None:
        self._config = config
        self._kernels = kernels
        self._heads = heads_of(config)

        def linear(names: list[str], layer: int, *, bias: bool = False) -> Linear:
            weight = torch.cat([_tensor(weights, name, layer) for name in names]).to(dtype)
            joined = None
            if bias:
                joined = torch.cat([_tensor(weights, name + "_bias", layer) for name in names])
            return kernels.linear(weight, joined)

        def gated(layer: int, end: str = "") -> Gated:
            gate_up = linear([f"gate{end}", f"up{end}"], layer)
            return Gated(gate_up, linear([f"down{end}"], layer), kernels)

        def mlp(layer: int) -> Gated | Mixture:
            mixture = config.experts
            if mixture is None or not config.has_experts(layer):
                return gated(layer)
            experts = [gated(layer, f".{expert}") for expert in range(mixture.count)]
            router = linear(["router"], layer)
            return Mixture(router, experts, mixture.chosen, mixture.renormalize)

        self._layers = [
            _Layer(
                attention_norm=_tensor(weights, "attention_norm", layer),
                qkv=linear(["q", "k", "v"], layer, bias=config.qkv_bias),
                qk_norms=(
                    (_tensor(weights, "q_norm", layer), _tensor(weights, "k_norm", layer))
                    if config.qk_norm
                    else None
                ),
                output=linear(["o"], layer),
                mlp_norm=_tensor(weights, "mlp_norm", layer),
                mlp=mlp(layer),
                heads=heads_of(config, layer),
            )
            for layer in range(config.layers)
        ]
        self._embedding = _tensor(weights, "embedding", 0).to(dtype)
        self._norm = _tensor(weights, "norm", 0)
        self._head = kernels.linear(self._embedding, None) if config.tied else linear(["head"], 0)
        scaling = config.rope_scaling
        self._frequencies = torch.from_numpy(
            frequencies(config.rope_theta, config.head_dim, scaling)
        )
        self._magnitude = 1.0 if scaling is None else scaling.magnitude
        self.signature = (
            f"{kernels.signature} weights={dtype} threads={threads} torch={torch.__version__} "
            f"{torch.backends.cpu.get_cpu_capability()}"
        )
        self.in_force = self.signature

    @torch.inference_mode()
    def logits(self, batch: StepBatch, kv: KvStorage) -> Tensor:
        """Float32 [m, vocab]: raw logits of `batch.logit_rows`; writes keys and values of all rows.

        Raises:
            ValueError: the batch contradicts itself, the pool or the vocabulary.

        """
        config, kernels = self._config, self._kernels
        self._check(batch, kv)
        step = self._plan(batch, kv)
        rows = self._embedding.index_select(0, batch.ids).float()
        for layer, pages in zip(self._layers, kv.pages, strict=True):
            normed = kernels.rms_norm(rows, layer.attention_norm, config.rms_eps)
            rows.add_(layer.output(self._attend(layer, normed, pages, step)))
            normed = kernels.rms_norm(rows, layer.mlp_norm, config.rms_eps)
            rows.add_(layer.mlp(normed))
        if batch.logit_rows.shape[0] == 0:
            return torch.empty(0, config.vocab)
        wanted = rows.index_select(0, batch.logit_rows)
        return self._head(kernels.rms_norm(wanted, self._norm, config.rms_eps))

    def _attend(self, layer: _Layer, normed: Tensor, pages: Tensor, step: _Step) -> Tensor:
        config, kernels = self._config, self._kernels
        rows = layer.qkv(normed).view(normed.shape[0], -1, config.head_dim)
        if layer.qk_norms is not None:
            q, k, v = torch.split(rows, [config.heads, config.kv_heads, config.kv_heads], 1)
            q = kernels.rms_norm(q, layer.qk_norms[0], config.rms_eps)
            k = kernels.rms_norm(k, layer.qk_norms[1], config.rms_eps)
            rows = torch.cat((q, k, v), 1)
        if config.sinks:
            rows = torch.cat((rows, rows[:, : config.heads]), 1)
        rows = kernels.rotate(rows, step.cosine, step.sine)
        end = config.heads + 2 * config.kv_heads
        fresh = rows[:, config.heads : end].reshape(-1, config.head_dim)
        fresh = fresh.nan_to_num(0.0, _FINITE, -_FINITE)  # a masked weight of 0 does not undo NaN
        pages.view(-1, config.head_dim).index_copy_(0, step.write_index, fresh)
        return step.attention[layer.heads](rows, pages)

    def _plan(self, batch: StepBatch, kv: KvStorage) -> _Step:
        """Rotary tables [n, q + k + v heads, head_dim] (values turn by an angle of 0, which is
        exact)."""
        heads, sinks = self._heads, self._config.sinks
        count, turned = batch.positions.shape[0], heads.heads + heads.kv_heads
        wide = turned + heads.kv_heads
        cosine = torch.ones(count, wide + (heads.heads if sinks else 0), heads.head_dim)
        sine = torch.zeros_like(cosine)
        cosine[:, :turned], sine[:, :turned] = self._turns(batch.positions)
        if sinks:
            last = sinks + min(self._config.windows) - 1
            cosine[:, wide:], sine[:, wide:] = self._turns(batch.positions.clamp(max=last))

        block, offset = batch.slots // BLOCK_ROWS, batch.slots % BLOCK_ROWS
        head = torch.arange(heads.kv_heads)
        line = (block[:, None] * heads.kv_heads + head) * BLOCK_ROWS + offset[:, None]
        values = kv.blocks * heads.kv_heads * BLOCK_ROWS
        write = torch.stack((line, line + values), 1).reshape(-1)
        plans = {
            seen: self._kernels.attention(batch.spans, batch.block_tables, seen, kv.blocks)
            for seen in {layer.heads: None for layer in self._layers}
        }
        return _Step(cosine, sine, write, plans)

    def _turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines [n, 1, head_dim] of queries and keys at these positions."""
        angles = positions.double()[:, None] * self._frequencies
        cos, sin = (part.mul_(self._magnitude).float() for part in (angles.cos(), angles.sin()))
        return torch.cat((cos, cos), 1)[:, None], torch.cat((-sin, sin), 1)[:, None]

    def _check(self, batch: StepBatch, kv: KvStorage) -> None:
        rows = batch.ids.shape[0]
        if rows == 0:
            raise ValueError("a step without rows")
        for name, tensor, end in (
            ("ids", batch.ids, self._config.vocab),
            ("positions", batch.positions, self._config.context_max),
            ("slots", batch.slots, kv.blocks * BLOCK_ROWS),
            ("logit_rows", batch.logit_rows, rows),
        ):
            if tensor.numel() and not 0 <= int(tensor.min()) <= int(tensor.max()) < end:
                raise ValueError(f"{name} has a value outside of 0…{end - 1}")


def heads_of(config: ModelConfig, layer: int | None = None) -> Heads:
    """Shape of attention; of a layer also how far back it sees."""
    window = 0 if layer is None else config.window(layer)
    sinks = config.sinks if window else 0
    return Heads(config.heads, config.kv_heads, config.head_dim, window, sinks)


def _tensor(weights: Weights, name: str, layer: int) -> Tensor:
    return torch.from_numpy(weights.read(name, layer))
