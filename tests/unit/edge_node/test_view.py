"""An edge's memory of the mesh: whom it knows, and whom it forgets when, in any order of news."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reports import report

from firstlight.edge_node.view import MeshMemory
from firstlight.shared.claims import implausible
from firstlight.shared.routing.spill import Row
from firstlight.shared.types import Following, Load, MeshView, NodeInfo, Report, Role


def view(*reports: Report, lb: str = "lb1", seq: int = 1, age_s: float = 0.0) -> MeshView:
    return MeshView(lb, seq, tuple((item, age_s) for item in reports))


def names(memory: MeshMemory, now: float) -> list[str]:
    found = [core.info.node for core in memory.cores(now)]
    assert found == [name for name in memory.core_infos() if name in found]
    return found


def _settle(memory: MeshMemory, *reports: Report, until: float, lb: str = "lb1") -> None:
    """A load balancer that speaks every second, and whose nodes renew all the time."""
    for second in range(int(until) + 1):
        renewed = [report(r.info.node, 1, second + 1) for r in reports]
        memory.merge(view(*renewed, lb=lb, seq=second + 1), second)


def test_views_of_several_load_balancers_are_merged_per_node() -> None:
    memory = MeshMemory()
    memory.merge(view(report("a", seq=5), lb="lb1"), now=0)
    memory.merge(view(report("a", seq=4), report("b", seq=1), lb="lb2"), now=0)
    assert [(core.info.node, core.load.running) for core in memory.cores(0)] == [("a", 5), ("b", 1)]


def test_an_edge_is_no_core() -> None:
    memory = MeshMemory()
    edge = Report(NodeInfo("e", Role.EDGE, 1, "lon", "e:1"), 1)
    assert memory.merge(view(edge), now=0).changed == ("e",)
    assert names(memory, 0) == []


def test_the_last_word_of_every_node_is_told_but_for_those_that_leave() -> None:
    memory = MeshMemory()
    edge = Report(NodeInfo("e", Role.EDGE, 1, "lon", "e:1"), 1, rtt_ms=(("a", 5.0),))
    memory.merge(view(report("a"), edge), now=0)
    memory.merge(view(Report(report("a").info, 9, leaving=True), seq=2), now=1)
    assert memory.reports(1) == (edge,)


def test_the_last_view_serves_for_ever_when_every_load_balancer_is_gone() -> None:
    memory = MeshMemory()
    _settle(memory, report("a"), report("b"), until=20)
    assert names(memory, 20 + 3600) == ["a", "b"]
    assert memory.view_age_s(3620) == 3600
    assert [core.age_s for core in memory.cores(3620)] == [3600, 3600]


def test_a_node_that_a_settled_load_balancer_no_longer_lists_is_gone() -> None:
    memory = MeshMemory()
    _settle(memory, report("a"), report("b"), until=20)
    for second in range(21, 27):
        memory.merge(view(report("a", 1, second + 1), seq=second + 1), second)
    assert names(memory, 26) == ["a"]


def test_a_load_balancer_that_just_restarted_takes_nothing_away() -> None:
    memory = MeshMemory()
    _settle(memory, report("a"), until=20)
    for second in range(60, 69):
        memory.merge(view(seq=second - 59), second)
        assert names(memory, second) == ["a"]
    for second in range(69, 72):
        memory.merge(view(seq=second - 59), second)
    assert names(memory, 71) == []


def test_a_core_that_a_link_hears_stays_although_no_load_balancer_lists_it() -> None:
    memory = MeshMemory()
    _settle(memory, report("a"), until=20)
    for second in range(21, 60):
        memory.heard("a", Load(running=9), second)
        memory.merge(view(seq=second + 1), second)
    (seen,) = memory.cores(59.5)
    assert (seen.load.running, seen.age_s) == (9, 0.5)


def test_the_younger_word_on_a_load_wins() -> None:
    memory = MeshMemory()
    memory.merge(view(report("a", seq=1)), now=0)
    memory.heard("a", Load(running=50), now=10)
    memory.merge(view(report("a", seq=2), seq=2, age_s=1.0), now=10.5)
    assert memory.cores(10.5)[0].load.running == 50
    memory.merge(view(report("a", seq=3), seq=3, age_s=0.1), now=10.5)
    assert memory.cores(10.5)[0].load.running == 3


def test_a_node_that_leaves_is_gone_at_once() -> None:
    memory = MeshMemory()
    memory.merge(view(report("a"), report("b")), now=0)
    assert memory.merge(view(report("a", seq=2, leaving=True), seq=2), now=1).changed == ("a",)
    memory.merge(view(report("a", seq=1), lb="lb2"), now=1)
    assert names(memory, 1) == ["b"]
    assert names(memory, 100) == ["b"]


def test_a_restarted_node_is_news_and_replaces_its_older_self() -> None:
    memory = MeshMemory()
    memory.merge(view(report("a", 1, 100)), now=0)
    assert memory.merge(view(report("a", 1, 101), seq=2), now=0.2).changed == ()
    assert memory.merge(view(report("a", 2, 1, region="par"), seq=3), now=0.4).changed == ("a",)
    assert memory.cores(0.4)[0].info.region == "par"


def test_a_node_whose_clock_went_back_returns_when_its_lease_is_over() -> None:
    memory = MeshMemory()
    memory.merge(view(report("a", 9)), now=0)
    memory.merge(view(report("a", 2, region="par"), seq=2), now=4)
    assert memory.cores(4)[0].info.incarnation == 9
    memory.merge(view(report("a", 2, region="par"), seq=3), now=6)
    assert memory.cores(6)[0].info.incarnation == 2


def test_what_a_node_says_on_its_own_link_is_the_truth() -> None:
    memory = MeshMemory()
    memory.merge(view(report("a", 1)), now=0)
    memory.welcomed(report("a", 2, region="par").info, now=1)
    memory.welcomed(report("new").info, now=1)
    assert [(c.info.node, c.info.region) for c in memory.cores(1)] == [("a", "par"), ("new", "lon")]


VIEWS = st.lists(
    st.tuples(
        st.sampled_from(["lb1", "lb2", "lb3"]),
        st.lists(
            st.tuples(st.sampled_from("abc"), st.integers(1, 2), st.integers(1, 4)), max_size=3
        ),
    ),
    max_size=8,
)


@given(VIEWS, st.randoms(use_true_random=False))
def test_the_order_of_views_does_not_matter(
    views: list[tuple[str, list[tuple[str, int, int]]]], rng: object
) -> None:
    made = [
        view(*(report(n, i, s, leaving=(i + s) % 4 == 0) for n, i, s in keys), lb=lb)
        for lb, keys in views
    ]
    shuffled = [*made, *made]
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = MeshMemory(), MeshMemory()
    for item in made:
        one.merge(item, now=0)
    for item in shuffled:
        other.merge(item, now=0)
    assert names(one, 0) == names(other, 0)
    assert [c.info for c in one.cores(0)] == [c.info for c in other.cores(0)]


HOME, HALF = Row((("lon", 1.0),)), Row((("lon", 0.5), ("par", 0.5)))


def told(lb: str, row: Row | None = None, *, seq: int = 1, incarnation: int = 1) -> MeshView:
    table = {} if row is None else {"lon": row}
    return MeshView(lb, seq, incarnation=incarnation, table=table)


def test_a_view_says_nothing_of_nodes_that_it_does_not_name() -> None:
    memory = MeshMemory()
    memory.merge(view(report("a"), report("b")), now=0)
    assert memory.merge(view(report("b", seq=2), seq=2), now=4).changed == ()
    assert names(memory, 4) == ["a", "b"]


def test_the_row_of_the_load_balancer_with_the_lowest_name_is_followed() -> None:
    memory = MeshMemory()
    assert memory.following("lon", 0) is None
    memory.merge(told("lb-2", HALF), now=0)
    assert memory.following("lon", 0) == Following("lb-2", HALF)
    memory.merge(told("lb-1", HOME), now=0)
    assert memory.following("lon", 0) == Following("lb-1", HOME)
    assert memory.row("lon", 0) == HOME
    assert memory.row("syd", 0) is None


def test_one_that_tells_no_row_yet_is_not_followed() -> None:
    memory = MeshMemory()
    memory.merge(told("lb-2", HALF), now=0)
    memory.merge(told("lb-1"), now=0)
    assert memory.following("lon", 0) == Following("lb-2", HALF)


def test_when_the_followed_one_falls_silent_the_next_is_followed() -> None:
    memory = MeshMemory()
    memory.merge(told("lb-1", HOME), now=0)
    memory.merge(told("lb-2", HALF), now=3)
    assert memory.following("lon", 3) == Following("lb-2", HALF)


def test_when_all_are_gone_the_last_row_serves_for_ever() -> None:
    memory = MeshMemory()
    memory.merge(told("lb-1", HOME), now=0)
    memory.merge(told("lb-2", HALF), now=1)
    assert memory.row("lon", 3600) == HALF


def suspecting(lb: str, *nodes: str, seq: int = 1) -> MeshView:
    return MeshView(lb, seq, suspects=frozenset(nodes))


def test_a_node_is_suspect_if_every_load_balancer_that_is_heard_says_so() -> None:
    memory = MeshMemory()
    assert not memory.suspect("a", 0)
    memory.merge(suspecting("lb-1", "a", "b"), now=0)
    memory.merge(suspecting("lb-2", "a"), now=0)
    assert (memory.suspect("a", 1), memory.suspect("b", 1)) == (True, False)
    memory.merge(suspecting("lb-1", seq=2), now=1)
    assert not memory.suspect("a", 1)


def test_one_that_is_gone_suspects_nobody() -> None:
    memory = MeshMemory()
    memory.merge(suspecting("lb-1", "a"), now=0)
    assert not memory.suspect("a", 10)


def test_a_view_that_comes_late_brings_its_reports_and_changes_no_row() -> None:
    memory = MeshMemory()
    memory.merge(told("lb-1", HOME, seq=5), now=0)
    late = MeshView("lb-1", 4, ((report("a"), 0.0),), incarnation=1, table={"lon": HALF})
    merged = memory.merge(late, now=0.1)
    assert merged.ignored == (("lb-1", "order", "view 4 came after 5"),)
    assert (memory.row("lon", 0.1), names(memory, 0.1)) == (HOME, ["a"])


def test_a_load_balancer_that_restarted_is_believed_at_once() -> None:
    memory = MeshMemory()
    memory.merge(told("lb-1", HOME, seq=900), now=0)
    assert memory.merge(told("lb-1", HALF, seq=1, incarnation=2), now=0.5).ignored == ()
    assert memory.row("lon", 0.5) == HALF


def test_two_load_balancers_of_one_name_do_not_take_turns() -> None:
    memory, rows = MeshMemory(), set()
    for second in range(1, 9):
        memory.merge(told("lb-1", HOME, seq=second, incarnation=7), now=second)
        merged = memory.merge(told("lb-1", HALF, seq=second, incarnation=3), now=second)
        assert [reason for _, reason, _ in merged.ignored] == ["order"]
        rows.add(memory.row("lon", second))
    assert rows == {HOME}


def test_a_load_balancer_whose_clock_went_back_is_believed_when_the_one_before_is_gone() -> None:
    memory = MeshMemory()
    memory.merge(told("lb-1", HOME, incarnation=9), now=0)
    for second in range(1, 5):
        memory.merge(told("lb-1", HALF, seq=second, incarnation=2), now=second)
    assert memory.row("lon", 4) == HALF


@pytest.mark.parametrize(
    "nonsense",
    [
        Load(kv_used_share=math.nan),
        Load(prefill_ms_per_token=-1.0),
        Load(queued_prefill_tokens=1 << 60),
        Load(step_ms=((1, math.inf),)),
    ],
)
def test_nonsense_leaves_the_last_good_load_and_the_node_alive(nonsense: Load) -> None:
    memory = MeshMemory()
    _settle(memory, report("b"), until=20)
    memory.merge(view(report("a", seq=1, load=Load(running=3)), seq=30), now=20)
    for second in range(21, 40):
        told_b = report("b", seq=second + 1)
        merged = memory.merge(
            view(report("a", seq=second, load=nonsense), told_b, seq=second + 10), second
        )
        ((node, reason, _),) = merged.ignored
        assert (node, reason) == ("a", "absurd")
    a, _ = memory.cores(39)
    assert (a.info.node, a.load.running) == ("a", 3)


def test_what_the_wire_could_not_read_is_told_with_its_node() -> None:
    merged = MeshMemory().merge(MeshView("lb", 1, ignored=(("a", "why"),)), now=0)
    assert merged.ignored == (("a", "malformed", "why"),)


ODD = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.integers(-(1 << 62), 1 << 62))


@given(st.lists(st.tuples(ODD, ODD, ODD, ODD, ODD), max_size=5), st.floats(0, 1e6))
def test_no_figure_of_a_node_can_harm_the_memory(
    figures: list[tuple[Any, ...]], age_s: float
) -> None:
    memory = MeshMemory()
    memory.merge(view(report("a", seq=1, load=Load(running=3, sequences_max=8))), now=0)
    for seq, (running, room, kv, prefill, step) in enumerate(figures):
        load = Load(
            running=running,
            sequences_max=room,
            kv_used_share=kv,
            prefill_ms_per_token=prefill,
            step_ms=((1, step),),
        )
        memory.merge(view(report("a", seq=seq + 2, load=load), seq=seq + 2, age_s=age_s), now=1)
    (seen,) = memory.cores(1)
    assert implausible(report("a", load=seen.load)) == ""
    assert seen.age_s >= 0


def test_the_infos_of_cores_follow_every_change() -> None:
    memory = MeshMemory()
    assert memory.core_infos() == {}
    steps = [
        (report("a"), {"a": "lon"}),
        (report("b"), {"a": "lon", "b": "lon"}),
        (report("a", incarnation=2, region="par"), {"a": "par", "b": "lon"}),
        (report("b", seq=2, leaving=True), {"a": "par"}),
    ]
    for seq, (word, regions) in enumerate(steps):
        memory.merge(view(word, seq=seq + 1), now=0)
        assert {name: info.region for name, info in memory.core_infos().items()} == regions
    memory.welcomed(report("a", incarnation=3, region="syd").info, now=0)
    assert memory.core_infos()["a"].region == "syd"
    memory = MeshMemory()
    _settle(memory, report("a"), report("b"), until=20)
    for second in range(21, 27):
        memory.merge(view(report("a", 1, second + 1), seq=second + 1), second)
    assert list(memory.core_infos()) == ["a"]


def test_until_something_changes_the_infos_are_the_same() -> None:
    memory = MeshMemory()
    memory.merge(view(report("a")), now=0)
    before = memory.core_infos()
    memory.merge(view(report("a", seq=2), seq=2), now=0.25)
    memory.heard("a", Load(), now=0.3)
    assert memory.core_infos() is before
