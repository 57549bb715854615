"""Rows of spill from reports, and replicas that do not fight over them."""

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest

from firstlight.global_lb.balance import SETTLED_S, Balance, demand_of, in_force, supply_of
from firstlight.global_lb.membership import Lease
from firstlight.shared.routing.spill import RegionSupply, Row
from firstlight.shared.types import Demand, Following, Load, NodeInfo, Report, Role

HALF = Row((("lon", 0.5), ("par", 0.5)))


def capacity_of(load: Load) -> float:
    return 1000.0 / load.prefill_ms_per_token if load.prefill_ms_per_token else 0.0


def core(region: str, name: str = "c", *, ms: float = 1.0, draining: bool = False) -> Report:
    info = NodeInfo(f"{name}-{region}", Role.CORE, 1, region, "c:1")
    return Report(info, 1, Load(prefill_ms_per_token=ms, draining=draining))


def edge(
    region: str, work: float = 0.0, following: Following | None = None, name: str = "e"
) -> Report:
    info = NodeInfo(f"{name}-{region}", Role.EDGE, 1, region, "e:1")
    rtts = (("c-lon", 1.0 if region == "lon" else 9.0), ("c-par", 1.0 if region == "par" else 9.0))
    return Report(info, 1, rtt_ms=rtts, demand=Demand(work), following=following)


def stepped(balance: Balance, reports: Sequence[Report], *, since: int, seconds: int) -> None:
    for second in range(since, since + seconds):
        balance.step([Lease(report, second) for report in reports], (), second)


def test_the_demand_of_a_region_is_what_its_edges_tell_together() -> None:
    silent = Report(NodeInfo("e", Role.EDGE, 1, "syd", "e:1"), 1)
    reports = [edge("lon", 300), edge("lon", 200, name="f"), edge("par", 7), silent, core("lon")]
    assert demand_of(reports) == {"lon": 500.0, "par": 7.0, "syd": 0.0}


def test_suspects_and_those_that_drain_count_as_not_healthy() -> None:
    reports = [core("lon"), core("lon", "d", draining=True), core("lon", "s"), core("par", ms=2)]
    assert supply_of(reports, {"s-lon"}, capacity_of) == {
        "lon": RegionSupply(3000.0, pytest.approx(1 / 3)),
        "par": RegionSupply(500.0, 1.0),
    }


def test_a_core_that_has_not_measured_itself_counts_as_the_median_of_those_that_have() -> None:
    reports = [core("lon"), core("par", ms=0.0)]
    assert supply_of(reports, (), capacity_of)["par"] == RegionSupply(1000.0, 1.0)


def test_a_replica_that_has_just_begun_tells_no_rows() -> None:
    balance = Balance("lb-1", 0.0, capacity_of)
    stepped(balance, [core("lon"), edge("lon", 100)], since=0, seconds=math.ceil(SETTLED_S))
    assert balance.table == {}
    assert balance.distances.pairs == {("lon", "lon"): 1.0}
    stepped(balance, [core("lon"), edge("lon", 100)], since=3, seconds=1)
    assert balance.table == {"lon": Row((("lon", 1.0),))}


def test_without_a_core_that_knows_how_fast_it_is_nothing_is_shed() -> None:
    balance = Balance("lb-1", -10.0, capacity_of)
    stepped(balance, [core("lon", ms=0.0), edge("lon", 100)], since=0, seconds=5)
    assert balance.table == {}


def test_work_beyond_the_capacity_of_its_region_goes_to_the_next() -> None:
    balance = Balance("lb-1", -10.0, capacity_of)
    reports = [core("lon"), core("par"), edge("lon", 1200), edge("par", 0)]
    stepped(balance, reports, since=0, seconds=30)
    assert balance.table["lon"].share("lon") == pytest.approx(850 / 1200, abs=0.05)
    assert balance.table["lon"].shed == 0.0


def test_a_replica_begins_with_the_rows_that_edges_follow() -> None:
    balance = Balance("lb-2", 0.0, capacity_of)
    reports = [core("lon"), core("par"), edge("lon", 200, Following("lb-1", HALF)), edge("par")]
    stepped(balance, reports, since=3, seconds=1)
    assert balance.table["lon"].share("lon") == pytest.approx(0.5, abs=0.03)


