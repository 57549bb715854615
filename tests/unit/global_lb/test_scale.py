"""Signals for an autoscaler: figures, reasons, what is unknown, and that they do not flap."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from firstlight.global_lb import meter
from firstlight.global_lb.scale import (
    GROW_AFTER_S,
    SHRINK_AFTER_S,
    RegionScale,
    ScaleConfig,
    Scaler,
)
from firstlight.shared import telemetry
from firstlight.shared.errors import ConfigError
from firstlight.shared.routing.spill import REGIONS_MAX, Row, Table
from firstlight.shared.types import Demand, Load, NodeInfo, Report, Role

FAST = Load(prefill_ms_per_token=1.0, step_ms=((1, 20.0), (10, 40.0)), running=10, sequences_max=16)


def capacity_of(load: Load) -> float:
    return 1000.0 / load.prefill_ms_per_token if load.prefill_ms_per_token else 0.0


def cores(count: int, load: Load = FAST, region: str = "lon") -> list[Report]:
    return [
        Report(NodeInfo(f"c{n}-{region}", Role.CORE, 1, region, "c:1"), 1, load)
        for n in range(count)
    ]


def edge(work: float, region: str = "lon", **more: float) -> Report:
    demand = replace(Demand(work), **more)  # type: ignore[arg-type]
    return Report(NodeInfo(f"e-{region}", Role.EDGE, 1, region, "e:1"), 1, demand=demand)


def watched(
    scaler: Scaler,
    reports: Iterable[Report],
    *,
    since: float = 0.0,
    for_s: float = GROW_AFTER_S,
    table: Table | None = None,
) -> dict[str, RegionScale]:
    for second in range(int(for_s) + 1):
        scaler.step(list(reports), (), table or {}, since + second)
    return {one.region: one for one in scaler.regions}


def made(config: ScaleConfig | None = None) -> Scaler:
    return Scaler(config or ScaleConfig(), capacity_of)


def test_as_many_cores_are_wanted_as_keep_utilisation_where_it_should_be() -> None:
    lon = watched(made(), [*cores(2), edge(2000.0)])["lon"]
    assert (lon.offered_per_s, lon.capacity_per_s, lon.utilisation) == (2000.0, 2000.0, 1.0)
    assert lon.wanted == 3
    assert lon.reason == "2000 of work a second"


def test_a_promise_that_is_not_kept_asks_for_more_cores_and_names_the_class() -> None:
    late = replace(FAST, queued_prefill_tokens=900)
    demand = {"prompt_tokens_per_s": 100.0, "requests_per_s": 1.0}
    lon = watched(made(), [*cores(4, late), edge(100.0, **demand)])["lon"]
    promise = lon.ttft["interactive"]
    assert (promise.promised_ms, promise.kept) == (1000.0, False)
    assert promise.predicted_ms == pytest.approx(900 + 100 + 42.2, abs=3)
    assert lon.ttft["batch"].kept
    assert lon.wanted == 5
    assert "1042 ms to the first token, 1000 promised" in lon.reason


def test_a_promise_missed_by_far_doubles_the_region_at_most() -> None:
    late = replace(FAST, queued_prefill_tokens=900_000)
    assert watched(made(), [*cores(4, late), edge(100.0)])["lon"].wanted == 8


def test_work_of_an_origin_without_cores_counts_where_it_goes() -> None:
    table = {"syd": Row((("lon", 0.25), ("par", 0.75)))}
    reports = [*cores(1), *cores(1, region="par"), edge(0.0), edge(0.0, "par"), edge(800.0, "syd")]
    found = watched(made(), reports, table=table)
    assert (found["lon"].offered_per_s, found["par"].offered_per_s) == (200.0, 600.0)


def test_work_that_is_spilled_counts_at_home() -> None:
    table = {"lon": Row((("lon", 0.5), ("par", 0.5)))}
    reports = [*cores(1), *cores(1, region="par"), edge(1400.0), edge(0.0, "par")]
    found = watched(made(), reports, table=table)
    assert (found["lon"].wanted, found["par"].wanted) == (2, 1)


def test_a_region_that_is_not_heard_is_unknown_and_not_nothing() -> None:
    scaler = made()
    watched(scaler, [*cores(2), edge(2000.0)])
    lon = watched(scaler, [*cores(1, region="par")], since=20)["lon"]
    assert (lon.cores, lon.offered_per_s, lon.capacity_per_s, lon.utilisation) == (None,) * 4
    assert lon.wanted is None
    assert lon.reason == "unknown: no node of this region is heard"


@pytest.mark.parametrize(
    ("reports", "reason"),
    [
        (cores(2), "no edge tells how much work arrives"),
        ([*cores(2, Load()), edge(100.0)], "no core here has measured how fast it is"),
        ([edge(100.0)], "no core here has measured how fast it is"),
    ],
)
def test_what_is_not_known_is_said(reports: list[Report], reason: str) -> None:
    lon = watched(made(), reports)["lon"]
    assert lon.wanted is None
    assert reason in lon.reason


def test_a_region_that_lost_all_its_cores_still_wants_what_its_work_takes() -> None:
    scaler = made()
    watched(scaler, [*cores(3), edge(2000.0)])
    lon = watched(scaler, [edge(2000.0)], since=11)["lon"]
    assert (lon.cores, lon.wanted) == (0, 3)


def test_suspects_and_those_that_drain_are_not_counted_as_cores() -> None:
    scaler, reports = made(), [*cores(3), edge(700.0)]
    reports[0] = replace(reports[0], load=replace(FAST, draining=True))
    scaler.step(reports, {"c1-lon"}, {}, 0.0)
    assert scaler.regions[0].cores == 1


def test_who_has_just_begun_says_nothing_for_a_while() -> None:
    scaler = made()
    assert watched(scaler, [*cores(1), edge(100.0)], for_s=GROW_AFTER_S - 1)["lon"].wanted is None
    assert watched(scaler, [*cores(2), edge(2000.0)], since=GROW_AFTER_S)["lon"].wanted == 3


def test_a_short_peak_asks_for_nothing() -> None:
    scaler = made()
    watched(scaler, [*cores(2), edge(700.0)])
    peak = watched(scaler, [*cores(2), edge(9000.0)], since=11, for_s=GROW_AFTER_S - 2)["lon"]
    assert peak.wanted == 1
    assert peak.reason == "13 for 9000 of work a second, but not for long enough"


def test_more_is_wanted_soon_and_fewer_only_after_long() -> None:
    scaler = made()
    watched(scaler, [*cores(2), edge(2000.0)])
    grown = watched(scaler, [*cores(2), edge(3500.0)], since=11, for_s=GROW_AFTER_S + 1)
    assert grown["lon"].wanted == 5
    early = watched(scaler, [*cores(2), edge(100.0)], since=30, for_s=SHRINK_AFTER_S - 20)
    assert early["lon"].wanted == 5
    late = watched(scaler, [*cores(2), edge(100.0)], since=400, for_s=SHRINK_AFTER_S)
    assert late["lon"].wanted == 1


def test_work_that_swings_changes_nothing() -> None:
    scaler = made()
    said = set()
    for second in range(1000):
        work = 2000.0 if second // 7 % 2 else 600.0
        scaler.step([*cores(2), edge(work)], (), {}, float(second))
        said.add(scaler.regions[0].wanted)
    assert said - {None} == {3}


def test_limits_hold_and_are_named() -> None:
    config = ScaleConfig(cores_min=2, cores_max=4)
    few = watched(made(config), [*cores(2), edge(1.0)])["lon"]
    many = watched(made(config), [*cores(2), edge(1e6)])["lon"]
    assert (few.wanted, many.wanted) == (2, 4)
    assert many.reason == "1000000 of work a second; limit of 4"


def test_the_ratio_is_of_the_time_that_prompts_and_answers_take() -> None:
    """1,000 prompt tokens at 1 ms are 1 s; 125 ids at 40/10 ms are 0.5 s."""
    demand = {"prompt_tokens_per_s": 1000.0, "output_tokens_per_s": 125.0, "requests_per_s": 10.0}
    lon = watched(made(), [*cores(6), edge(4000.0, **demand)])["lon"]
    assert lon.prefill_share == pytest.approx(2 / 3)
    assert (lon.wanted, lon.prefill_cores, lon.decode_cores) == (6, 4, 2)


def test_a_single_core_is_not_divided() -> None:
    demand = {"prompt_tokens_per_s": 10.0, "output_tokens_per_s": 1.0}
    lon = watched(made(), [*cores(1), edge(10.0, **demand)])["lon"]
    assert (lon.wanted, lon.prefill_cores) == (1, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"promised_ttft_ms": {"vip": 1.0}},
        {"promised_ttft_ms": {"batch": 0.0}},
        {"promised_ttft_ms": {"batch": float("nan")}},
        {"utilisation": 0.0},
        {"cores_min": 5, "cores_max": 4},
    ],
)
def test_what_cannot_be_aimed_at_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ScaleConfig(**wrong)  # type: ignore[arg-type]


def test_what_was_seen_before_a_silence_does_not_count_after_it() -> None:
    scaler, low = made(), [*cores(2), edge(100.0)]
    watched(scaler, [*cores(2), edge(2000.0)])
    watched(scaler, low, since=11, for_s=SHRINK_AFTER_S - 10)
    watched(scaler, [], since=SHRINK_AFTER_S + 2, for_s=20)
    assert watched(scaler, low, since=SHRINK_AFTER_S + 30, for_s=20)["lon"].wanted == 3


def test_regions_that_come_and_go_leave_room_for_those_that_are_there() -> None:
    scaler = made()
    for number in range(REGIONS_MAX):
        scaler.step([edge(1.0), edge(1.0, region=f"r{number}")], (), {}, float(number))
    regions = [one.region for one in scaler.regions]
    assert len(regions) == REGIONS_MAX
    assert {"lon", f"r{REGIONS_MAX - 1}"} <= set(regions)
    assert "r0" not in regions


def test_no_sample_is_left_of_what_is_unknown_or_forgotten() -> None:
    lon = watched(made(), [*cores(2), edge(2000.0)])["lon"]
    meter.scaled([lon, replace(lon, region="par", wanted=None)])
    assert 'firstlight_scale_wanted_cores{region="lon"} 3.0' in telemetry.render().decode()
    assert 'wanted_cores{region="par"}' not in telemetry.render().decode()
    meter.scaled([])
    left = [line for line in telemetry.render().decode().splitlines() if "_scale_" in line]
    assert not [line for line in left if not line.startswith("#")]
