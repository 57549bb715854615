"""Blocks of a GPU's pool and of its host tier, limits, and what is refused before any launch."""

from collections.abc import Callable

import pytest
import torch
from device_bed import gpu_kernels, gpu_model, gpu_runner
from doubles import Answers, config, request
from families_bed import random_model, some_ids, write_model

from firstlight.core_node.config import GpuSection, ModelSection
from firstlight.core_node.loading import load_engine
from firstlight.kernels import ops
from firstlight.kernels.draws import DrawTable
from firstlight.kernels.gpu.capture import Capture, launch_again
from firstlight.kernels.gpu.kernels import GpuKernels
from firstlight.shared.engine.device.model import GpuModel
from firstlight.shared.engine.device.packed import Staging
from firstlight.shared.engine.device.runner import GpuRunner, step_limits, with_pool
from firstlight.shared.engine.kv.manager import Moves
from firstlight.shared.engine.kv.storage import KvStorage, block_bytes
from firstlight.shared.engine.model import load
from firstlight.shared.engine.model.config import with_sinks
from firstlight.shared.engine.model.load import load_model, open_model
from firstlight.shared.engine.plan import SequencePlan, StepPlan
from firstlight.shared.errors import ConfigError

LIMITS = config(blocks=4, host_blocks=3, context_max=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tiny"), random_model("smollm2"))


@pytest.fixture(params=["f32", "bf16"])
def runner(request, folder) -> GpuRunner:
    made = gpu_runner(gpu_model(folder, "reference", weights=request.param), LIMITS)
    made._kv.pages.copy_(torch.randn(made._kv.pages.shape))
    return made


def test_a_block_moves_to_the_host_tier_and_back_bit_for_bit(runner):
    before, kept = runner.read_block(2), runner._kv.pages.clone()
    assert len(before) == runner.block_bytes
    runner.move(Moves(saves=((2, 1), (0, 2))))
    assert runner.read_slot(1) == before
    runner.move(Moves(fills=((1, 3),)))
    assert runner.read_block(3) == before
    assert torch.equal(runner._kv.pages[:, :, :3], kept[:, :, :3])


def test_what_leaves_is_copied_before_what_comes_takes_its_place(runner):
    leaving, coming = runner.read_block(0), runner.read_block(1)
    runner.write_slot(0, bytearray(coming))
    runner.move(Moves(saves=((0, 1),), fills=((0, 0),)))
    assert (runner.read_slot(1), runner.read_block(0)) == (leaving, coming)


def test_scrubbed_blocks_are_zeros_and_others_as_they_were(runner):
    kept = runner.read_block(2)
    runner.scrub([1, 3])
    assert runner.read_block(1) == runner.read_block(3) == bytes(runner.block_bytes)
    assert runner.read_block(2) == kept


def plan(ids, table, start=0) -> StepPlan:
    return StepPlan((SequencePlan("r", start, tuple(ids), 0, table, ()),))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (plan([3, 160], (0,)), r"ids has a value outside of 0…159"),
        (plan([3, -1], (0,)), r"ids has a value outside of 0…159"),
        (plan([3], (4,)), r"a table has a block outside of 0…3"),
        (plan([3] * 17, (0,)), r"1 blocks for 17 positions"),
        (plan([3] * 41, (0, 1, 2)), r"41 rows and a context of 41 tokens, expected at most 40"),
        (plan([3], (0, 1, 2, 3), start=64), r"context of 65 tokens, expected at most 40 and 64"),
        (StepPlan(plan([3], (0,)).sequences * 5), r"5 sequences, expected at most 4"),
    ],
)
def test_a_plan_that_contradicts_pool_vocabulary_or_limits_is_refused(runner, step, message):
    before = runner._kv.pages.clone()
    with pytest.raises(ValueError, match=message):
        runner.run(step)
    assert torch.equal(runner._kv.pages, before)


