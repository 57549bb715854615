"""An edge's memory of the mesh: whom it knows, and whom it forgets when, in any order of news."""

from hypothesis import given
from hypothesis import strategies as st
from reports import report

from firstlight.edge_node.view import MeshMemory
from firstlight.shared.types import Load, MeshView, NodeInfo, Report, Role


def view(*reports: Report, lb: str = "lb1", seq: int = 1, age_s: float = 0.0) -> MeshView:
    return MeshView(lb, seq, tuple((item, age_s) for item in reports))


def names(memory: MeshMemory, now: float) -> list[str]:
    return [core.info.node for core in memory.cores(now)]


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
    assert memory.merge(view(edge), now=0) == ("e",)
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
    assert memory.merge(view(report("a", seq=2, leaving=True), seq=2), now=1) == ("a",)
    memory.merge(view(report("a", seq=1), lb="lb2"), now=1)
    assert names(memory, 1) == ["b"]
    assert names(memory, 100) == ["b"]


def test_a_restarted_node_is_news_and_replaces_its_older_self() -> None:
    memory = MeshMemory()
    memory.merge(view(report("a", 1, 100)), now=0)
    assert memory.merge(view(report("a", 1, 101), seq=2), now=0.2) == ()
    assert memory.merge(view(report("a", 2, 1, region="par"), seq=3), now=0.4) == ("a",)
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
