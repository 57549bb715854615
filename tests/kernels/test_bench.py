"""The benchmark of the kernels, at the shapes of a tiny model and with a clock of its own."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from firstlight.infra.bench.kernels import measure as measuring
from firstlight.infra.bench.kernels.cases import Case, Prepared, cases
from firstlight.infra.bench.kernels.measure import Ceilings, ceilings, measure
from firstlight.infra.bench.kernels.report import as_json, measured_head, measured_row
from firstlight.infra.bench.kernels.shapes import Shape

TINY = Shape(
    "tiny",
    hidden=128,
    heads=4,
    kv_heads=2,
    head_dim=32,
    intermediate=128,
    vocab=512,
    layers=2,
    experts=4,
    chosen=2,
    expert_intermediate=128,
    prefill=16,
    sequences=2,
    context=32,
)
TOP = Ceilings(bytes_per_s=1e9, operations_per_s=1e12)
SHOWN = {"sample top-k", "sample top-p"}
"""Slow in the interpreter, and run at length elsewhere."""


class Timer:
    """Every call takes two milliseconds, and is made once."""

    def __init__(self, step_s: float = 0.0) -> None:
        self._now_s, self._step_s = 0.0, step_s

    def ms(self, run: Callable[[], object]) -> float:
        run()
        return 2.0

    def now_s(self) -> float:
        self._now_s += self._step_s
        return self._now_s


TINY_CASES = [case for case in cases(TINY) if case.name not in SHOWN]


@pytest.mark.parametrize("case", TINY_CASES, ids=lambda case: f"{case.name} {case.shape}")
def test_every_case_runs_and_is_as_exact_as_it_must_be(case, device):
    (one,), left_out = measure([case], device, Timer(), TOP, lambda _: None)
    assert left_out == []
    assert not one.wrong, measured_row(one)


def faulty(error: float) -> Case:
    def prepare(device: torch.device) -> Prepared:
        right = torch.ones(3, dtype=torch.float64)
        return Prepared(lambda: None, lambda: (right + error, right.float(), right))

    return Case("rms_norm", "bf16", "tiny", "3", 4_000_000, 8_000_000_000, prepare)


@pytest.mark.parametrize(("error", "wrong"), [(0.0, False), (1e-3, True), (float("nan"), True)])
def test_a_result_beyond_its_budget_is_said_to_be_wrong(error, wrong):
    (one,), _ = measure([faulty(error)], torch.device("cpu"), Timer(), TOP, lambda _: None)
    assert one.wrong is wrong
    assert ("WRONG" in measured_row(one)) is wrong


def test_the_share_is_of_the_ceiling_that_takes_longer():
    (one,), _ = measure([faulty(0.0)], torch.device("cpu"), Timer(), TOP, lambda _: None)
    assert one.floor_ms == pytest.approx(8.0)  # products: 8 ms, bytes: 4 ms
    assert one.by_products
    assert one.share == pytest.approx(4.0)
    assert "4 TFLOP/s" in measured_row(one)


def test_a_row_has_as_many_cells_as_the_head():
    (one,), _ = measure([faulty(0.0)], torch.device("cpu"), Timer(), TOP, lambda _: None)
    assert measured_row(one).count("|") == measured_head().splitlines()[0].count("|")


def test_what_there_is_no_time_for_is_named_and_not_run():
    late = Timer(step_s=measuring.BUDGET_S / 2)
    found, left_out = measure([faulty(0.0)] * 3, torch.device("cpu"), late, TOP, lambda _: None)
    assert (len(found), len(left_out)) == (2, 1)
    assert as_json(TOP, found, left_out)["left_out"] == ["tiny rms_norm bf16"]


def test_the_ceilings_are_a_copy_and_a_product():
    top = ceilings(torch.device("cpu"), Timer(), scale=4096)
    assert top.bytes_per_s == pytest.approx(2 * (2 << 30) / 4096 / 2e-3)
    assert top.operations_per_s == pytest.approx(2 * 16**3 / 2e-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_and_measures_nothing():
    command = [sys.executable, "-m", "firstlight.infra.bench.kernels", "--only", "silu"]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "There is no GPU here: nothing was measured" in done.stdout
    assert "| silu_mul bf16 | 8B | 2048 × 14336 | 176.2 |" in done.stdout
