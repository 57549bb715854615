"""The marks of an assignment: bounded, in order of time, and gone once they were told."""

import threading

from firstlight.core_node.timeline import Timelines
from firstlight.shared.types import MARK_DETAIL_CHARS_MAX, MARK_WHAT_CHARS_MAX, MARKS_MAX, Mark


def test_marks_count_from_the_open() -> None:
    timelines = Timelines()
    timelines.begin("a", 10.0)
    timelines.note("a", "queued", 10.0)
    timelines.note("a", "admitted", 10.5, "3 tokens cached")
    assert timelines.end("a") == (Mark("queued", 0.0), Mark("admitted", 500.0, "3 tokens cached"))


def test_what_was_noted_late_stands_where_it_happened() -> None:
    timelines = Timelines()
    timelines.begin("a", 0.0)
    timelines.note("a", "second", 2.0)
    timelines.note("a", "first", 1.0)
    timelines.note("a", "before the open", -1.0)
    assert [mark.what for mark in timelines.end("a")] == ["before the open", "first", "second"]


def test_an_assignment_that_has_ended_has_no_marks_and_takes_none() -> None:
    timelines = Timelines()
    timelines.begin("a", 0.0)
    timelines.note("a", "finished", 1.0)
    assert timelines.marks("a") == timelines.end("a") != ()
    timelines.note("a", "late", 2.0)
    assert (timelines.marks("a"), timelines.end("a"), len(timelines)) == ((), (), 0)


def test_of_many_marks_the_first_and_the_latest_are_kept_and_the_rest_counted() -> None:
    timelines = Timelines()
    timelines.begin("a", 0.0)
    for number in range(100):
        timelines.note("a", f"mark {number}", float(number))
    marks = timelines.end("a")
    assert len(marks) == MARKS_MAX
    assert [mark.what for mark in marks[:30]] == [f"mark {number}" for number in range(30)]
    assert [mark.what for mark in marks[30:]] == ["left out", "mark 99"]
    assert marks[30].detail == "69 marks before this"


def test_texts_are_cut_to_what_an_edge_takes() -> None:
    timelines = Timelines()
    timelines.begin("a", 0.0)
    timelines.note("a", "w" * 999, 0.0, "d" * 999)
    [mark] = timelines.end("a")
    assert (len(mark.what), len(mark.detail)) == (MARK_WHAT_CHARS_MAX, MARK_DETAIL_CHARS_MAX)


def test_beyond_the_limit_the_oldest_assignment_is_forgotten() -> None:
    timelines = Timelines(assignments_max=2)
    for handle in "abc":
        timelines.begin(handle, 0.0)
        timelines.note(handle, "queued", 0.0)
    assert (timelines.end("a"), len(timelines)) == ((), 2)


def test_threads_that_note_at_once_lose_nothing() -> None:
    timelines = Timelines()
    timelines.begin("a", 0.0)

    def note_all() -> None:
        for number in range(1000):
            timelines.note("a", "mark", float(number))

    threads = [threading.Thread(target=note_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left_out = next(mark for mark in timelines.end("a") if mark.what == "left out")
    assert left_out.detail == f"{4000 - 31} marks before this"
