"""A whole step on a GPU: what it takes beside its kernels' floors, and what invariance costs.

    python -m firstlight.infra.bench.gpu_step [--device cuda] [--repeats 30]

A model of the shape of Llama 3.1 8B with random weights in bfloat16. 64 sequences of 4,096 tokens
decode a token each, with steps captured and launched anew; the floor is the sum over all launches
of a step of what its bytes or its products take at the ceilings that are measured first. Then a
chunk of 2,048 rows of a prompt: attention in the form that gives a row the same bits as decode does
(decision 0019), beside the form that would be taken if that did not matter.

Exit code 1 if a step takes more than 1.15 of its floor or invariance costs more than 20 %, and 2
where there is no GPU.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from statistics import median

import torch
from torch import Tensor

from firstlight.infra.bench.kernels.cases import Source
from firstlight.infra.bench.kernels.measure import Ceilings, DeviceTimer, Timer, ceilings
from firstlight.infra.bench.kernels.shapes import LLAMA_8B, Shape
from firstlight.infra.bench.machine import heading
from firstlight.kernels import ops
from firstlight.kernels.gpu.capture import launch_again
from firstlight.kernels.gpu.kernels import GpuKernels
from firstlight.kernels.matrix import Matrix
from firstlight.kernels.pages import BLOCK_ROWS, Span
from firstlight.kernels.plan import plan_attention
from firstlight.kernels.sets import open_gpu
from firstlight.shared.clock import monotonic_s
from firstlight.shared.engine.device.buckets import Limits
from firstlight.shared.engine.device.decoder import Decoder
from firstlight.shared.engine.device.model import cut
from firstlight.shared.engine.device.steps import Steps
from firstlight.shared.engine.model.config import ModelConfig
from firstlight.shared.engine.model.weights import expected_shapes
from firstlight.shared.engine.plan import SequencePlan, StepPlan
from firstlight.shared.sampling import Draw, History
from firstlight.shared.types import Sampling

STEP_OF_FLOOR_MAX = 1.15
INVARIANCE_COST_MAX = 0.2
_BYTES = 2
"""Of a number in bfloat16."""
_WARM = 3
"""Steps before those that count."""


@dataclass(frozen=True)
class Launch:
    """The launches of one kind in a step."""

    name: str
    times: int
    bytes: int
    """The least that one must read and write."""
    operations: int = 0
    """Multiplications and additions in its products."""


@dataclass(frozen=True)
class Figures:
    """What was measured, in ms."""

    floor_ms: float
    captured_ms: float
    launched_ms: float
    chunk_ms: float
    """A step of a chunk of a prompt."""
    invariant_ms: float
    """Attention of a layer of it in the form of decode."""
    free_ms: float
    """The same in the form of prefill."""
    layers: int

    @property
    def of_floor(self) -> float:
        """A captured step."""
        return self.captured_ms / self.floor_ms

    @property
    def invariance_cost(self) -> float:
        """Share by which a chunk takes longer than with the other form."""
        other_ms = self.chunk_ms - self.layers * (self.invariant_ms - self.free_ms)
        return self.chunk_ms / other_ms - 1


def launches(shape: Shape) -> Iterator[Launch]:
    """Of a step in which every sequence decodes one token."""
    rows, layers = shape.sequences, shape.layers
    query, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for name, outputs, inputs in (
        ("qkv", query + 2 * kv, shape.hidden),
        ("output", shape.hidden, query),
        ("gate and up", 2 * shape.intermediate, shape.hidden),
        ("down", shape.hidden, shape.intermediate),
    ):
        yield _product(name, layers, rows, outputs, inputs, _BYTES)
    yield _product("head", 1, rows, shape.vocab, shape.hidden, 4)
    turned = rows * (2 * query + 4 * kv) * _BYTES
    yield Launch("rotate and write", layers, turned)
    seen = rows * shape.context
    pairs = 4 * seen * query
    yield Launch("attention", layers, 2 * seen * kv * _BYTES + 2 * rows * query * _BYTES, pairs)
    yield Launch("sum and norm", 2 * layers, 4 * rows * shape.hidden * _BYTES)
    yield Launch("gate", layers, 3 * rows * shape.intermediate * _BYTES)
    yield Launch("embedding and norm", 1, 4 * rows * shape.hidden * _BYTES)
    yield Launch("sample", 1, 4 * rows * shape.vocab)


def floor_ms(shape: Shape, top: Ceilings) -> float:
    """The sum of what each launch takes at the ceiling that bounds it."""
    return 1e3 * sum(
        one.times * max(one.bytes / top.bytes_per_s, one.operations / top.operations_per_s)
        for one in launches(shape)
    )


def _product(name: str, times: int, rows: int, outputs: int, inputs: int, made: int) -> Launch:
    size = (outputs * inputs + rows * inputs) * _BYTES + rows * outputs * made
    return Launch(name, times, size, 2 * rows * outputs * inputs)


class Random:
    """`decoder.Places` of a model that nobody trained."""

    dtype = torch.bfloat16

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._shapes, self._source = expected_shapes(config), Source(device)

    def vector(self, *names: str, layer: int = 0) -> Tensor:
        """Around 1."""
        return 1 + 0.1 * self._source.floats(sum(self._shapes[name][0] for name in names)).float()

    def floats(self, *names: str, layer: int = 0) -> Tensor:
        """Such that rows keep their size."""
        outputs = sum(self._shapes[name][0] for name in names)
        inputs = self._shapes[names[0]][1]
        return self._source.floats(outputs, inputs).mul_(inputs**-0.5)

    def matrix(self, *names: str, layer: int = 0) -> Matrix:
        """The same."""
        return Matrix("float", self.floats(*names))

    def experts(self, names: Sequence[Sequence[str]], layer: int) -> Matrix:
        """There are none: the configuration has no experts."""
        raise AssertionError(names)


def measured(
    shape: Shape, kernels: GpuKernels, timer: Timer, top: Ceilings, repeats: int
) -> Figures:
    """Places the model, fills the pool with noise, and runs steps of both kinds."""
    config = _config(shape)
    source = Source(kernels.device)
    decoder = Decoder(config, Random(config, kernels.device), kernels)
    blocks = shape.sequences * -(-shape.context // BLOCK_ROWS)
    one = (2, blocks, shape.kv_heads, BLOCK_ROWS, shape.head_dim)
    pages = torch.empty(shape.layers, *one, dtype=torch.bfloat16, device=kernels.device)
    for held in pages:
        held.copy_(source.floats(*one))
    limits = Limits(max(shape.prefill, shape.sequences), shape.sequences, shape.context)

    def steps(own: GpuKernels) -> Steps:
        return Steps(decoder, own, pages, limits, shape.vocab)

    anew = replace(kernels, capture=launch_again)
    captured_ms = _wall_ms(steps(kernels), _decode(shape), repeats)
    launched_ms = _wall_ms(steps(anew), _decode(shape), repeats)
    chunk_ms = _wall_ms(steps(anew), _chunk(shape), max(3, repeats // 3))
    invariant_ms, free_ms = _attention_ms(shape, kernels, timer, source, pages[0])
    return Figures(
        floor_ms(shape, top),
        captured_ms,
        launched_ms,
        chunk_ms,
        invariant_ms,
        free_ms,
        shape.layers,
    )


def _attention_ms(
    shape: Shape, kernels: GpuKernels, timer: Timer, source: Source, pages: Tensor
) -> tuple[float, float]:
    """(as decode does it, as prefill does it) for the chunk."""
    queries = source.floats(shape.prefill, shape.heads, shape.head_dim)
    span, table = Span(0, shape.prefill, shape.prefill), _table(shape, 0)
    pieces = list(cut(span))
    strict, free = (
        plan_attention(spans, [table] * len(spans), pages.shape[1], device=kernels.device)
        for spans in (pieces, [span])
    )
    form = kernels.form
    return (
        timer.ms(lambda: ops.attend_decode(queries, pages, strict, kernels=form)),
        timer.ms(lambda: ops.attend_prefill(queries, pages, free, kernels=form)),
    )


@torch.inference_mode()
def _wall_ms(steps: Steps, plans: Iterator[StepPlan], repeats: int) -> float:
    """Median of steps, from the plan to the ids on the host; after some that compile."""
    times_ms = []
    for place in range(_WARM + repeats):
        plan = next(plans)
        began_s = monotonic_s()
        steps.run(plan)
        if place >= _WARM:
            times_ms.append(1e3 * (monotonic_s() - began_s))
    return median(times_ms)


def _decode(shape: Shape) -> Iterator[StepPlan]:
    """One token of each sequence, greedy."""
    history = History(())
    last = shape.context - 1
    for step in count():
        draw = (Draw(Sampling(temperature=0.0), step, 0, shape.context, history),)
        ids = [(step + one) % shape.vocab for one in range(shape.sequences)]
        parts = [
            SequencePlan(str(one), last, (token,), 0, _table(shape, one), draw)
            for one, token in enumerate(ids)
        ]
        yield StepPlan(tuple(parts))


def _chunk(shape: Shape) -> Iterator[StepPlan]:
    """The rows of a prompt, the last of which is sampled."""
    rows = shape.prefill
    for step in count():
        ids = tuple((step + 7 * row) % shape.vocab for row in range(rows))
        draw = (Draw(Sampling(temperature=0.0), step, 0, rows, History(())),)
        yield StepPlan((SequencePlan("chunk", 0, ids, 0, _table(shape, 0), draw),))


def _table(shape: Shape, sequence: int) -> tuple[int, ...]:
    each = -(-shape.context // BLOCK_ROWS)
    return tuple(range(sequence * each, (sequence + 1) * each))


def _config(shape: Shape) -> ModelConfig:
    return ModelConfig(
        architecture="llama",
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate=shape.intermediate,
        vocab=shape.vocab,
        rope_theta=500_000.0,
        rms_eps=1e-5,
        context_max=shape.context,
        tied=False,
        qkv_bias=False,
        qk_norm=False,
        eos_ids=(),
    )


def report(found: Figures) -> str:
    """What was measured, beside what it should be."""
    return (
        f"a step of decode: {found.captured_ms:.2f} ms captured, {found.launched_ms:.2f} ms "
        f"launched anew; floor {found.floor_ms:.2f} ms, {found.of_floor:.2f} of it (at most "
        f"{STEP_OF_FLOOR_MAX})\n"
        f"a chunk of a prompt: {found.chunk_ms:.2f} ms; attention of a layer "
        f"{found.invariant_ms:.3f} ms, as prefill does it {found.free_ms:.3f} ms: invariance costs "
        f"{found.invariance_cost:.1%} (at most {INVARIANCE_COST_MAX:.0%})"
    )


def main() -> int:
    """Exit code: 0 as it should be, 1 slower, 2 nothing to measure on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    print(heading())
    try:
        kernels = open_gpu(options.device)
    except ValueError as error:
        print(f"Nothing was measured: {error}")
        return 2
    with kernels.here():
        return _measure(kernels, options.repeats)


def _measure(kernels: GpuKernels, repeats: int) -> int:
    timer = DeviceTimer()
    top = ceilings(kernels.device, timer)
    print(
        f"{torch.cuda.get_device_name(kernels.device)}: copies at {top.bytes_per_s / 1e9:,.0f} "
        f"GB/s, bfloat16 products at {top.operations_per_s / 1e12:,.0f} TFLOP/s"
    )
    found = measured(LLAMA_8B, kernels, timer, top, repeats)
    print(report(found))
    slow = found.of_floor > STEP_OF_FLOOR_MAX or found.invariance_cost > INVARIANCE_COST_MAX
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
