"""The steps of a core as a trace: valid by its format, and true."""

import json
import random
from collections import Counter
from typing import Any

from firstlight.core_node.step_log import Committed, StepLog, StepRecord
from firstlight.core_node.step_trace import Event, document, trace_events
from firstlight.shared.engine.plan import Ran, Turn, TurnEvent


def step(at_s: float, **fields: Any) -> StepRecord:
    """A step of 20 ms, handed over in 2."""
    return StepRecord(at_s, at_s + 0.02, at_s + 0.022, **fields)


def turn(what: Turn, request: str = "1.1", tokens: int = 0) -> TurnEvent:
    return TurnEvent(request, what, 40, tokens)


PREFILL, LAST = Ran("1.1", 24, 0, False), Ran("1.1", 16, 0, True)
DECODE, VERIFY = Ran("1.1", 1, 0, True), Ran("1.1", 1, 3, True)
BEGUN = (turn(Turn.ADMITTED), turn(Turn.FIRST_STEP))
LIFE = (
    step(10.0, ran=(PREFILL,), turns=BEGUN, arrived=(("1.1", 9.5),), running=1),
    step(10.1, ran=(LAST,), committed=(Committed("1.1", 1, 0),), running=1, kv_used_share=0.25),
    step(10.2, ran=(VERIFY,), committed=(Committed("1.1", 3, 2),), running=1),
    step(10.3, ran=(DECODE,), committed=(Committed("1.1", 1, 0),), ended=(("1.1", "stop"),)),
)


def traced(*records: StepRecord) -> list[Event]:
    """The events as a reader gets them."""
    file = json.loads(document(trace_events(records, process="core-eu", pid=7)))
    events = file["traceEvents"]
    valid(events)
    return events


def valid(events: list[Event]) -> None:
    """What the format asks for: fields by phase, time that goes on, ends that fit beginnings."""
    lanes: dict[str, list[tuple[str, float]]] = {}
    latest = 0.0
    free_us = 0.0
    for event in events:
        assert event["pid"] == 7
        assert event["name"]
        if event["ph"] == "M":
            assert event["args"]["name"]
            continue
        assert event["ts"] >= latest, "not in order of time"
        latest = event["ts"]
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] >= free_us, "two slices of the engine overlap"
            free_us = round(event["ts"] + event["dur"], 3)
        elif event["ph"] == "C":
            assert all(isinstance(value, (int, float)) for value in event["args"].values())
        else:
            stack = lanes.setdefault(event["id2"]["local"], [])
            if event["ph"] == "b":
                stack.append((event["name"], event["ts"]))
            elif event["ph"] == "e":
                name, began_us = stack.pop()
                assert (name, True) == (event["name"], event["ts"] >= began_us)
            else:
                assert event["ph"] == "n"
                assert stack, "an instant outside of its request"
    assert all(stack == [] for stack in lanes.values()), lanes


def spans(events: list[Event], request: str = "1.1") -> list[tuple[str, float, float]]:
    """(phase, begin, end) of a request's lane, in seconds."""
    [lane] = {
        event["id2"]["local"]
        for event in events
        if event["ph"] == "b" and event["args"].get("request") == request
    }
    mine = [event for event in events if event.get("id2") == {"local": lane}]
    found, open_at = [], {}
    for event in mine:
        if event["ph"] == "b":
            open_at[event["name"]] = event["ts"]
        elif event["ph"] == "e":
            began_us = open_at.pop(event["name"])
            found.append((event["name"], began_us / 1e6, event["ts"] / 1e6))
    return found


def test_names_come_first() -> None:
    process, thread, *_ = traced(*LIFE)
    assert (process["ph"], process["name"], process["args"]) == (
        "M",
        "process_name",
        {"name": "core-eu"},
    )
    assert (thread["name"], thread["args"]) == ("thread_name", {"name": "engine"})


def test_a_log_without_steps_is_a_trace_too() -> None:
    assert [event["ph"] for event in traced()] == ["M", "M"]


def test_a_request_is_queued_then_prefilled_then_decoded() -> None:
    assert spans(traced(*LIFE)) == [
        ("queued", 9.5, 10.0),
        ("prefill", 10.0, 10.12),
        ("decode", 10.12, 10.32),
        ("request", 9.5, 10.32),
    ]


def test_a_step_is_a_slice_with_what_it_ran_and_one_for_the_hand_over() -> None:
    slices = [event for event in traced(*LIFE) if event["ph"] == "X"]
    assert [one["name"] for one in slices[::2]] == ["prefill", "prefill", "decode", "decode"]
    assert {one["name"] for one in slices[1::2]} == {"hand over"}
    verified, handed = slices[4:6]
    assert (verified["ts"], verified["dur"]) == (10_200_000.0, 20_000.0)
    assert (handed["ts"], handed["dur"]) == (10_220_000.0, 2_000.0)
    assert verified["args"] == {
        "rows": 4,
        "prefill tokens": 0,
        "decode rows": 1,
        "drafted rows": 3,
        "accepted": 2,
        "admitted": 0,
        "preempted": 0,
        "sequences": [{"request": "1.1", "tokens": 1, "drafted": 3, "accepted": 2, "committed": 3}],
    }
    assert slices[0]["args"]["prefill tokens"] == 24
    assert slices[0]["args"]["admitted"] == 1


