"""The engine over the runner of a GPU: each text is what the reference in torch says, however it
was computed, and a captured step is a function of what lies in memory alone."""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import pytest
import torch
from device_bed import Held, gpu_model, gpu_runner
from doubles import Answers, config, request
from families_bed import CASES, random_model, some_ids, their_logits, write_model
from kernel_bed import same_bits
from tape import Tape, launches

from firstlight.kernels.gpu.capture import launch_again
from firstlight.shared.engine.device.model import GpuModel
from firstlight.shared.engine.device.packed import Staging
from firstlight.shared.engine.device.runner import largest_step_bytes
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.kv.storage import KvStorage
from firstlight.shared.engine.model.batch import SequenceRows, join_rows
from firstlight.shared.engine.model.load import load_model
from firstlight.shared.engine.plan import EngineConfig, SequencePlan, StepPlan
from firstlight.shared.engine.runner import TorchRunner
from firstlight.shared.sampling import Draw, History
from firstlight.shared.types import Priority, Sampling

GREEDY = Sampling(temperature=0.0, repetition_penalty=1.5)
"""A random model that is greedy without a penalty says one word for ever."""
ERROR = 2e-5
"""Of the largest logit, as in `test_families`."""
LIMITS = config(blocks=16, context_max=64, speculation="always")
SHORT = request("short", some_ids(5, 2), max_tokens=6, sampling=GREEDY)
LONG = request("long", some_ids(21, 3), max_tokens=4, sampling=Sampling(top_k=40), seed=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("tiny"), random_model("llama-3"))


@pytest.fixture(scope="module")
def truth(folder) -> dict[str, list[int]]:
    """By the reference in torch, each alone."""
    model = load_model(folder, weights="f32", kernels="reference")
    answers = {}
    for one in (SHORT, LONG):
        runner = TorchRunner(model, model.storage(LIMITS.blocks))
        answers |= said(Engine(runner, LIMITS), one)
    return answers


@pytest.fixture(scope="module", params=["reference", "gpu"])
def model(request, folder) -> GpuModel:
    return gpu_model(folder, request.param)


def engine_of(model: GpuModel, limits: EngineConfig = LIMITS) -> Engine:
    return Engine(gpu_runner(model, limits), limits)


def said(engine: Engine, *requests) -> dict[str, list[int]]:
    for one in requests:
        engine.add(one, epoch=1, credit=10_000, now=0.0)
    answers = Answers().drain(engine)
    assert answers.errors == {}
    return answers.ids


def test_a_text_alone_is_that_of_the_reference(model, truth):
    assert said(engine_of(model), SHORT) == {"short": truth["short"]}


def test_texts_in_company_and_a_prompt_in_chunks_are_those_of_each_alone(model, truth):
    limits = config(blocks=16, context_max=64, prefill_chunk=9, step_tokens_max=12)
    assert said(engine_of(model, limits), SHORT, LONG) == truth


@pytest.mark.parametrize("wrong", [0, 1])
def test_hints_change_the_number_of_steps_and_no_text(model, truth, wrong):
    engine, answers = engine_of(model), Answers()
    engine.add(SHORT, epoch=1, credit=10_000, now=0.0)
    while engine.has_work:
        for name, position in engine.next_positions().items():
            known = position - len(SHORT.prompt)
            ids = [*truth["short"][known : known + 3]]
            if wrong and len(ids) > 1:
                ids[1] = (ids[1] + 1) % 160
            engine.candidate(name, position, tuple(ids), ("s",) * len(ids))
        answers.step(engine, 0.0)
    assert answers.ids == {"short": truth["short"]}
    assert answers.steps == (3 if wrong else 2)


@pytest.mark.parametrize("host_blocks", [0, 4])
def test_a_text_that_lost_its_place_goes_on_as_if_it_had_not(model, truth, host_blocks):
    limits = config(
        blocks=3, context_max=48, sequences_max=2, host_blocks=host_blocks, copy_bytes_per_s=1e12
    )
    engine = engine_of(model, limits)
    engine.add(LONG, epoch=1, credit=10_000, now=0.0)
    answers = Answers()
    while not answers.ids.get("long"):
        answers.step(engine, 0.0)
    urgent = request("urgent", some_ids(30, 9), max_tokens=1, priority=Priority.CRITICAL)
    engine.add(urgent, epoch=1, credit=10_000, now=0.0)
    answers.drain(engine)
    assert engine.counts.preemptions == 1
    assert engine.counts.offloads == (1 if host_blocks else 0)
    assert answers.ids["long"] == truth["long"]


INTERPRETED = ("qwen2-window", "mixtral")
"""Biases and a window; experts. The other families have nothing that other tests do not launch."""
FAMILIES = [("gpu" if case in INTERPRETED else "reference", case) for case in CASES]


@pytest.mark.parametrize(("form", "case"), FAMILIES)
def test_logits_are_those_of_transformers(form, case, tmp_path):
    theirs, ids = random_model(case), some_ids(26)
    made = gpu_model(write_model(tmp_path, theirs), form)
    kv = KvStorage(made.config, 4, 0, made.form)
    parts = [(0, 15), (15, 26)]
    rows = [SequenceRows(ids[a:b], a, [3, 1], range(b - a)) for a, b in parts]
    found = torch.cat([made.logits(join_rows([part]), kv) for part in rows])
    expected = their_logits(theirs, ids)
    assert (found - expected).abs().max() < ERROR * expected.abs().max()


