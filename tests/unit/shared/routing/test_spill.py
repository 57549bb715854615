"""Shares between regions: the target in worked examples, and the way there."""

from collections import Counter

import pytest

from firstlight.shared.routing.spill import REGIONS_MAX, RegionSupply, Row, draw, sane, water_fill
from firstlight.shared.routing.spill_step import Spill, adopt, step

SUPPLY = {name: RegionSupply(100.0, 1.0) for name in ("lon", "nyc", "par")}
RTT_MS = {
    (a, b): ms
    for one, other, ms in (("lon", "par", 9.0), ("lon", "nyc", 72.0), ("nyc", "par", 79.0))
    for a, b in ((one, other), (other, one))
}
CALM = {"lon": 50.0, "nyc": 40.0, "par": 40.0}
BUSY = {**CALM, "lon": 130.0}


def run(spill: Spill, demand: dict[str, float], seconds: int, **supply: RegionSupply) -> Spill:
    begin = 0.0 if spill.at is None else spill.at + 1.0
    for second in range(seconds):
        spill = step(spill, demand, {**SUPPLY, **supply}, RTT_MS, begin + second)
    return spill


def test_what_home_has_no_room_for_goes_to_the_nearest_first() -> None:
    row = water_fill({**CALM, "lon": 165.0}, SUPPLY, RTT_MS)["lon"]
    expected = {"lon": 85 / 165, "par": 45 / 165, "nyc": 35 / 165}
    assert dict(row.fractions) == pytest.approx(expected)


def test_all_regions_are_filled_before_anything_is_shed() -> None:
    table = water_fill({"lon": 360.0, "nyc": 0.0, "par": 0.0}, SUPPLY, RTT_MS)
    assert table["lon"].shed == pytest.approx(60 / 360, abs=1e-6)
    assert table["lon"].share("nyc") == pytest.approx(100 / 360, abs=1e-6)


def test_an_origin_without_demand_stays_at_home() -> None:
    assert water_fill({"lon": 0.0}, SUPPLY, RTT_MS)["lon"] == Row((("lon", 1.0),))


def test_an_origin_without_cores_goes_to_the_nearest_region() -> None:
    rtt_ms = {**RTT_MS, ("gru", "nyc"): 110.0, ("gru", "lon"): 190.0}
    assert water_fill({"gru": 1.0}, SUPPLY, rtt_ms)["gru"] == Row((("nyc", 1.0),))


def test_without_any_capacity_all_is_shed() -> None:
    assert water_fill({"lon": 1.0}, {}, {})["lon"] == Row((), 1.0)


def test_a_region_counts_as_whole_until_71_percent_are_healthy() -> None:
    assert RegionSupply(100.0, 0.72).effective == 100.0
    assert RegionSupply(100.0, 0.5).effective == pytest.approx(70.0)


def test_a_row_leaves_home_by_a_tenth_a_second_and_returns_by_a_fiftieth() -> None:
    spill = run(Spill(), CALM, 1)
    away = [(spill := run(spill, BUSY, 1)).table["lon"].share("lon") for _ in range(5)]
    assert away == pytest.approx([0.9, 0.8, 0.7, 85 / 130, 85 / 130])
    back = [(spill := run(spill, CALM, 1)).table["lon"].share("lon") for _ in range(3)]
    assert back == pytest.approx([85 / 130 + 0.02 * n for n in (1, 2, 3)])
    assert run(spill, CALM, 20).table["lon"] == Row((("lon", 1.0),))


@pytest.mark.parametrize(("demand", "share"), [(0.0, 1.0), (10.0, 1.0), (10.5, 0.02)])
def test_less_than_a_tenth_of_what_home_can_do_goes_home_at_once(
    demand: float, share: float
) -> None:
    begun = run(Spill(), {"lon": demand}, 1, lon=RegionSupply(0.0, 1.0))
    assert begun.table["lon"].share("par") == 1.0
    assert run(begun, {"lon": demand}, 1).table["lon"].share("lon") == pytest.approx(share)


def test_what_is_small_for_a_region_that_returns_is_small_for_the_tenth_that_it_begins_with() -> (
    None
):
    dead = {"lon": RegionSupply(100.0, 0.0)}
    for demand, share in ((0.9, 1.0), (1.1, 0.02)):
        spill = run(run(Spill(), {"lon": demand}, 1), {"lon": demand}, 1, **dead)
        assert spill.table["lon"].share("par") == 1.0
        assert run(spill, {"lon": demand}, 1).table["lon"].share("lon") == pytest.approx(share)


def test_what_is_small_leaves_home_no_faster_than_anything_else() -> None:
    spill = run(Spill(), {"lon": 5.0}, 1)
    after = run(spill, {"lon": 5.0, "par": 0.0}, 1, lon=RegionSupply(1.0, 1.0))
    assert after.table["lon"].share("lon") == pytest.approx(0.9)


def test_a_dead_region_is_given_away_at_once() -> None:
    spill = run(Spill(), CALM, 1)
    assert spill.table["par"].share("par") == 1.0
    spill = run(spill, CALM, 1, par=RegionSupply(100.0, 0.0))
    assert spill.table["par"].share("par") == 0.0
    assert spill.table["par"].share("lon") == pytest.approx(35 / 40)
    assert spill.reasons["par"].startswith("par dead")