def test_prefill_beside_decode_is_called_both() -> None:
    other = Ran("1.2", 24, 0, False)
    events = traced(step(1.0, ran=(DECODE, other)))
    assert next(event["name"] for event in events if event["ph"] == "X") == "prefill + decode"


def test_counters_say_how_things_stood_after_a_step() -> None:
    counters = [event for event in traced(*LIFE) if event["ph"] == "C"]
    assert [(c["name"], c["args"]) for c in counters[2:4]] == [
        ("sequences", {"running": 1, "waiting": 0}),
        ("KV", {"used share": 0.25}),
    ]
    assert counters[2]["ts"] == 10_120_000.0


def test_a_preempted_request_waits_again_and_is_prefilled_again() -> None:
    brought = (Committed("1.1", 1, 0),)
    events = traced(
        *LIFE[:2],
        step(10.2, ran=(Ran("1.2", 4, 0, False),), turns=(turn(Turn.PREEMPTED, tokens=40),)),
        step(10.3, ran=(LAST,), turns=(turn(Turn.ADMITTED),), committed=brought),
        step(10.4, ran=(DECODE,), committed=brought),
    )
    assert spans(events) == [
        ("queued", 9.5, 10.0),
        ("prefill", 10.0, 10.12),
        ("decode", 10.12, 10.2),
        ("queued", 10.2, 10.3),
        ("prefill", 10.3, 10.32),
        ("decode", 10.32, 10.422),
        ("request", 9.5, 10.422),
    ]
    told = [(event["name"], event["args"]) for event in events if event["ph"] == "n"]
    assert ("preempted", {"known": 40, "tokens": 40}) in told


def test_a_request_that_began_before_the_log_begins_where_it_is_seen() -> None:
    assert spans(traced(*LIFE[2:])) == [("decode", 10.2, 10.32), ("request", 10.2, 10.32)]
    stalled = step(10.0, turns=(turn(Turn.STALLED),))
    assert spans(traced(stalled)) == [("decode", 10.0, 10.022), ("request", 10.0, 10.022)]
    ended = step(10.0, ended=(("1.1", "abort"),))
    assert spans(traced(ended)) == [("request", 10.0, 10.02)]


def test_an_answer_of_one_id_has_no_decode() -> None:
    brought = (Committed("1.1", 1, 0),)
    only = step(10.1, ran=(LAST,), committed=brought, ended=(("1.1", "length"),))
    assert [name for name, _, _ in spans(traced(LIFE[0], only))] == ["queued", "prefill", "request"]


def test_an_end_says_how() -> None:
    ends = [e["args"] for e in traced(*LIFE) if e["ph"] == "e" and e["name"] == "request"]
    assert ends == [{"ended": "stop"}]
    ends = [e["args"] for e in traced(*LIFE[:3]) if e["ph"] == "e" and e["name"] == "request"]
    assert ends == [{"ended": "goes on"}]


def test_a_request_that_ends_before_any_step_has_a_lane() -> None:
    refused = step(1.0, arrived=(("1.1", 0.9),), ended=(("1.1", "capacity"),))
    assert spans(traced(refused)) == [("queued", 0.9, 1.02), ("request", 0.9, 1.02)]


def test_any_log_is_a_valid_trace_whatever_was_forgotten_of_it() -> None:
    rng = random.Random(3)
    for _ in range(50):
        log = StepLog(steps_max=rng.randint(1, 30), entries_max=rng.randint(1, 80))
        now_s, alive = 5.0, list[str]()
        for number in range(60):
            new = [f"1.{number}"] if rng.random() < 0.5 else []
            arrived = tuple((name, now_s - rng.random() / 100) for name in new)
            alive += new
            ran = tuple(
                Ran(name, rng.choice((1, 1, 9)), rng.randint(0, 3), rng.random() < 0.7)
                for name in alive
                if rng.random() < 0.8
            )
            turns = tuple(
                turn(rng.choice(list(Turn)), rng.choice(alive))
                for _ in range(rng.randint(0, 3))
                if alive
            )
            brought = tuple(Committed(one.request, 1, 0) for one in ran if one.samples)
            gone = tuple((name, "length") for name in alive if rng.random() < 0.1)
            alive = [name for name in alive if name not in dict(gone)]
            log.add(
                step(now_s, ran=ran, turns=turns, arrived=arrived, committed=brought, ended=gone)
            )
            now_s += 0.022 + rng.choice((0.0, rng.random()))
        traced(*log.records())


def test_the_file_is_bounded_by_the_logs_limits() -> None:
    log = StepLog()
    wide = tuple(Ran(f"100.1000{number}", 1, 7, True) for number in range(16))
    brought = tuple(Committed(one.request, 8, 7) for one in wide)
    for number in range(6000):
        log.add(step(1e6 + number / 30, ran=wide, committed=brought, running=16, waiting=64))
    assert len(log.records()) == 65_536 // 32
    events = trace_events(log.records(), process="core-eu", pid=7)
    assert Counter(event["ph"] for event in events)["X"] == 2 * len(log.records())
    assert len(document(events)) < 8 << 20
