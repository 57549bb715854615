"""What waits for the engine's next step: what replaces what, and what happens beyond a limit."""

import pytest
from doubles import request

from firstlight.core_node.backends import inbox as module
from firstlight.core_node.backends.inbox import Inbox, Opened
from firstlight.shared.errors import CapacityError
from firstlight.shared.types import Hint, Load


def opened(name: str, tokens: int = 3, committed: tuple[int, ...] = ()) -> Opened:
    return Opened(request(name, range(tokens)), 1, committed, 100, 0.0)


def hint(start: int, ids: tuple[int, ...] = (1, 2), source: str = "edge-model") -> Hint:
    return Hint("a", start, bytes(8), ids, source)


FILLS = {
    "open": lambda box: box.open(opened("a")),
    "credit": lambda box: box.credit("a", 9),
    "hint": lambda box: box.hint(hint(3)),
    "cancel": lambda box: box.cancel("a"),
    "flush": lambda box: setattr(box, "flush", True),
    "expect": lambda box: box.expect("a", 2, 0.5),
    "no_more": lambda box: box.no_more("a"),
    "land": lambda box: box.land(bytes(16), b"kv"),
    "read": lambda box: box.read((bytes(16),), print),
}


@pytest.mark.parametrize("what", FILLS)
def test_it_is_empty_until_anything_comes(what):
    box = Inbox()
    assert not box
    FILLS[what](box)
    assert box


def test_one_request_more_than_may_wait_is_refused_and_the_others_stay(monkeypatch):
    monkeypatch.setattr(module, "OPENS_WAITING_MAX", 2)
    box = Inbox()
    box.open(opened("a"))
    box.open(opened("b"))
    with pytest.raises(CapacityError, match="2 requests wait"):
        box.open(opened("c"))
    assert list(box.opens) == ["a", "b"]


def test_credit_is_never_taken_back():
    box = Inbox()
    box.credit("a", 40)
    box.credit("a", 30)
    box.credit("b", 10)
    assert box.credits == {"a": 40, "b": 10}


def test_the_oldest_hint_gives_way_and_its_ids_are_counted_for_its_source(monkeypatch):
    monkeypatch.setattr(module, "HINTS_WAITING_MAX", 2)
    box = Inbox()
    for start, source in enumerate(["edge-ngram", "edge-model", "edge-ngram", "edge-ngram"]):
        box.hint(hint(start, (1,) * (start + 1), source))
    assert [one.start for one in box.hints] == [2, 3]
    assert box.hint_ids_dropped == {"edge-ngram": 1, "edge-model": 2}


def test_hints_that_fit_are_not_counted_as_dropped(monkeypatch):
    monkeypatch.setattr(module, "HINTS_WAITING_MAX", 2)
    box = Inbox()
    box.hint(hint(1))
    box.hint(hint(2))
    assert not box.hint_ids_dropped


def test_sources_beyond_a_limit_are_counted_together(monkeypatch):
    monkeypatch.setattr(module, "HINTS_WAITING_MAX", 1)
    monkeypatch.setattr(module, "SOURCES_MAX", 2)
    box = Inbox()
    for source in ("a", "b", "c", "d", "a", "last"):
        box.hint(hint(1, source=source))
    assert box.hint_ids_dropped == {"a": 4, "b": 2, "other": 4}


def test_a_cancel_takes_out_what_was_only_opened_here_with_its_credit():
    box = Inbox()
    box.open(opened("a"))
    box.credit("a", 50)
    assert box.cancel("a") is False
    assert not box


def test_a_cancel_of_what_runs_is_told_once_and_leaves_the_others():
    box = Inbox()
    box.credit("a", 50)
    box.credit("b", 60)
    assert box.cancel("a")
    assert box.cancel("a")
    assert (box.cancels, box.credits) == ({"a"}, {"b": 60})


def test_what_is_expected_later_replaces_what_was_expected_before():
    box = Inbox()
    box.expect("a", 4, 0.5)
    box.expect("a", 6, 0.2)
    assert box.expects == {"a": (6, 0.2)}


def test_no_more_ends_the_wait_and_keeps_what_may_have_landed():
    box = Inbox()
    box.expect("a", 4, 0.5)
    box.no_more("a")
    box.no_more("b")
    assert box.expects == {"a": (4, 0.0), "b": (0, 0.0)}


def test_one_read_more_than_may_wait_is_refused(monkeypatch):
    monkeypatch.setattr(module, "READS_WAITING_MAX", 1)
    box = Inbox()
    box.read((b"one",), print)
    with pytest.raises(CapacityError, match="1 reads wait"):
        box.read((b"two",), print)
    assert [hashes for hashes, _ in box.reads] == [(b"one",)]


def test_a_load_counts_the_requests_that_wait_here_and_their_tokens():
    box, load = Inbox(), Load(running=2, queued=1, queued_prefill_tokens=10)
    assert box.counted_in(load) == load
    box.open(opened("a", 3))
    box.open(opened("b", 4, (1, 2)))
    counted = box.counted_in(load)
    assert (counted.running, counted.queued, counted.queued_prefill_tokens) == (2, 3, 19)
