"""The model on a GPU: the layers of a decoder as launches of kernels, over memory that stays put.

The rows of a step go through all layers; only those that are sampled go through the head. A sum of
a layer and what came before is normed in the same launch that makes it. Attention has one form, for
prompts too, a row being the same however it was computed (decision 0019).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from firstlight.kernels import ops
from firstlight.kernels.gpu.kernels import GpuKernels
from firstlight.kernels.matrix import Matrix
from firstlight.kernels.plan import AttentionPlan
from firstlight.shared.engine.model.config import ModelConfig
from firstlight.shared.engine.model.rope import frequencies

_TURNED = 4096
"""Positions whose cosines and sines are worked out at once."""


class Places(Protocol):
    """Where the tensors of a model come from; see `place.Placer`."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows of a step."""
        ...

    def vector(self, *names: str, layer: int = 0) -> Tensor:
        """float32, joined."""
        ...

    def floats(self, *names: str, layer: int = 0) -> Tensor:
        """[outputs, inputs] of the rows' dtype."""
        ...

    def matrix(self, *names: str, layer: int = 0) -> Matrix:
        """One matrix of several."""
        ...

    def experts(self, names: Sequence[Sequence[str]], layer: int) -> Matrix:
        """One matrix for each expert."""
        ...


@dataclass(frozen=True)
class _Layer:
    attention_norm: Tensor
    qkv: Matrix
    qkv_bias: Tensor | None
    qk_norms: tuple[Tensor, Tensor] | None
    output: Matrix
    mlp_norm: Tensor
    router: Matrix | None
    """Of a mixture of experts; then the two below are one matrix for each."""
    gate_up: Matrix
    down: Matrix
    window: int


class Decoder:
    """Weights that are placed, and what is launched to run rows through them."""

    def __init__(self, config: ModelConfig, places: Places, kernels: GpuKernels) -> None:
        self._config, self._kernels = config, kernels
        self.dtype, self.hidden = places.dtype, config.hidden
        self._embedding = places.floats("embedding")
        self._layers = [_layer(config, places, layer) for layer in range(config.layers)]
        self._norm = places.vector("norm")
        self._head = Matrix("float", self._embedding) if config.tied else places.matrix("head")
        self._cosines, self._sines = _turns(config, kernels.device)
        self.turns_bytes = self._cosines.nbytes + self._sines.nbytes
        self.windows = tuple({layer.window: None for layer in self._layers})
        """Each that a layer has: an attention plan is needed for each."""

    def layers(self, ids: Tensor, plan: AttentionPlan, pages: Tensor) -> Tensor:
        """[n, hidden] of ids [n]: normed, ready for the head; writes keys and values of all rows.

        `plan` has the rows of one step, its window being of no account; `pages` is the whole pool.
        """
        form, eps = self._kernels.form, self._config.rms_eps
        plans = {window: replace(plan, window=window) for window in self.windows}
        total = self._embedding.index_select(0, ids)
        normed = ops.rms_norm(total, self._layers[0].attention_norm, eps, kernels=form)
        norms = [layer.attention_norm for layer in self._layers[1:]] + [self._norm]
        for layer, held, norm in zip(self._layers, pages, norms, strict=True):
            made = self._attend(layer, normed, plans, held)
            normed, total = ops.add_rms_norm(made, total, layer.mlp_norm, eps, kernels=form)
            made = self._mlp(layer, normed)
            normed, total = ops.add_rms_norm(made, total, norm, eps, kernels=form)
        return normed

    def head(self, rows: Tensor) -> Tensor:
        """Float32 logits [m, vocab] of what `layers` gave."""
        return ops.matmul(rows, self._head, dtype=torch.float32, kernels=self._kernels.form)

    def _attend(
        self, layer: _Layer, normed: Tensor, plans: Mapping[int, AttentionPlan], pages: Tensor
    ) -> Tensor:
        config, form = self._config, self._kernels.form
        plan = plans[layer.window]
        made = ops.matmul(normed, layer.qkv, bias=layer.qkv_bias, kernels=form)
        queries = ops.rotate_and_write(
            made.view(plan.rows, -1, config.head_dim),
            self._cosines,
            self._sines,
            plan,
            pages,
            norms=layer.qk_norms,
            eps=config.rms_eps,
            kernels=form,
        )
        attended = ops.attend_decode(queries, pages, plan, kernels=form)
        return ops.matmul(attended.view(plan.rows, -1), layer.output, kernels=form)

    def _mlp(self, layer: _Layer, normed: Tensor) -> Tensor:
        form, experts = self._kernels.form, self._config.experts
        if layer.router is None:
            wide = ops.matmul(normed, layer.gate_up, kernels=form)
            return ops.matmul(ops.silu_mul(wide, kernels=form), layer.down, kernels=form)
        assert experts is not None
        logits = ops.matmul(normed, layer.router, dtype=torch.float32, kernels=form)
        routes = ops.route(logits, experts.chosen, renormalize=experts.renormalize, kernels=form)
        return ops.mix_experts(normed, layer.gate_up, layer.down, routes, kernels=form)


def _layer(config: ModelConfig, places: Places, layer: int) -> _Layer:
    router, experts = None, config.experts
    if experts is not None and config.has_experts(layer):
        numbers = range(experts.count)
        router = places.matrix("router", layer=layer)
        gate_up = places.experts([(f"gate.{one}", f"up.{one}") for one in numbers], layer)
        down = places.experts([(f"down.{one}",) for one in numbers], layer)
    else:
        gate_up = places.matrix("gate", "up", layer=layer)
        down = places.matrix("down", layer=layer)
    bias = places.vector("q_bias", "k_bias", "v_bias", layer=layer) if config.qkv_bias else None
    norms = None
    if config.qk_norm:
        norms = places.vector("q_norm", layer=layer), places.vector("k_norm", layer=layer)
    return _Layer(
        attention_norm=places.vector("attention_norm", layer=layer),
        qkv=places.matrix("q", "k", "v", layer=layer),
        qkv_bias=bias,
        qk_norms=norms,
        output=places.matrix("o", layer=layer),
        mlp_norm=places.vector("mlp_norm", layer=layer),
        router=router,
        gate_up=gate_up,
        down=down,
        window=config.window(layer),
    )


def _turns(config: ModelConfig, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, head_dim / 2] of every position, worked out in float64."""
    scaling = config.rope_scaling
    each = torch.from_numpy(frequencies(config.rope_theta, config.head_dim, scaling))
    magnitude = 1.0 if scaling is None else scaling.magnitude
    shape = (config.context_max, config.head_dim // 2)
    cosines, sines = torch.empty(2, *shape, device=device)
    for start in range(0, config.context_max, _TURNED):
        positions = torch.arange(start, min(start + _TURNED, config.context_max))
        angles = positions.double()[:, None] * each
        own = slice(start, start + _TURNED)
        cosines[own], sines[own] = angles.cos() * magnitude, angles.sin() * magnitude
    return cosines, sines
