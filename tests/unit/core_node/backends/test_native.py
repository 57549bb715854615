"""The engine on its own thread: what goes in, what comes out, and when it sleeps."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from doubles import VOCAB, alone, request
from native_bed import CREDIT, Bench, build

from firstlight.core_node.backends import inbox, native
from firstlight.shared.errors import CapacityError, ErrorKind
from firstlight.shared.stream import TokenStream
from firstlight.shared.types import Hint, Priority, Sampling

GREEDY = Sampling(temperature=0.0)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = build(speculation="always")
    yield made
    made.runner.open.set()
    made.backend.stop()


async def test_an_answer_comes_as_commits_and_one_done(bench: Bench) -> None:
    bench.start()
    bench.backend.open(request("a", max_tokens=12), 3, (), CREDIT)
    await bench.until(lambda: bench.done("a"))
    assert bench.ids("a") == alone(request("a", max_tokens=12))
    assert bench.done("a") == [()]
    assert {commit.epoch for batch in bench.batches for commit in batch.commits} == {3}


async def test_results_arrive_on_the_event_loop_one_batch_a_step(bench: Bench) -> None:
    for name in "abc":
        bench.backend.open(request(name, max_tokens=6), 1, (), CREDIT)
    bench.start()
    await bench.until(lambda: all(bench.done(name) for name in "abc"))
    assert bench.threads == {threading.current_thread().name}
    assert len(bench.batches) <= bench.engine.steps


async def test_the_first_commit_says_what_the_start_cost(bench: Bench) -> None:
    bench.start()
    bench.backend.open(request("a", max_tokens=3), 1, (), CREDIT)
    await bench.until(lambda: bench.done("a"))
    first, *others = [commit for batch in bench.batches for commit in batch.commits]
    assert first.cached_tokens == 0
    assert first.queue_ms is not None
    assert first.prefill_ms is not None
    assert all(commit.cached_tokens is None for commit in others)


async def test_the_wait_for_the_step_that_runs_counts_as_queue_and_the_step_as_prefill(
    bench: Bench,
) -> None:
    bench.start()
    bench.runner.open.clear()
    bench.backend.open(request("a", max_tokens=1), 1, (), CREDIT)
    await bench.until(bench.runner.entered.is_set)
    bench.backend.open(request("b", max_tokens=1), 1, (), CREDIT)
    await asyncio.sleep(0.2)
    bench.runner.open.set()
    await bench.until(lambda: bench.done("a") and bench.done("b"))
    times = {
        commit.request: (commit.queue_ms, commit.prefill_ms)
        for batch in bench.batches
        for commit in batch.commits
    }
    (queue_a, prefill_a), (queue_b, prefill_b) = times["a"], times["b"]
    assert None not in (queue_a, prefill_a, queue_b, prefill_b)
    assert queue_a < 190 <= prefill_a  # type: ignore[operator]
    assert prefill_b < 190 <= queue_b  # type: ignore[operator]


async def test_a_resumed_answer_goes_on_where_it_was(bench: Bench) -> None:
    whole = alone(request("a", max_tokens=12))
    bench.start()
    bench.backend.open(request("a", max_tokens=12), 2, tuple(whole[:5]), CREDIT)
    await bench.until(lambda: bench.done("a"))
    commits = [commit for batch in bench.batches for commit in batch.commits]
    assert commits[0].position == 8
    assert [token for commit in commits for token in commit.ids] == whole[5:]


async def test_true_hints_save_steps_and_are_counted(bench: Bench) -> None:
    asked = request("a", max_tokens=16)
    whole = alone(asked)
    hint = Hint("a", 3, TokenStream((1, 2, 3)).chain, tuple(whole), "edge-model")
    bench.backend.open(asked, 1, (), CREDIT)
    bench.backend.hint(hint)
    bench.backend.hint(hint)
    bench.start()
    await bench.until(lambda: bench.done("a"))
    assert bench.ids("a") == whole
    [((source, count),)] = bench.done("a")  # type: ignore[misc]
    assert (source, count.offered) == ("edge-model", 16)
    assert count.accepted == count.verified > 10
    assert bench.engine.steps <= 4


async def test_false_hints_change_nothing_but_the_counts(bench: Bench) -> None:
    asked = request("a", max_tokens=16)
    whole = alone(asked)
    wrong = tuple((token + 1) % VOCAB for token in whole)
    bench.backend.open(asked, 1, (), CREDIT)
    for start in range(3, 19):
        chain = TokenStream((1, 2, 3), whole[: start - 3]).chain
        bench.backend.hint(Hint("a", start, chain, wrong[start - 3 :], "edge-ngram"))
    bench.start()
    await bench.until(lambda: bench.done("a"))
    assert bench.ids("a") == whole
    [((_, count),)] = bench.done("a")  # type: ignore[misc]
    assert count.accepted == 0
    assert count.verified > 0


async def test_the_drafter_beside_the_core_is_a_source_like_any_other() -> None:
    bench = build(ngram=True, speculation="always")
    repeating = replace(
        request("a", (1, 2, 3), max_tokens=40),
        sampling=Sampling(temperature=0.0, logit_bias=((5, 100.0), (6, 99.9))),
    )
    bench.backend.open(repeating, 1, (), CREDIT)
    bench.start()
    await bench.until(lambda: bench.done("a"))
    bench.backend.stop()
    assert bench.ids("a") == alone(repeating)
    [((source, count),)] = bench.done("a")  # type: ignore[misc]
    assert source == "core-ngram"
    assert count.accepted > 0
    assert bench.engine.steps < 40


async def test_a_cancelled_request_ends_with_its_statistics_and_frees_its_blocks(
    bench: Bench,
) -> None:
    bench.runner.open.clear()
    bench.start()
    bench.backend.open(request("a", max_tokens=200), 1, (), CREDIT)
    await bench.until(bench.runner.entered.is_set)
    assert bench.backend.cancel("a")
    bench.runner.open.set()
    await bench.until(lambda: bench.done("a"))
    await bench.until(lambda: bench.backend.load().running == 0)
    blocks = bench.backend.blocks()
    assert (blocks.used, blocks.free + blocks.cached) == (0, blocks.total)
    ended = len(bench.ids("a"))
    assert ended <= 1
    assert bench.backend.cancel("a")  # idempotent
    await asyncio.sleep(0.05)
    assert len(bench.ids("a")) == ended


async def test_a_request_cancelled_before_a_step_took_it_leaves_nothing(bench: Bench) -> None:
    bench.backend.open(request("a"), 1, (), CREDIT)
    assert not bench.backend.cancel("a")
    bench.start()
    bench.backend.open(request("b", max_tokens=2), 1, (), CREDIT)
    await bench.until(lambda: bench.done("b"))
    assert bench.ids("a") == []


async def test_at_its_credit_a_sequence_stands_and_the_thread_sleeps(bench: Bench) -> None:
    bench.start()
    bench.backend.open(request("a", max_tokens=20), 1, (), 3 + 5)
    await bench.until(lambda: len(bench.ids("a")) == 5)
    ran, looked = bench.engine.steps, len(bench.runner.plans)
    await asyncio.sleep(0.2)
    assert (bench.engine.steps, len(bench.runner.plans)) == (ran, looked)
    assert len(bench.ids("a")) == 5
    bench.backend.credit("a", 3 + 20)
    await bench.until(lambda: bench.done("a"))
    assert bench.ids("a") == alone(request("a", max_tokens=20))


async def test_waiting_for_credit_does_not_spin(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = []
    step = bench.engine.step
    monkeypatch.setattr(bench.engine, "step", lambda now: turns.append(now) or step(now))
    bench.start()
    bench.backend.open(request("a", max_tokens=20), 1, (), 3 + 5)
    await bench.until(lambda: len(bench.ids("a")) == 5)
    before = len(turns)
    await asyncio.sleep(0.3)
    assert len(turns) - before <= 0.3 / native.IDLE_STEP_S + 2
    bench.backend.cancel("a")
    await bench.until(lambda: bench.done("a"))
    before = len(turns)
    await asyncio.sleep(0.1)
    assert len(turns) == before


async def test_a_core_whose_clients_all_stand_still_does_not_look_hung(bench: Bench) -> None:
    bench.start()
    bench.backend.open(request("a", max_tokens=20), 1, (), 3 + 5)
    await bench.until(lambda: len(bench.ids("a")) == 5)
    told = bench.backend.load().steps
    await bench.until(lambda: bench.backend.load().steps > told + 2)
    assert bench.backend.load().running == 1


async def test_what_waits_for_the_next_step_is_counted_as_queued(bench: Bench) -> None:
    for name in "abc":
        bench.backend.open(request(name), 1, (), CREDIT)
    load = bench.backend.load()
    assert (load.queued, load.queued_prefill_tokens) == (3, 9)
    assert load.sequences_max == 12


async def test_opens_are_counted_without_a_gap_while_a_step_runs(bench: Bench) -> None:
    bench.runner.open.clear()
    bench.start()
    bench.backend.open(request("a", max_tokens=200), 1, (), 3 + 5)
    await bench.until(bench.runner.entered.is_set)
    assert bench.backend.load().in_flight == 1
    bench.backend.open(request("b", max_tokens=200), 1, (), 3 + 5)
    assert bench.backend.load().in_flight == 2
    bench.runner.open.set()
    await bench.until(lambda: bench.engine.steps >= 2)
    assert bench.backend.load().in_flight == 2


async def test_a_full_inbox_refuses(bench: Bench) -> None:
    for i in range(inbox.OPENS_WAITING_MAX):
        bench.backend.open(request(str(i)), 1, (), CREDIT)
    with pytest.raises(CapacityError, match="256 requests wait"):
        bench.backend.open(request("late"), 1, (), CREDIT)


async def test_a_full_engine_fails_the_ones_beyond_and_serves_the_others(bench: Bench) -> None:
    for i in range(14):
        bench.backend.open(request(str(i), max_tokens=2), 1, (), CREDIT)
    bench.start()
    await bench.until(lambda: all(bench.done(str(i)) for i in range(12)))
    assert bench.failures() == {"12": ErrorKind.CAPACITY, "13": ErrorKind.CAPACITY}


async def test_a_poisoned_sequence_fails_alone(bench: Bench) -> None:
    bench.runner.poison = frozenset({47})
    bench.backend.open(request("good", (1, 2, 3), max_tokens=2, sampling=GREEDY), 1, (), CREDIT)
    bench.backend.open(request("bad", (1, 2, 47), max_tokens=2), 1, (), CREDIT)
    bench.start()
    await bench.until(lambda: bench.done("good") and bench.failures())
    assert bench.failures() == {"bad": ErrorKind.INTERNAL}
    assert bench.broken == []


async def test_a_request_out_of_time_fails_with_its_deadline(bench: Bench) -> None:
    bench.backend.open(request("a", max_tokens=20, budget_s=0.05), 1, (), 3 + 2)
    bench.start()
    await bench.until(bench.failures)
    assert bench.failures() == {"a": ErrorKind.DEADLINE}


async def test_a_bug_in_a_step_is_told_once_and_ends_the_thread(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.runner.error = AssertionError("blocks do not add up")
    bench.backend.open(request("a"), 1, (), CREDIT)
    bench.start()
    await bench.until(lambda: bench.broken)
    bench.backend.stop()
    assert [str(error) for error in bench.broken] == ["blocks do not add up"]
    assert any(record.exc_info for record in caplog.records)


async def test_flushing_empties_the_prefix_cache(bench: Bench) -> None:
    bench.start()
    bench.backend.open(request("a", max_tokens=40), 1, (), CREDIT)
    await bench.until(lambda: bench.done("a"))
    assert bench.backend.blocks().cached > 0
    bench.backend.flush_cache()
    await bench.until(lambda: bench.backend.blocks().cached == 0)
    assert bench.backend.blocks().free == bench.backend.blocks().total


async def test_blocks_that_landed_with_a_flush_are_not_kept() -> None:
    bench = build(host_blocks=4)
    bench.backend.land(b"a", bytes(bench.engine.block_bytes))
    bench.backend.flush_cache()
    bench.start()
    await bench.until(lambda: any(batch.landed_bytes for batch in bench.batches))
    bench.backend.stop()
    assert (bench.batches[0].flushed, bench.engine.host_blocks.cached) == (True, 0)


async def test_hints_for_requests_that_are_not_here_are_dropped(bench: Bench) -> None:
    bench.backend.hint(Hint("nobody", 3, bytes(8), (1,)))
    bench.backend.credit("nobody", 99)
    bench.start()
    bench.backend.open(request("a", max_tokens=2), 1, (), CREDIT)
    await bench.until(lambda: bench.done("a"))
    assert bench.broken == []


async def test_the_statistics_say_what_happened_when(bench: Bench) -> None:
    bench.start()
    bench.backend.open(request("a", range(40), max_tokens=3), 1, (), CREDIT)
    bench.backend.note("a", "fetched", "3 blocks")
    await bench.until(lambda: bench.done("a"))
    assert bench.marks("a") == {
        "queued": "40 tokens",
        "fetched": "3 blocks",
        "admitted": "0 of 40 tokens cached",
        "first step": "",
        "first id": "",
        "finished": "length",
    }


async def test_a_client_that_did_not_read_for_a_while_is_marked(bench: Bench) -> None:
    bench.start()
    bench.backend.open(request("a", max_tokens=8), 1, (), 3 + 2)
    await bench.until(lambda: "stalled" in [mark.what for mark in bench.backend.marks("a")])
    bench.backend.credit("a", CREDIT)
    await bench.until(lambda: bench.done("a"))
    marks = bench.marks("a")
    assert marks["stalled"] == "at position 5"
    assert list(marks)[-3:] == ["stalled", "resumed", "finished"]


async def test_a_sequence_that_lost_its_place_says_so() -> None:
    bench = build(sequences_max=1, speculation="off")
    bench.start()
    bench.backend.open(request("batch", priority=Priority.BATCH, max_tokens=60), 1, (), CREDIT)
    await bench.until(lambda: bench.ids("batch"))
    bench.runner.open.clear()
    bench.backend.open(request("now", priority=Priority.CRITICAL, max_tokens=2), 1, (), CREDIT)
    bench.runner.open.set()
    await bench.until(lambda: bench.done("batch"))
    bench.backend.stop()
    assert bench.marks("batch")["preempted"].endswith("tokens to compute again")


async def test_failed_and_cancelled_ones_have_marks_too(bench: Bench) -> None:
    bench.start()
    bench.backend.open(request("late", max_tokens=20, budget_s=0.05), 1, (), 3 + 2)
    bench.backend.open(request("left", max_tokens=200), 1, (), 3 + 2)
    await bench.until(lambda: bench.ids("left") and bench.failures())
    bench.backend.cancel("left")
    await bench.until(lambda: bench.done("left"))
    assert "not finished within 0.05 s" in bench.marks("late")["failed"]
    assert list(bench.marks("left"))[-1] == "cancelled"


async def test_a_mark_does_not_quote_what_was_wrong_with_a_request(bench: Bench) -> None:
    bench.start()
    bench.backend.open(request("a", (1, 2, 4711)), 1, (), CREDIT)
    await bench.until(bench.failures)
    assert bench.marks("a")["failed"] == "request"


async def test_nothing_is_kept_of_a_request_that_was_cancelled_before_it_began(
    bench: Bench,
) -> None:
    bench.backend.open(request("a"), 1, (), CREDIT)
    assert [mark.what for mark in bench.backend.marks("a")] == ["queued"]
    assert bench.backend.cancel("a") is False
    assert bench.backend.marks("a") == ()
