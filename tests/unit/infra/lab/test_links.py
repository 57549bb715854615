"""One direction of a link, driven by packets at times of any kind."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstlight.infra.lab.links import Drop, Link, Shape

PACKETS = st.lists(
    st.tuples(st.floats(0, 0.02), st.integers(20, 1500)), min_size=1, max_size=120
).map(lambda steps: [(sum(gap for gap, _ in steps[: i + 1]), n) for i, (_, n) in enumerate(steps)])
"""(time, bytes), times never going back."""

SHAPES = st.builds(
    Shape,
    delay_s=st.floats(0.05, 0.2),
    jitter_s=st.floats(0, 0.05),
    loss=st.sampled_from([0.0, 0.1, 1.0]),
    bits_per_s=st.sampled_from([None, 1e5, 1e6, 1e8]),
    queue_bytes_max=st.sampled_from([1500, 10_000]),
)


def run(shape: Shape, packets: list[tuple[float, int]], seed: int = 1) -> list[float | Drop]:
    link = Link(shape, str(seed))
    return [link.send(n, at) for at, n in packets]


def departures(fates: list[float | Drop]) -> list[float]:
    return [fate for fate in fates if not isinstance(fate, Drop)]


def test_a_packet_travels_for_the_delay() -> None:
    assert run(Shape(0.07), [(1.0, 100), (1.5, 1500)]) == pytest.approx([1.07, 1.57])


@given(SHAPES, PACKETS)
def test_every_packet_leaves_after_it_came_or_has_a_reason(
    shape: Shape, packets: list[tuple[float, int]]
) -> None:
    for (at, _), fate in zip(packets, run(shape, packets), strict=True):
        assert isinstance(fate, Drop) or fate >= at + shape.delay_s - shape.jitter_s - 1e-9


@given(SHAPES, PACKETS)
def test_no_packet_overtakes_another(shape: Shape, packets: list[tuple[float, int]]) -> None:
    assert all(a <= b for a, b in pairwise(departures(run(shape, packets))))


@given(SHAPES, PACKETS, st.integers(0, 99))
def test_the_same_seed_gives_the_same_schedule(
    shape: Shape, packets: list[tuple[float, int]], seed: int
) -> None:
    assert run(shape, packets, seed) == run(shape, packets, seed)


@given(PACKETS, st.sampled_from([1e5, 1e6, 1e7]))
def test_a_line_carries_no_more_than_its_speed(
    packets: list[tuple[float, int]], bits_per_s: float
) -> None:
    fates = run(Shape(0.1, bits_per_s=bits_per_s), packets)
    sent = [(fate, n) for (_, n), fate in zip(packets, fates, strict=True) if fate != Drop.QUEUE]
    for (before, _), (after, n) in pairwise(sent):
        assert float(after) - float(before) >= n * 8 / bits_per_s - 1e-9


@given(PACKETS, st.sampled_from([1500, 4000]))
def test_no_more_waits_before_a_line_than_its_queue_holds(
    packets: list[tuple[float, int]], queue_bytes_max: int
) -> None:
    shape = Shape(0.1, bits_per_s=1e5, queue_bytes_max=queue_bytes_max)
    for (at, n), fate in zip(packets, run(shape, packets), strict=True):
        if not isinstance(fate, Drop):
            waiting_bytes = (fate - 0.1 - at) * 1e5 / 8
            assert waiting_bytes <= max(n, queue_bytes_max) + 1e-6


def test_a_full_queue_drops_and_takes_again_when_it_has_drained() -> None:
    shape = Shape(0.0, bits_per_s=8_000, queue_bytes_max=1500)  # a kilobyte a second
    fates = run(shape, [(0.0, 1000), (0.0, 500), (0.0, 100), (0.2, 100)])
    assert fates[2] is Drop.QUEUE
    assert departures(fates) == pytest.approx([1.0, 1.5, 1.6])


def test_packets_are_lost_as_often_as_is_asked() -> None:
    fates = run(Shape(0.0, loss=0.05), [(i / 1e3, 100) for i in range(20_000)])
    assert fates.count(Drop.LOST) == pytest.approx(1000, abs=150)


def test_jitter_spreads_packets_evenly_around_the_delay() -> None:
    packets = [(float(i), 100) for i in range(4000)]
    fates = run(Shape(0.1, jitter_s=0.03), packets)
    took = [fate - at for fate, (at, _) in zip(departures(fates), packets, strict=True)]
    assert sum(took) / len(took) == pytest.approx(0.1, abs=0.002)
    assert min(took) == pytest.approx(0.07, abs=0.002)
    assert max(took) == pytest.approx(0.13, abs=0.002)


def test_late_packets_are_passed_by_those_after_them() -> None:
    packets = [(i / 1e3, 100) for i in range(2000)]
    fates = departures(run(Shape(0.05, reorder=0.1, reorder_s=0.02), packets))
    passed = sum(a > b for a, b in pairwise(fates))
    assert 100 < passed < 300
    assert max(fate - at for fate, (at, _) in zip(fates, packets, strict=True)) < 0.07 + 1e-9


def test_a_cut_link_takes_nothing_and_one_that_is_mended_does() -> None:
    link = Link(Shape(0.01), "1")
    link.cut = True
    assert link.send(100, 1.0) is Drop.CUT
    link.cut = False
    assert link.send(100, 2.0) == pytest.approx(2.01)


def test_a_shorter_delay_lets_nobody_overtake_who_is_under_way() -> None:
    link = Link(Shape(0.5), "1")
    first = link.send(100, 0.0)
    link.shape = Shape(0.1)
    assert link.send(100, 0.1) == first
    assert link.send(100, 1.0) == pytest.approx(1.1)