def plans() -> Iterator[StepPlan]:
    """Steps of one shape, each with other sequences, rows, tables and draws; then of another."""
    numbers = count()

    def one(start: int, rows: int, table: tuple[int, ...], drafted: int = 0, draws: bool = True):
        ids = tuple(some_ids(rows, next(numbers)))
        sampling = GREEDY if rows % 2 else Sampling()
        asked = tuple(
            Draw(sampling, 7, 0, start + rows - drafted + i, History((1, 5)), ids[rows - drafted :])
            for i in range(drafted + 1)
        )
        return SequencePlan(str(start), start, ids, drafted, table, asked if draws else ())

    yield StepPlan((one(0, 5, (7,)), one(0, 3, (2,), draws=False)))
    yield StepPlan((one(3, 1, (2,)), one(5, 4, (7,), drafted=3), one(0, 2, (9,))))
    yield StepPlan((one(4, 5, (2,), drafted=4),))
    yield StepPlan((one(0, 11, (4,)),))
    yield StepPlan((one(9, 6, (7,)),))


def run_all(model: GpuModel) -> tuple[list[np.ndarray], torch.Tensor]:
    runner = gpu_runner(model, LIMITS)
    ran = [runner.run(plan) for plan in plans()]
    ids = [np.array([one.id for rows in step.sampled for one in rows]) for step in ran]
    return ids, runner._kv.pages


def test_a_captured_step_depends_on_nothing_but_what_lies_in_memory(folder):
    tape = Tape()
    expected, pages = run_all(gpu_model(folder))
    found, theirs = run_all(gpu_model(folder, capture=tape))
    assert all(map(np.array_equal, found, expected))
    assert same_bits(theirs, pages)
    assert (tape.replays, tape.reads) == (5, 0)


def test_rows_of_no_sequence_change_no_bit_and_write_no_key(folder):
    """A step of five rows runs as one of eight; the model's own way has five."""
    made = gpu_model(folder)
    plan = list(plans())[2]
    assert plan.rows == 5
    runner = gpu_runner(made, LIMITS)
    runner.run(plan)
    kv = KvStorage(made.config, LIMITS.blocks, 0, made.form)
    parts = [SequenceRows(one.ids, one.start, one.table) for one in plan.sequences]
    made.logits(join_rows(parts), kv)
    assert same_bits(runner._kv.pages, kv.pages)


def test_a_row_has_the_same_bits_in_a_prompt_in_chunks_decoded_and_in_company(folder):
    made, ids = gpu_model(folder), some_ids(18)
    kv = KvStorage(made.config, 8, 0, made.form)

    def logits(*parts: SequenceRows) -> torch.Tensor:
        return made.logits(join_rows(parts), kv)

    whole = logits(SequenceRows(ids, 0, [5, 2], (16, 17)))
    logits(SequenceRows(ids[:7], 0, [1, 4]))
    logits(SequenceRows(ids[7:16], 7, [1, 4]))
    other = SequenceRows(some_ids(3, 4), 0, [6], ())
    decoded = [
        logits(other, SequenceRows(ids[16:17], 16, [1, 4], (0,))),
        logits(SequenceRows(ids[17:], 17, [1, 4], (0,))),
    ]
    assert same_bits(torch.cat(decoded), whole)


@pytest.mark.parametrize("case", ["llama-3", "mixtral"])
def test_no_step_takes_more_memory_than_is_set_aside_for_it(case, tmp_path):
    made = gpu_model(write_model(tmp_path, random_model(case)))
    limits = config(blocks=8, context_max=128, sequences_max=1, hint_ids_max=3)
    runner = gpu_runner(made, limits)
    ids = tuple(some_ids(40))
    asked = tuple(
        Draw(Sampling(top_p=0.9), 7, 0, 37 + i, History((1, 5)), ids[37 : 37 + i]) for i in range(4)
    )
    held = Held()
    with held, launches(deque(maxlen=0)):
        runner.run(StepPlan((SequencePlan("r", 0, ids, 3, (0, 1, 2), asked),)))
    expected = largest_step_bytes(made, limits)
    assert expected / 3 < held.most <= expected


@pytest.fixture
def sent(monkeypatch) -> list[int]:
    """Bytes of each copy to the device."""
    sizes: list[int] = []
    send = Staging.send

    def counted(self: Staging, size: int) -> None:
        sizes.append(size)
        send(self, size)

    monkeypatch.setattr(Staging, "send", counted)
    return sizes


def test_a_step_sends_two_runs_of_numbers_and_reads_one(folder, sent, monkeypatch):
    model = gpu_model(folder, "reference", capture=launch_again)
    runner = gpu_runner(model, LIMITS)
    each = list(plans())[:3]
    runner.run(each[0])
    sent.clear()
    reads: list[tuple[int, ...]] = []
    read: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda t: reads.append(t.shape) or read(t))
    runner.run(each[1])
    runner.run(each[2])
    assert len(sent) == 4
    assert reads == [(6,), (5,)]  # an id for each row that is sampled