def test_shapes_are_captured_when_they_first_come(folder):
    runner = gpu_runner(gpu_model(folder, "reference"), LIMITS)
    for rows in (3, 4, 1, 2, 3):
        runner.run(plan(some_ids(rows), (1,)))
    assert runner.captures == 3  # of 4, 1 and 2 rows


def test_a_runner_that_is_warm_has_launched_what_steps_need_and_changed_no_block(folder):
    kinds: set[tuple[int, bool, bool]] = set()
    choose = ops.sample

    def sample(logits: torch.Tensor, draws: DrawTable, *, kernels: str) -> torch.Tensor:
        kinds.add((draws.rows, draws.filtered, draws.adjusted))
        return choose(logits, draws, kernels=kernels)

    runner = gpu_runner(gpu_model(folder, "reference"), LIMITS)
    before = runner._kv.pages.copy_(torch.randn(runner._kv.pages.shape)).clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "sample", sample)
        runner.warm()
    assert kinds == {(rows, asks, asks) for rows in (1, 2) for asks in (False, True)}
    assert torch.equal(runner._kv.pages, before)
    shapes = runner.captures
    for rows in (1, 3, 8, 20, 33):
        runner.run(plan(some_ids(rows), (1, 2, 3)))
    assert shapes == runner.captures == 7


def test_numbers_of_a_step_stay_until_the_device_has_them_though_nothing_is_sampled(
    folder, monkeypatch
):
    """A device that does nothing before somebody waits for it."""
    launched: list[Callable[[], None]] = []
    send = Staging.send

    def wait(_: GpuKernels) -> None:
        while launched:
            launched.pop(0)()

    ids, table = some_ids(20), (2, 0)
    pages = []
    for late in (False, True):
        if late:
            monkeypatch.setattr(Staging, "send", lambda *of: launched.append(lambda: send(*of)))
            monkeypatch.setattr(GpuKernels, "wait", wait)
        capture: Capture = (lambda run: lambda: launched.append(run)) if late else launch_again
        runner = gpu_runner(gpu_model(folder, "reference", capture=capture), LIMITS)
        for start, end in ((0, 7), (7, 12), (12, 20)):
            runner.run(plan(ids[start:end], table, start))
        assert not launched
        pages.append(runner._kv.pages)
    assert torch.equal(*pages)


def test_the_pool_gets_the_memory_that_is_left(folder):
    _, shape, source = open_model(folder)
    free = 40 << 20
    kernels = gpu_kernels("reference", free_bytes=free)
    model = GpuModel(shape, source, kernels, "f32")
    limits = with_pool(model, LIMITS, 0.5)
    one = block_bytes(shape, model.form)
    assert one == KvStorage(shape, 2, 0, model.form).block_bytes
    left = free // 2 - model.weights_bytes - limits.blocks * one
    largest = step_limits(model, LIMITS).largest
    assert left >= largest.rows * shape.vocab * 16  # at least the logits of a step
    smaller = with_pool(model, LIMITS, 0.4)
    assert limits.blocks - smaller.blocks == pytest.approx(free * 0.1 / one, abs=1)


def test_a_gpu_that_is_too_small_is_refused_before_a_pool_is_made(folder):
    _, shape, source = open_model(folder)
    model = GpuModel(shape, source, gpu_kernels("reference", free_bytes=100_000), "f32")
    with pytest.raises(ConfigError, match=r"weights take 0\.00 GB.*are missing"):
        with_pool(model, LIMITS, 0.9)