def test_a_region_that_nobody_speaks_of_any_more_is_dead() -> None:
    spill = run(Spill(), CALM, 1)
    rest = {name: one for name, one in SUPPLY.items() if name != "par"}
    spill = step(spill, CALM, rest, RTT_MS, 1.0)
    assert spill.dead == {"par"}
    assert spill.table["par"].share("par") == 0.0


def test_a_region_that_returns_begins_at_a_tenth_and_grows_for_a_minute() -> None:
    dead = run(run(Spill(), CALM, 1), CALM, 3, par=RegionSupply(100.0, 0.0))
    demand = {**CALM, "par": 1000.0}
    spill, shares = dead, []
    for _ in range(61):
        spill = run(spill, demand, 1)
        shares.append(spill.table["par"].share("par") * 1000.0)
    assert shares[0] <= 10.0 + 1e-6
    assert shares[30] <= 55.0 + 1e-6
    assert shares[60] > 90.0
    assert not spill.returned


def test_a_region_that_is_seen_for_the_first_time_is_whole() -> None:
    spill = step(Spill(), {"lon": 130.0}, {"lon": SUPPLY["lon"]}, RTT_MS, 0.0)
    assert run(spill, BUSY, 1).returned == {}


def test_a_round_trip_that_trembles_does_not_change_who_is_nearest() -> None:
    spill = run(Spill(), BUSY, 6)
    assert spill.table["lon"].share("par") > 0.3
    rtt_ms = {**RTT_MS, ("lon", "par"): 14.0, ("lon", "nyc"): 68.0}
    after = step(spill, BUSY, SUPPLY, rtt_ms, 7.0)
    assert after.rtt_ms[("lon", "par")] == 9.0
    assert after.rtt_ms[("lon", "nyc")] == 72.0


def test_a_round_trip_that_has_changed_is_taken() -> None:
    spill = run(Spill(), BUSY, 6)
    rtt_ms = {**RTT_MS, ("lon", "par"): 250.0}
    for second in range(7, 30):
        spill = step(spill, BUSY, SUPPLY, rtt_ms, float(second))
    assert spill.table["lon"].share("par") == 0.0
    assert spill.table["lon"].share("nyc") == pytest.approx(45 / 130)


def test_a_clock_that_stands_or_goes_back_moves_nothing() -> None:
    spill = run(Spill(), CALM, 1)
    for now in (0.0, -5.0):
        assert step(spill, BUSY, SUPPLY, RTT_MS, now).table == spill.table


def test_a_step_that_comes_late_moves_no_more_than_two_seconds_allow() -> None:
    spill = step(run(Spill(), CALM, 1), BUSY, SUPPLY, RTT_MS, 600.0)
    assert spill.table["lon"].share("lon") == pytest.approx(0.8)


def test_a_replica_that_starts_goes_on_from_the_rows_that_it_hears() -> None:
    heard = {"lon": Row((("lon", 0.5), ("nyc", 0.5)))}
    spill = step(adopt(Spill(at=0.0), heard), CALM, SUPPLY, RTT_MS, 1.0)
    assert spill.table["lon"].share("lon") == pytest.approx(0.52)


@pytest.mark.parametrize(
    "row",
    [
        Row((("lon", 0.5),)),
        Row((("lon", float("nan")),)),
        Row((("lon", 1.5),), -0.5),
        Row((("lon", 0.5), ("lon", 0.5))),
        Row(tuple((f"r{n}", 1 / 200) for n in range(200))),
    ],
)
def test_a_row_that_cannot_be_followed_is_not_adopted(row: Row) -> None:
    assert not sane(row)
    spill = run(Spill(), CALM, 1)
    assert adopt(spill, {"lon": row}) == spill


def test_too_many_regions_leave_all_as_it_is() -> None:
    spill = run(Spill(), CALM, 1)
    after = step(spill, {f"r{n}": 1.0 for n in range(200)}, SUPPLY, RTT_MS, 1.0)
    assert after.table == spill.table
    assert after.ignored == ("200 regions",)


def test_sessions_are_drawn_in_proportion_and_what_is_shed_has_no_region() -> None:
    row = Row((("lon", 0.6), ("par", 0.3)), 0.1)
    drawn = Counter(draw(row, number.to_bytes(4, "little")) for number in range(10_000))
    assert drawn["lon"] == pytest.approx(6000, rel=0.05)
    assert drawn["par"] == pytest.approx(3000, rel=0.05)
    assert drawn[None] == pytest.approx(1000, rel=0.1)


def test_a_row_that_is_nearly_1_is_followed_when_what_it_lacks_dies() -> None:
    ours = run(Spill(), {"lon": 50.0}, 1)
    theirs = Row((("lon", 1.0 + 5e-7), ("par", 1e-7)))
    assert sane(theirs)
    adopted = adopt(ours, {"lon": theirs})
    spill = run(adopted, {"lon": 50.0}, 1, par=RegionSupply(0.0, 0.0))
    assert spill.table["lon"] == Row((("lon", 1.0),))


def test_rows_of_others_are_taken_only_while_all_can_be_told() -> None:
    ours = {f"o{number}": Row((("lon", 1.0),)) for number in range(REGIONS_MAX)}
    theirs = Row((("par", 1.0),))
    last = Spill(table=ours)
    assert adopt(last, {"another": theirs}) == last
    assert adopt(last, {"o1": theirs}).table == {**ours, "o1": theirs}