def test_a_replica_that_nobody_follows_never_drifts_away_from_the_one_that_is() -> None:
    """It hears of no core in par, and would send all of the work home."""
    balance = Balance("lb-2", -10.0, capacity_of)
    reports = [core("lon"), edge("lon", 200, Following("lb-1", HALF)), edge("par")]
    stepped(balance, reports, since=0, seconds=60)
    partly = balance.table["lon"].share("lon")
    reports = [core("lon"), edge("lon", 10, Following("lb-2", HALF)), edge("par")]
    stepped(balance, [core("par"), *reports], since=60, seconds=1)
    assert balance.table["lon"].share("lon") == pytest.approx(partly, abs=0.03)


def test_an_edge_that_follows_this_replica_is_not_listened_to() -> None:
    mine, other = Following("lb-1", HALF), Following("lb-0", Row((("par", 1.0),)))
    assert in_force([edge("lon", 0, mine)], "lb-1") == {}
    assert in_force([edge("lon", 0, mine), edge("lon", 0, other, "f")], "lb-1") == {}
    assert in_force([edge("lon", 0, other), edge("par", 0, mine)], "lb-1") == {"lon": other.row}


def test_of_two_that_edges_follow_the_lower_name_counts() -> None:
    low, high = Following("lb-2", HALF), Following("lb-3", Row((("par", 1.0),)))
    assert in_force([edge("lon", 0, high, "a"), edge("lon", 0, low, "b")], "lb-9") == {"lon": HALF}


def test_replicas_that_saw_different_reports_hand_over_without_a_jump() -> None:
    """lb-2 does not hear of half of par. After a minute lb-1 dies, and edges go by lb-2's rows."""
    one, two = Balance("lb-1", -10.0, capacity_of), Balance("lb-2", -10.0, capacity_of)
    shares: list[float] = []
    for second in range(180):
        name, followed = ("lb-1", one) if second < 60 else ("lb-2", two)
        row = followed.table.get("lon")
        word = None if row is None else Following(name, row)
        heard = [core("lon"), core("par"), edge("lon", 3000, word), edge("par")]
        if second < 60:
            stepped(one, [*heard, core("par", "d")], since=second, seconds=1)
        stepped(two, heard, since=second, seconds=1)
        if row is not None:
            shares.append(row.share("lon"))
    steps = [after - before for before, after in pairwise(shares)]
    assert max(map(abs, steps)) <= 0.2, "two steps of a second at the most"
    assert sum(one * other < 0 for one, other in pairwise(steps)) <= 2


def test_an_edge_with_more_work_than_can_be_is_heard_as_it_last_was_and_named() -> None:
    balance = Balance("lb-1", -10.0, capacity_of)
    honest = [core("lon"), core("par"), edge("lon", 300), edge("par", 100)]
    stepped(balance, [*honest, edge("lon", 200, name="liar")], since=0, seconds=3)
    before = balance.table
    stepped(balance, [*honest, edge("lon", 9e11, name="liar")], since=3, seconds=20)
    assert balance.table == before
    assert balance.absurd == {"liar-lon": "9e+11 of work a second, all cores do 2e+03"}
    assert demand_of(balance.reports) == {"lon": 500.0, "par": 100.0}
    stepped(balance, [*honest, edge("lon", 100, name="liar")], since=23, seconds=1)
    assert balance.absurd == {}


def test_an_edge_that_begins_with_more_work_than_can_be_tells_none() -> None:
    balance = Balance("lb-1", -10.0, capacity_of)
    stepped(balance, [core("lon"), edge("lon", 1e9)], since=0, seconds=3)
    assert balance.table["lon"] == Row((("lon", 1.0),))


def test_nine_times_what_all_cores_can_do_is_believed_and_shed() -> None:
    balance = Balance("lb-1", -10.0, capacity_of)
    stepped(balance, [core("lon"), edge("lon", 9000)], since=0, seconds=1)
    assert balance.table["lon"].shed == pytest.approx(8 / 9)
