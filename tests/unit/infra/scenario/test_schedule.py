"""When faults come."""

from typing import Any

from firstlight.infra.scenario.scenario import Phase
from firstlight.infra.scenario.schedule import Schedule, Seen

KILL = {"do": "kill", "node": "core"}


def phase(*faults: dict[str, Any]) -> Phase:
    load = [{"name": name, "at": "user", "edges": ["edge"]} for name in ("one", "other")]
    return Phase.model_validate({"name": "first", "load": load, "faults": faults})


def seen(load: str = "one", stream: int = 0, ids: int = 10) -> Seen:
    return Seen(load, stream, ids, "core-eu", "edge-eu")


def test_a_fault_with_a_time_comes_once_when_it_has_come() -> None:
    schedule = Schedule(phase({"at_s": 2, "fault": KILL}, {"at_s": 1, "fault": KILL}), 1)
    assert list(schedule.due(0.9)) == []
    assert len(list(schedule.due(1.5))) == 1
    assert len(schedule.left) == 1
    assert len(list(schedule.due(9.0))) == 1
    assert list(schedule.due(10.0)) == list(schedule.left) == []


def test_a_seed_gives_the_same_schedule_and_another_one_another() -> None:
    told = phase({"at_s": [0, 5], "fault": KILL}, {"at_token": [1, 500], "fault": KILL})
    same = [list(map(str, Schedule(told, 7).planned)) for _ in range(2)]
    assert same[0] == same[1]
    assert same[0] != list(map(str, Schedule(told, 8).planned))


def test_a_fault_at_a_token_waits_for_its_row_its_stream_and_its_token() -> None:
    told = phase({"at_token": 10, "load": "other", "stream": 3, "fault": KILL})
    schedule = Schedule(told, 1)
    assert schedule.waits_for("other", 3)
    assert not schedule.waits_for("one", 3)
    for early in (seen("one", 3), seen("other", 2), seen("other", 3, ids=9)):
        assert list(schedule.reached(early)) == []
    assert len(list(schedule.reached(seen("other", 3, ids=12)))) == 1
    assert list(schedule.reached(seen("other", 3, ids=13))) == []
    assert not schedule.waits_for("other", 3)


def test_a_row_that_is_not_named_is_the_first() -> None:
    schedule = Schedule(phase({"at_token": 5, "fault": KILL}), 1)
    assert len(list(schedule.reached(seen("one")))) == 1


def test_its_core_is_whoever_serves_the_stream_then() -> None:
    told = phase(
        {"at_token": 5, "fault": {"do": "kill", "node": "its core"}},
        {"at_token": 5, "fault": {"do": "kill", "node": "its edge"}},
        {"at_token": 5, "fault": {"do": "partition", "from": "its edge", "to": "its core"}},
        {"at_token": 5, "fault": KILL},
    )
    faults = list(Schedule(told, 1).reached(seen()))
    assert [fault.node for fault in faults] == ["core-eu", "edge-eu", None, "core"]
    assert (faults[2].source, faults[2].target) == ("edge-eu", "core-eu")
