"""A load balancer's leases: who lives, whose report is news, and that order does not matter."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reports import report

from firstlight.global_lb.membership import LEASE_S, SUSPECT_S, Fate, Membership
from firstlight.shared.types import Load, NodeInfo, Report, Role


def names(membership: Membership, now: float) -> list[str]:
    return [lease.report.info.node for lease in membership.live(now)]


def test_a_node_lives_for_a_lease_after_its_last_word() -> None:
    members = Membership()
    members.report(report(seq=1), now=0)
    members.report(report(seq=2), now=3)
    assert names(members, now=3 + LEASE_S) == ["c1"]
    assert names(members, now=3.1 + LEASE_S) == []
    assert members.expire(3 + LEASE_S) == ()
    assert members.expire(3.1 + LEASE_S) == ("c1",)


def test_an_old_or_repeated_report_does_not_renew_a_lease() -> None:
    members = Membership()
    members.report(report(seq=5), now=0)
    assert members.report(report(seq=5), now=4).fate is Fate.STALE
    assert members.report(report(seq=4), now=4).fate is Fate.STALE
    assert names(members, now=5.1) == []


def test_of_two_processes_with_one_name_the_later_start_wins() -> None:
    members = Membership()
    members.report(report(incarnation=1, seq=900, region="lon"), now=0)
    outcome = members.report(report(incarnation=2, seq=1, region="par"), now=1)
    assert (outcome.fate, outcome.changed) == (Fate.TAKEN, True)
    assert members.report(report(incarnation=1, seq=901), now=2).fate is Fate.DUPLICATE
    assert [lease.report.info.region for lease in members.live(2)] == ["par"]


def test_a_node_that_leaves_is_gone_at_once_and_stays_gone() -> None:
    members = Membership()
    members.report(report(seq=1), now=0)
    outcome = members.report(report(seq=3, leaving=True), now=1)
    assert (outcome.changed, outcome.reason) == (True, "c1 leaves")
    assert members.report(report(seq=2), now=2).fate is Fate.STALE
    assert names(members, now=2) == []
    assert [lease.report.leaving for lease in members.known(2)] == [True]
    assert members.expire(7) == ()
    assert members.known(7) == ()


def test_a_node_may_come_back_after_it_left() -> None:
    members = Membership()
    members.report(report(incarnation=1, leaving=True), now=0)
    assert members.report(report(incarnation=2), now=1).changed
    assert names(members, now=1) == ["c1"]


@pytest.mark.parametrize(
    ("next_report", "changed"),
    [
        (report(seq=2), False),
        (report(seq=2, load=Load(draining=True)), True),
        (report(seq=2, region="par"), True),
        (report(seq=2, leaving=True), True),
    ],
)
def test_only_news_of_who_is_there_wakes_listeners(next_report: Report, changed: bool) -> None:
    members = Membership()
    assert members.report(report(seq=1), now=0).changed
    assert members.report(next_report, now=1).changed is changed


def test_the_number_of_nodes_is_bounded() -> None:
    members = Membership(nodes_max=2)
    members.report(report("a"), now=0)
    members.report(report("b"), now=0)
    assert members.report(report("c"), now=0).fate is Fate.REFUSED
    assert members.report(report("a", seq=2), now=0).fate is Fate.TAKEN
    members.expire(6)
    assert members.report(report("c"), now=6).fate is Fate.TAKEN


def test_a_report_with_more_round_trips_than_nodes_is_refused() -> None:
    rtts = tuple((f"c{i}", 1.0) for i in range(2000))
    long = Report(NodeInfo("e", Role.EDGE, 1, "lon", "e:1"), 1, rtt_ms=rtts)
    assert Membership().report(long, now=0).fate is Fate.REFUSED


REPORTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(1, 3), st.integers(1, 4)), max_size=12
).map(
    # What a report says follows from its node, incarnation and seq, as for a real node.
    lambda keys: [report(n, i, s, leaving=(i * 7 + s) % 3 == 0) for n, i, s in keys]
)


@given(REPORTS, st.randoms(use_true_random=False))
def test_the_order_of_reports_does_not_matter(reports: list[Report], rng: object) -> None:
    shuffled = list(reports)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = Membership(), Membership()
    for item in reports:
        one.report(item, now=0)
    for item in [*shuffled, *shuffled]:
        other.report(item, now=0)
    assert one.known(1) == other.known(1)
    assert one.live(1) == other.live(1)


def test_all_orders_of_a_restart_and_a_leave_end_the_same() -> None:
    reports = [report(seq=1), report(seq=2, leaving=True), report(incarnation=2, seq=1)]
    ends = set()
    for order in permutations(reports):
        members = Membership()
        for item in order:
            members.report(item, now=0)
        ends.add(members.live(0))
    assert len(ends) == 1


def test_a_node_that_was_not_heard_for_a_while_is_suspect_until_it_speaks() -> None:
    members = Membership()
    members.report(report("a"), now=0)
    members.report(report("b"), now=1)
    assert members.suspects(SUSPECT_S) == frozenset()
    assert members.suspects(SUSPECT_S + 0.1) == {"a"}
    members.report(report("a", seq=2), now=2)
    assert members.suspects(2.1) == frozenset()
    assert members.suspects(2 + LEASE_S + 0.1) == frozenset(), "gone is not suspect"


def test_clients_are_sent_to_nodes_that_live_and_were_heard_lately() -> None:
    members = Membership()
    members.report(report("silent"), now=0)
    members.report(report("left", leaving=True), now=1)
    members.report(report("well"), now=1)
    assert [one.info.node for one in members.well(SUSPECT_S + 0.1)] == ["well"]


def test_a_node_that_leaves_is_not_suspect() -> None:
    members = Membership()
    members.report(report("a", leaving=True), now=0)
    assert members.suspects(3) == frozenset()


def test_a_load_balancer_that_stood_still_suspects_and_drops_nobody() -> None:
    members = Membership()
    members.report(report("a"), now=0)
    members.expire(0.1)
    assert members.expire(9.0) == ()
    assert members.suspects(9.0) == frozenset()
    assert names(members, now=9.0) == ["a"]
    assert [members.expire(9.0 + tenth / 10) for tenth in range(1, 60)].count(("a",)) == 1


def test_nonsense_leaves_the_last_good_word_and_renews_the_lease() -> None:
    members = Membership()
    good = Load(running=3, sequences_max=8)
    members.report(report(seq=1, load=good), now=0)
    for second in range(1, 20):
        outcome = members.report(report(seq=1 + second, load=Load(running=1 << 40)), now=second)
        assert (outcome.fate, outcome.changed) == (Fate.IGNORED, False)
    assert "running, 0 queued" in outcome.reason
    (lease,) = members.live(20)
    assert (lease.report.load, lease.report.seq, lease.heard_at) == (good, 20, 19)


def test_a_node_whose_first_word_is_nonsense_does_not_join() -> None:
    members = Membership()
    assert members.report(report(load=Load(running=1 << 40)), now=0).fate is Fate.IGNORED
    assert members.known(0) == ()


def test_a_restarted_node_that_speaks_nonsense_does_not_live_on_its_older_selfs_word() -> None:
    members = Membership()
    members.report(report(incarnation=1), now=0)
    members.report(report(incarnation=2, load=Load(running=1 << 40)), now=4)
    assert names(members, now=LEASE_S + 0.1) == []


def test_two_processes_of_one_name_do_not_take_turns() -> None:
    members = Membership()
    for second in range(8):
        members.report(report(incarnation=7, seq=second + 1, region="par"), now=second)
        outcome = members.report(report(incarnation=3, seq=second + 1, region="lon"), now=second)
        assert outcome.fate is Fate.DUPLICATE
        assert [lease.report.info.region for lease in members.live(second)] == ["par"]
    assert outcome.reason == "two processes call themselves c1"


def test_a_process_that_was_replaced_and_leaves_is_no_duplicate() -> None:
    members = Membership()
    members.report(report(incarnation=2), now=0)
    assert members.report(report(incarnation=1, leaving=True), now=0).fate is Fate.STALE


def test_of_two_that_began_in_one_millisecond_one_wins_whoever_speaks_first() -> None:
    ends = set()
    for regions in (("lon", "par"), ("par", "lon")):
        members = Membership()
        for seq, region in enumerate(regions):
            members.report(report(seq=seq + 1, region=region), now=0)
        ends.add(tuple(lease.report.info.region for lease in members.live(0)))
    assert ends == {("par",)}
