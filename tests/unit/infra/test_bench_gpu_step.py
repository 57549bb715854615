"""The benchmark of a whole step on a GPU, at the shapes of a tiny model, on a clock of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from device_bed import gpu_kernels

from firstlight.infra.bench.gpu_step import Figures, floor_ms, launches, measured, report
from firstlight.infra.bench.kernels.measure import Ceilings
from firstlight.infra.bench.kernels.shapes import LLAMA_8B, Shape

TINY = Shape(
    "tiny",
    hidden=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    intermediate=96,
    vocab=64,
    layers=2,
    experts=0,
    chosen=0,
    expert_intermediate=0,
    prefill=20,
    sequences=3,
    context=40,
)
TOP = Ceilings(bytes_per_s=1e12, operations_per_s=1e15)


class Timer:
    """Each call takes a millisecond more than the one before."""

    def __init__(self) -> None:
        self._calls = 0

    def ms(self, run) -> float:
        run()
        self._calls += 1
        return float(self._calls)

    def now_s(self) -> float:
        return 0.0


def test_a_step_of_the_8b_shape_reads_its_weights_once_and_all_keys_and_values():
    total = sum(one.times * one.bytes for one in launches(LLAMA_8B))
    weights = 2 * (32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14_336) + 128_256 * 4096)
    pool = 64 * 4096 * 32 * 2 * 1024 * 2
    assert weights + pool < total < 1.02 * (weights + pool)
    assert floor_ms(LLAMA_8B, TOP) == pytest.approx(total / 1e9, rel=1e-3)


def test_it_runs_steps_of_both_kinds_and_says_what_they_took():
    found = measured(TINY, gpu_kernels("reference"), Timer(), TOP, repeats=3)
    assert min(found.captured_ms, found.launched_ms, found.chunk_ms) > 0
    assert (found.invariant_ms, found.free_ms) == (1.0, 2.0)
    assert report(found).count(" ms") == 6


def test_the_cost_of_invariance_is_of_a_whole_chunk():
    found = Figures(8.0, 9.0, 12.0, chunk_ms=110.0, invariant_ms=2.0, free_ms=1.0, layers=10)
    assert found.invariance_cost == pytest.approx(0.1)
    assert found.of_floor == pytest.approx(1.125)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_and_measures_nothing():
    command = [sys.executable, "-m", "firstlight.infra.bench.gpu_step"]
    environment = {"PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Nothing was measured: device is 'cuda'" in done.stdout
