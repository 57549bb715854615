"""What an edge remembers of its requests: for whom, how many, how long, and what never."""

import pytest

from firstlight.edge_node.timeline import NOTES_MAX, Timeline, TimelineLimits, Timelines, words
from firstlight.shared.errors import CapacityError, ConfigError, RequestError


def remembered(**limits: float) -> Timelines:
    return Timelines(TimelineLimits(**limits))  # type: ignore[arg-type]


def begin(timelines: Timelines, id: str, now: float = 0.0, streams: int = 1) -> Timeline:
    timeline = timelines.begin(id, "acme", now)
    timeline.name([f"{id}-{number}" for number in range(streams)])
    return timeline


def test_a_request_is_found_by_its_answer_and_by_each_stream() -> None:
    timelines = remembered()
    timeline = begin(timelines, "a", streams=2)
    assert [timelines.find(id, "acme", 1.0) for id in ("a", "a-0", "a-1")] == [timeline] * 3
    assert timelines.find("b", "acme", 1.0) is None


def test_it_is_found_before_it_has_streams() -> None:
    timelines = remembered()
    timeline = timelines.begin("a", "acme", 0.0)
    assert timelines.find("a", "acme", 0.0) is timeline


def test_another_tenants_request_is_as_unknown_as_none() -> None:
    timelines = remembered()
    begin(timelines, "a")
    assert timelines.find("a", "other", 0.0) is None
    assert timelines.find("a-0", "other", 0.0) is None


def test_an_old_request_is_forgotten_with_its_streams() -> None:
    timelines = remembered(keep_s=60.0)
    begin(timelines, "a", now=0.0)
    begin(timelines, "b", now=30.0)
    assert timelines.find("a-0", "acme", 60.0) is not None
    assert timelines.find("a-0", "acme", 60.1) is None
    assert timelines.find("b-0", "acme", 60.1) is not None
    assert len(timelines) == 1


def test_beyond_so_many_requests_the_oldest_is_forgotten() -> None:
    timelines = remembered(requests_max=2)
    for id in "abc":
        begin(timelines, id)
    assert [timelines.find(id, "acme", 0.0) is not None for id in "abc"] == [False, True, True]
    assert timelines.find("a-0", "acme", 0.0) is None


def test_beyond_so_many_choices_the_oldest_request_is_forgotten() -> None:
    timelines = remembered(streams_max=40)
    begin(timelines, "a", streams=32)
    begin(timelines, "b", streams=32)
    assert timelines.find("a", "acme", 0.0) is None
    assert timelines.find("b-31", "acme", 0.0) is not None


def test_a_forgotten_request_that_gets_its_streams_late_stays_forgotten() -> None:
    timelines = remembered(requests_max=1)
    late = timelines.begin("a", "acme", 0.0)
    begin(timelines, "b")
    late.name(["a-0"])
    assert timelines.find("a-0", "acme", 0.0) is None


def test_an_edge_can_be_told_to_remember_none() -> None:
    timelines = remembered(requests_max=0)
    begin(timelines, "a").note("opened", 1.0)
    assert (timelines.find("a", "acme", 0.0), len(timelines)) == (None, 0)


@pytest.mark.parametrize("name", ["requests_max", "streams_max", "keep_s"])
def test_a_limit_below_nothing_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is -1"):
        remembered(**{name: -1})


def test_notes_beyond_the_limit_are_counted() -> None:
    timeline = Timeline()
    for number in range(NOTES_MAX + 7):
        timeline.note("left", float(number))
    assert (len(timeline.notes), timeline.left_out) == (NOTES_MAX, 7)


def test_an_error_of_ours_keeps_its_words_and_one_about_the_request_does_not() -> None:
    assert words(CapacityError("all 2 cores are full"))["message"] == "all 2 cores are full"
    about = words(RequestError("token id 77 at 3", param="prompt"))
    assert (about["message"], about["param"], about["status"]) == (None, "prompt", 400)