def test_memory_that_runs_out_while_weights_are_placed_names_the_tensor(folder, monkeypatch):
    def empty(*shape: int, **_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(ConfigError, match="no memory on cpu for embedding of layer 0, after 0"):
        gpu_model(folder, "reference")


def test_sinks_and_unknown_weights_are_refused(folder):
    _, shape, source = open_model(folder)
    with pytest.raises(ConfigError, match="sinks"):
        GpuModel(with_sinks(shape, 16, 4), source, gpu_kernels("reference"), "f32")
    with pytest.raises(ConfigError, match="weights 'q3' are unknown, expected auto, q4"):
        GpuModel(shape, source, gpu_kernels("reference"), "q3")


def test_the_class_says_kernels_architecture_and_formats_and_not_which_gpu(folder):
    _, shape, source = open_model(folder)

    def signature(architecture: tuple[int, int], weights: str) -> str:
        kernels = GpuKernels(torch.device("cpu"), architecture, 1, form="reference")
        return GpuModel(shape, source, kernels, weights).signature

    assert signature((9, 0), "bf16").startswith("reference sm_90 triton=")
    assert signature((9, 0), "bf16").endswith("weights=bf16 rows=bf16")
    assert signature((9, 0), "q8").endswith("weights=q8 rows=bf16")
    assert signature((9, 0), "f32") != signature((8, 0), "f32")
    first, second = (GpuKernels(torch.device("cuda", i), (9, 0), 1) for i in (0, 1))
    assert first.signature == second.signature


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA")
def test_a_core_that_is_told_of_a_gpu_does_not_start_without_one(folder):
    section = ModelSection(path=folder, device="cuda")
    with pytest.raises(ConfigError, match=r"model\.device is 'cuda'.*built without CUDA"):
        load_engine(section, LIMITS)


def test_a_core_on_a_gpu_serves_what_a_core_on_a_cpu_does(folder, monkeypatch):
    """All of the way from settings to a text, but that the GPU is none."""
    opened: list[tuple[str, bool]] = []

    def open_gpu(device: str, *, graphs: bool) -> GpuKernels:
        opened.append((device, graphs))
        return gpu_kernels("reference", free_bytes=12 << 20)

    warmed: list[bool] = []
    warm = GpuRunner.warm
    monkeypatch.setattr(GpuRunner, "warm", lambda own: warmed.append(True) or warm(own))
    monkeypatch.setattr(load, "open_gpu", open_gpu)
    limits = config(blocks=3, host_blocks=2, context_max=64, copy_bytes_per_s=None)
    section = ModelSection(
        path=folder, weights="f32", device="cuda:1", gpu=GpuSection(graphs=False)
    )
    core = load_engine(section, limits)
    assert opened == [("cuda:1", False)]
    assert warmed == [True]
    assert core.engine.blocks.total > 100
    assert core.offer.context_max == 64
    plain = load_engine(ModelSection(path=folder, weights="f32", kernels="reference"), limits)
    assert core.numerics_class != plain.numerics_class
    asked = request("r", some_ids(20), max_tokens=8)
    texts = []
    for loaded in (core, plain):
        loaded.engine.add(asked, epoch=1, credit=1000, now=0.0)
        texts.append(Answers().drain(loaded.engine).ids["r"])
    assert texts[0] == texts[1]


def test_a_step_that_finds_no_memory_keeps_a_core_from_starting_and_says_so(folder, monkeypatch):
    def warm(_: GpuRunner) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(
        load, "open_gpu", lambda *_, **__: gpu_kernels("reference", free_bytes=12 << 20)
    )
    monkeypatch.setattr(GpuRunner, "warm", warm)
    section = ModelSection(path=folder, weights="f32", device="cuda")
    with pytest.raises(ConfigError, match=r"no memory on cpu for a step.*memory_share is 0\.9"):
        load_engine(section, LIMITS)


def test_kernels_of_a_cpu_and_a_gpu_contradict_each_other(folder):
    with pytest.raises(ConfigError, match="kernels 'eager' are a CPU's, and device is 'cuda:1'"):
        load_model(folder, kernels="eager", device="cuda:1")


def test_a_share_of_memory_that_is_none_is_refused():
    with pytest.raises(ConfigError, match=r"memory_share is 1\.5"):
        GpuSection(memory_share=1.5)
