"""What the engine's thread tells of its steps: to the metrics, and to whoever looks into them."""

from collections.abc import AsyncIterator

import pytest
from doubles import alone, request
from native_bed import CREDIT, Bench, build

from firstlight.core_node.backends import inbox
from firstlight.shared.stream import TokenStream
from firstlight.shared.types import Hint, Priority


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = build(speculation="always")
    yield made
    made.runner.open.set()
    made.backend.stop()


async def test_a_step_that_brings_nobody_an_id_is_told_too(bench: Bench) -> None:
    bench.start()
    bench.backend.open(request("a", range(40), max_tokens=2), 1, (), CREDIT)
    await bench.until(lambda: bench.done("a"))
    steps = [(batch.rows, batch.prefill_tokens) for batch in bench.batches if batch.rows]
    assert steps == [(24, 24), (16, 16), (1, 0)]
    assert len({batch.ended_s for batch in bench.batches if batch.rows}) == 3


async def test_batches_say_how_requests_ended(bench: Bench) -> None:
    bench.start()
    bench.backend.open(request("left", max_tokens=200), 1, (), 3 + 2)
    bench.backend.open(request("whole", max_tokens=3), 1, (), CREDIT)
    await bench.until(lambda: bench.done("whole") and bench.ids("left"))
    bench.backend.cancel("left")
    bench.backend.cancel("whole")  # too late: it counts as what it was
    await bench.until(lambda: bench.done("left") and len(bench.done("whole")) == 2)
    endings = [ending for batch in bench.batches for ending in batch.endings]
    assert endings == [("whole", "length"), ("left", "abort")]


async def test_batches_say_how_drafts_fared(bench: Bench) -> None:
    asked = request("a", max_tokens=16)
    chain = TokenStream((1, 2, 3)).chain
    bench.backend.open(asked, 1, (), CREDIT)
    bench.backend.hint(Hint("a", 3, chain, tuple(alone(asked)), "edge-model"))
    bench.start()
    await bench.until(lambda: bench.done("a"))
    drafts = [draft for batch in bench.batches for draft in batch.drafts]
    assert all(drafted == accepted for drafted, accepted in drafts)
    [((_, count),)] = bench.done("a")  # type: ignore[misc]
    assert sum(drafted for drafted, _ in drafts) == count.verified > 10


async def test_a_batch_says_how_many_hinted_ids_gave_way_before_a_step(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "HINTS_WAITING_MAX", 1)
    bench.backend.open(request("a", max_tokens=2), 1, (), CREDIT)
    for ids in ((1, 2, 3), (4, 5), (6,)):
        bench.backend.hint(Hint("a", 3, bytes(8), ids, "edge-model"))
    bench.start()
    await bench.until(lambda: bench.done("a"))
    dropped = [one for batch in bench.batches for one in batch.hint_ids_dropped]
    assert dropped == [("edge-model", 5)]


async def test_a_preemption_is_counted_in_its_step() -> None:
    bench = build(sequences_max=1, speculation="off")
    bench.start()
    bench.backend.open(request("batch", priority=Priority.BATCH, max_tokens=60), 1, (), CREDIT)
    await bench.until(lambda: bench.ids("batch"))
    bench.backend.open(request("now", priority=Priority.CRITICAL, max_tokens=2), 1, (), CREDIT)
    await bench.until(lambda: bench.done("batch"))
    bench.backend.stop()
    assert sum(batch.preemptions for batch in bench.batches) == bench.engine.counts.preemptions == 1


async def test_the_log_of_steps_tells_a_request_from_its_arrival_to_its_end(bench: Bench) -> None:
    bench.start()
    bench.backend.open(request("a", range(40), max_tokens=2), 1, (), CREDIT)
    await bench.until(lambda: bench.done("a"))
    await bench.until(lambda: len(bench.backend.steps()) == 3)
    first, second, third = bench.backend.steps()
    [(handle, arrived_s)] = first.arrived
    assert handle == "a"
    assert arrived_s <= first.began_s <= first.ended_s <= first.handed_s <= second.began_s
    assert [(one.tokens, one.samples) for one in first.ran + second.ran + third.ran] == [
        (24, False),
        (16, True),
        (1, True),
    ]
    assert [event.turn for event in first.turns] == ["admitted", "first step"]
    assert (first.running, first.waiting) == (1, 0)
    assert first.kv_used_share == 2 / 32
    assert third.ended == (("a", "length"),)
    assert (third.running, third.kv_used_share) == (0, 0.0)


async def test_the_log_of_steps_says_what_failed_by_its_kind_alone(bench: Bench) -> None:
    bench.start()
    bench.backend.open(request("a", (1, 2, 4711)), 1, (), CREDIT)
    await bench.until(bench.failures)
    await bench.until(bench.backend.steps)
    [step] = bench.backend.steps()
    assert step.ended == (("a", "request"),)
    assert "4711" not in repr(step)


async def test_while_all_stand_still_no_step_is_logged(bench: Bench) -> None:
    bench.start()
    bench.backend.open(request("a", max_tokens=8), 1, (), 3 + 2)
    await bench.until(lambda: "stalled" in [mark.what for mark in bench.backend.marks("a")])
    turns, logged = bench.backend.load().steps, len(bench.backend.steps())
    await bench.until(lambda: bench.backend.load().steps > turns + 2)
    assert len(bench.backend.steps()) <= logged + 1
