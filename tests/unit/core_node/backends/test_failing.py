"""A core that hangs, refuses or says nothing, and is a core again when it is told to be."""

import threading
from dataclasses import replace

import pytest
from core_bed import ByHand
from doubles import request
from native_bed import GatedRunner

from firstlight.core_node.backends.failing import FailingBackend, HangingRunner
from firstlight.shared.engine.plan import StepPlan
from firstlight.shared.errors import CapacityError
from firstlight.shared.faults import Failing


def test_a_step_of_a_core_that_hangs_ends_when_it_need_not_any_more() -> None:
    state = Failing(hang=True)
    waits = 0

    def wait(seconds: float) -> None:
        nonlocal waits
        waits += 1
        state.hang = waits < 3

    runner = GatedRunner()
    assert HangingRunner(runner, state, wait_s=wait).run(StepPlan(())).sampled == ()
    assert waits == 3


def test_a_core_that_hangs_runs_nothing_meanwhile() -> None:
    state, runner = Failing(hang=True), GatedRunner()
    hanging = HangingRunner(runner, state)
    thread = threading.Thread(target=hanging.run, args=(StepPlan(()),))
    thread.start()
    assert not runner.entered.wait(0.05)
    state.end()
    thread.join(10)
    assert runner.entered.is_set()


def test_a_core_that_refuses_says_so_at_once_and_opens_nothing() -> None:
    state, inner = Failing(refuse=True), ByHand()
    backend = FailingBackend(inner, state)
    with pytest.raises(CapacityError, match="told to refuse") as refused:
        backend.open(request(), 1, (), 100)
    assert refused.value.retry_elsewhere
    assert inner.opened == []
    state.refuse = False
    backend.open(request(), 1, (), 100)
    assert len(inner.opened) == 1


def test_a_silent_core_takes_a_request_and_nothing_of_it_is_left_when_it_is_cancelled() -> None:
    state, inner = Failing(silent=True), ByHand()
    backend = FailingBackend(inner, state)
    lost, kept = replace(request(), id="lost"), replace(request(), id="kept")
    backend.open(lost, 1, (), 100)
    backend.credit("lost", 200)
    state.silent = False
    backend.open(kept, 1, (), 100)
    assert [handle for handle, *_ in inner.opened] == ["kept"]
    assert inner.credits == []
    assert backend.cancel("lost") is False, "no end will be told of it"
    assert backend.cancel("kept") is True
