"""The choice of a core: its order of preference, its reasons, and when a route is empty."""

from collections import Counter
from dataclasses import replace
from math import inf, isfinite, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstlight.shared.routing.choose import SHED, Cores, choose, region_of
from firstlight.shared.routing.cost import CoreState
from firstlight.shared.routing.fetch import Source
from firstlight.shared.routing.rank import Wanted
from firstlight.shared.routing.spill import Row
from firstlight.shared.types import Load, Route

HOME = "lon"
WANTED = Wanted(home=HOME, prompt_tokens=100, model="m")


def core(
    name: str,
    region: str = HOME,
    *,
    running: int = 0,
    cap: int = 10,
    rtt_ms: float = 5.0,
    kv: float = 0.0,
    draining: bool = False,
) -> CoreState:
    load = Load(
        running=running,
        sequences_max=cap,
        kv_used_share=kv,
        prefill_ms_per_token=1.0,
        draining=draining,
    )
    return CoreState(name, region, load, rtt_ms, models=("m",))


def routed(states: list[CoreState], wanted: Wanted, rng: Random) -> Route:
    return choose(Cores.of(states), wanted, rng)


def names(route: Route) -> list[str]:
    return [candidate.core for candidate in route.candidates]


def picks(states: list[CoreState], wanted: Wanted = WANTED, trials: int = 300) -> Counter[str]:
    return Counter(names(routed(states, wanted, Random(seed)))[0] for seed in range(trials))


def test_the_core_that_is_expected_to_answer_first_is_picked() -> None:
    assert picks([core("far", rtt_ms=40), core("near")]) == {"near": 300}


def test_ties_within_five_percent_are_broken_at_random() -> None:
    chosen = picks([core("a", rtt_ms=5), core("b", rtt_ms=8), core("c", rtt_ms=20)])
    assert chosen["c"] == 0
    assert min(chosen["a"], chosen["b"]) > 100


def test_a_cached_prefix_is_worth_its_milliseconds_and_no_more() -> None:
    states = [core("warm", rtt_ms=60), core("cold")]
    assert picks(states, replace(WANTED, prefixes={"warm": 64})) == {"warm": 300}
    assert picks(states, replace(WANTED, prefixes={"warm": 32})) == {"cold": 300}


@pytest.mark.parametrize(
    ("hot", "why"),
    [
        (core("hot", running=8), "hot: load 0.80 above 0.75"),
        (core("hot", kv=0.9), "hot: KV 0.90 above 0.85"),
        (replace(core("hot"), age_s=1.6), "hot: last heard 1.6 s ago"),
    ],
)
def test_a_hot_core_is_not_picked_while_a_cold_one_is_there(hot: CoreState, why: str) -> None:
    route = routed([hot, *(core(f"cold{i}", rtt_ms=300) for i in range(6))], WANTED, Random(1))
    assert route.candidates[0].reason == "cold"
    assert [c.reason for c in route.candidates if c.core == "hot"] == [why]


def test_load_that_all_share_makes_nobody_hot() -> None:
    route = routed([core("a", running=9), core("b", running=9, rtt_ms=1)], WANTED, Random(1))
    assert names(route) == ["b", "a"]
    assert [candidate.reason for candidate in route.candidates] == ["cold", "cold"]


def test_if_none_is_cold_the_least_loaded_is_picked() -> None:
    states = [core("a", running=6, kv=0.9), core("b", running=2, kv=0.9, rtt_ms=90)]
    assert names(routed(states, WANTED, Random(1))) == ["b", "a"]


@pytest.mark.parametrize(
    "gone",
    [
        core("home", running=10),
        core("home", draining=True),
        replace(core("home"), age_s=5.1),
        replace(core("home"), ejected=True),
    ],
)
def test_the_nearest_other_region_serves_when_home_cannot(gone: CoreState) -> None:
    states = [gone, core("syd", "syd", rtt_ms=250), core("par", "par", rtt_ms=9)]
    route = routed(states, WANTED, Random(1))
    assert names(route) == ["par", "syd", "home"]
    assert route.reason == "region par: none free at home"


def test_a_near_region_takes_nothing_while_home_has_room() -> None:
    assert picks([core("home", running=9, rtt_ms=50), core("par", "par", rtt_ms=1)]) == {
        "home": 300
    }


def waiting(name: str, tokens: int, region: str = HOME, rtt_ms: float = 5.0) -> CoreState:
    state = core(name, region, rtt_ms=rtt_ms)
    return replace(state, load=replace(state.load, queued_prefill_tokens=tokens))


def test_a_region_whose_wait_is_longer_than_the_way_yields_to_one_that_is_sooner() -> None:
    home = [waiting(f"h{n}", 400) for n in range(5)]
    states = [*home, core("par", "par", rtt_ms=9), core("syd", "syd", rtt_ms=250)]
    route = routed(states, WANTED, Random(1))
    assert route.candidates[0].core == "par"
    assert route.reason == "region par: sooner than in lon by its wait"
    assert route.candidates[1].region == HOME
    assert len(set(names(route))) == len(names(route)) >= 5
    assert picks([*home, states[-1]]) == {"syd": 300}


@pytest.mark.parametrize(
    ("wait_tokens", "other"),
    [
        (50, core("par", "par", rtt_ms=9)),
        (200, core("syd", "syd", rtt_ms=250)),
        (400, waiting("par", 320, "par", rtt_ms=9)),
        (400, replace(core("par", "par", rtt_ms=9), age_s=1.6)),
        (400, core("par", "par", rtt_ms=9, running=8)),
        (400, core("par", "par", rtt_ms=9, running=10)),
        (400, core("par", "par", rtt_ms=-1000)),
        (400, core("par", "par", rtt_ms=nan)),
    ],
    ids=["short wait", "long way", "not a fifth", "old", "hot", "full", "liar", "NaN"],
)
def test_a_region_keeps_what_is_not_sooner_elsewhere(wait_tokens: int, other: CoreState) -> None:
    assert picks([waiting("home", wait_tokens), other]) == {"home": 300}


def test_failover_in_the_numerics_class_does_not_leave_for_a_shorter_wait() -> None:
    states = [waiting("home", 400), core("par", "par", rtt_ms=9)]
    states = [replace(state, numerics_class="x") for state in states]
    assert picks(states, replace(WANTED, numerics_class="x")) == {"home": 300}


def test_a_cached_prefix_keeps_a_prompt_in_a_region_that_waits() -> None:
    states = [waiting("home", 150), core("par", "par", rtt_ms=80)]
    assert picks(states, replace(WANTED, prefixes={"home": 90})) == {"home": 300}
    assert picks(states) == {"par": 300}


def test_when_all_are_full_the_reason_says_shed_and_the_route_is_not_empty() -> None:
    route = routed([core("a", running=12), core("b", "par", running=10)], WANTED, Random(1))
    assert route.reason == f"{SHED}: all 2 cores are at their hard cap"
    assert names(route) == ["b", "a"]
    assert route.candidates[0].reason == "last resort: full, 10 of 10"


def test_opens_that_the_core_has_not_counted_fill_it_too() -> None:
    states = [replace(core("a", running=9), unseen_opens=1), core("b", "par", rtt_ms=80)]
    assert names(routed(states, WANTED, Random(1))) == ["b", "a"]


def test_if_most_cores_are_ejected_health_is_not_believed() -> None:
    states = [replace(core(f"c{i}"), ejected=i < 3) for i in range(4)]
    route = routed(states, WANTED, Random(1))
    assert route.reason == "home region, panic: most cores are ejected"
    assert picks([replace(core(f"c{i}"), ejected=i < 2) for i in range(4)])["c0"] == 0


def test_a_core_that_failed_in_this_request_comes_last() -> None:
    wanted = replace(WANTED, excluded=frozenset({"a"}))
    route = routed([core("a"), core("b", running=10), core("c", "par")], wanted, Random(1))
    assert names(route) == ["c", "b", "a"]
    assert route.candidates[-1].reason == "last resort: failed in this request"
    assert names(routed([core("a")], wanted, Random(1))) == ["a"]


def test_failover_prefers_the_same_numerics_class_even_in_another_region() -> None:
    states = [
        replace(core("other"), numerics_class="avx2"),
        replace(core("same", "par", rtt_ms=90), numerics_class="vnni"),
    ]
    wanted = replace(WANTED, numerics_class="vnni")
    route = routed(states, wanted, Random(1))
    assert names(route) == ["same", "other"]
    assert route.reason == "region par: none free at home, same numerics class"
    alone = routed(states[:1], wanted, Random(1))
    assert alone.reason == "home region, other numerics class"


@pytest.mark.parametrize(
    ("states", "wanted", "reason"),
    [
        ([], WANTED, "no core is known"),
        ([core("a")], replace(WANTED, model="x"), "no core serves model 'x'"),
        (
            [replace(core("a"), context_max=100)],
            WANTED,
            "no core holds 101 tokens of prompt and answer",
        ),
    ],
)
def test_a_route_is_empty_only_if_nobody_can_serve(
    states: list[CoreState], wanted: Wanted, reason: str
) -> None:
    assert routed(states, wanted, Random(1)) == Route((), reason)


def test_of_many_cores_three_at_random_and_the_longest_prefix_are_weighed() -> None:
    states = [core(f"c{i}", rtt_ms=5 + i) for i in range(100)]
    chosen = picks(states, replace(WANTED, prefixes={"c60": 99}), trials=400)
    assert chosen["c60"] > 200
    assert len(picks([core(f"c{i}") for i in range(100)], trials=400)) > 80


def test_the_same_seed_makes_the_same_choice() -> None:
    states = [core(f"c{i}") for i in range(40)]
    assert routed(states, WANTED, Random(5)) == routed(states, WANTED, Random(5))


CORES = st.lists(
    st.builds(
        CoreState,
        core=st.integers(0, 30).map("c{}".format),
        region=st.sampled_from(["lon", "par", "syd"]),
        load=st.builds(
            Load,
            running=st.integers(0, 20),
            queued=st.integers(0, 5),
            sequences_max=st.integers(1, 16),
            kv_used_share=st.floats(0, 1),
            prefill_ms_per_token=st.floats(0, 10),
            draining=st.booleans(),
        ),
        rtt_ms=st.floats(0, 500),
        age_s=st.floats(0, 20),
        unseen_opens=st.integers(-3, 5),
        ejected=st.booleans(),
    ),
    unique_by=lambda state: state.core,
    max_size=31,
)


PREFIXES = st.dictionaries(st.integers(0, 30).map("c{}".format), st.integers(1, 200))


@given(CORES, PREFIXES, st.integers(0, 2**32))
def test_a_route_is_never_empty_while_any_core_is_known(
    states: list[CoreState], prefixes: dict[str, int], seed: int
) -> None:
    route = routed(states, Wanted(HOME, 100, prefixes=prefixes), Random(seed))
    listed = names(route)
    assert bool(listed) == bool(states)
    assert len(set(listed)) == len(listed)
    by_name = {state.core: state for state in states}
    well = [s for s in states if not (s.full or s.load.draining or s.ejected or s.age_s > 5)]
    if well:
        first = by_name[listed[0]]
        assert not first.full
        assert not first.load.draining
        at_home = any(state.region == HOME for state in well)
        assert first.region == HOME or not at_home


SPILL = Row((("lon", 0.6), ("par", 0.4)))
WAITS = replace(core("home"), load=replace(core("home").load, queued=1, queued_prefill_tokens=20))
TWO_REGIONS = [WAITS, core("away", "par", rtt_ms=9)]


def test_the_region_is_drawn_by_the_shares_of_the_row() -> None:
    chosen = picks(TWO_REGIONS, replace(WANTED, spill=SPILL), trials=2000)
    assert chosen["home"] == pytest.approx(1200, rel=0.08)
    route = routed(TWO_REGIONS, replace(WANTED, spill=Row((("par", 1.0),))), Random(1))
    assert (route.drawn, route.spill) == ("par", (("par", 1.0),))
    assert route.reason == "region par: drawn by its share"


@pytest.mark.parametrize(
    "waits",
    [
        WAITS,
        replace(WAITS, load=replace(core("home").load, queued_prefill_tokens=60)),
        core("home", kv=0.9),
        core("home", draining=True),
    ],
)
def test_what_is_drawn_away_goes_only_if_home_has_no_cold_core_at_which_nothing_waits(
    waits: CoreState,
) -> None:
    wanted = replace(WANTED, spill=Row((("par", 1.0),)))
    away = core("away", "par", rtt_ms=9)
    assert picks([waits, away], wanted) == {"away": 300}
    route = routed([waits, core("other"), away], wanted, Random(1))
    assert names(route)[0] == "other"
    assert route.reason == "home region: nothing waits here, though par was drawn"
    assert route.drawn == "par"


def test_what_is_drawn_to_a_region_of_which_no_core_is_known_stays_at_home() -> None:
    wanted = replace(WANTED, spill=Row((("tok", 1.0),)))
    assert picks(TWO_REGIONS, wanted) == {"home": 300}
    route = routed(TWO_REGIONS, wanted, Random(1))
    assert (route.reason, route.drawn) == ("home region", "tok")


def test_a_session_stays_in_its_region() -> None:
    for number in range(20):
        session = number.to_bytes(8, "little")
        assert len(picks(TWO_REGIONS, replace(WANTED, spill=SPILL, session=session))) == 1


def test_another_region_enters_only_when_all_of_the_drawn_one_is_at_its_cap() -> None:
    wanted = replace(WANTED, spill=Row((("par", 1.0),)))
    hot = [WAITS, core("away", "par", running=9), core("far", "syd", rtt_ms=250)]
    assert picks(hot, wanted) == {"away": 300}
    full = [core("far", "syd", rtt_ms=250), WAITS, core("away", "par", running=10)]
    route = routed(full, wanted, Random(1))
    assert names(route) == ["home", "far", "away"]
    assert route.reason == "region lon: none free in par"


def test_a_share_that_is_shed_is_served_where_a_core_is_cold_by_our_own_knowledge() -> None:
    wanted = replace(WANTED, spill=Row((), 1.0))
    route = routed([core("busy", running=8), core("away", "par", rtt_ms=9)], wanted, Random(1))
    assert names(route) == ["away"]
    assert route.drawn is None
    busy = [core("busy", kv=0.9), core("away", "par", kv=0.9)]
    assert routed(busy, wanted, Random(1)).reason.startswith(SHED)
    assert routed(busy, wanted, Random(1)).candidates == ()


def test_a_row_without_any_region_that_sheds_nothing_means_home() -> None:
    assert picks(TWO_REGIONS, replace(WANTED, spill=Row(()))) == {"home": 300}


def test_what_is_asked_for_beside_the_choice_draws_the_same_region() -> None:
    for seed in range(50):
        rng = Random(seed)
        region, wanted = region_of(replace(WANTED, spill=SPILL), rng)
        assert routed(TWO_REGIONS, wanted, rng).drawn == region


@pytest.mark.parametrize(
    "liar",
    [
        replace(core("liar"), rtt_ms=nan),
        replace(core("liar"), rtt_ms=-1e9),
        replace(core("liar"), rtt_ms=inf),
        replace(core("liar"), load=replace(core("liar").load, running=-1_000_000)),
        replace(core("liar"), load=replace(core("liar").load, queued_prefill_tokens=-(1 << 40))),
        replace(core("liar"), load=replace(core("liar").load, prefill_ms_per_token=-5.0)),
        replace(core("liar"), load=replace(core("liar").load, prefill_ms_per_token=1e-9)),
        replace(core("liar"), load=replace(core("liar").load, prefill_ms_per_token=nan)),
        replace(core("liar"), load=replace(core("liar").load, sequences_max=1 << 40)),
        replace(core("liar"), load=replace(core("liar").load, kv_used_share=-1.0)),
        replace(core("liar"), load=replace(core("liar").load, kv_used_share=nan)),
        replace(core("liar"), load=replace(core("liar").load, step_ms=((1, -500.0),))),
        replace(core("liar"), load=replace(core("liar").load, step_ms=((1, nan),))),
        replace(core("liar"), penalty_ms=-1000.0),
        replace(core("liar"), near_tokens=99, near=Source(-1000.0, -1.0)),
    ],
)
def test_a_figure_that_cannot_be_never_draws_work(liar: CoreState) -> None:
    honest = [core("a", rtt_ms=40), core("b", rtt_ms=41)]
    chosen = picks([liar, *honest])
    assert chosen["liar"] == 0
    route = routed([liar, *honest], WANTED, Random(1))
    assert all(isfinite(candidate.ttft_ms) for candidate in route.candidates)


@pytest.mark.parametrize("age_s", [nan, inf])
def test_a_core_whose_age_cannot_be_told_is_the_last_resort(age_s: float) -> None:
    assert names(routed([replace(core("x"), age_s=age_s), core("a")], WANTED, Random(1))) == [
        "a",
        "x",
    ]


def test_if_all_that_is_known_is_old_nobody_is_believed_to_be_idle() -> None:
    states = [replace(core(f"c{n}", running=n), age_s=3.0) for n in range(4)]
    chosen = picks(states, trials=400)
    assert min(chosen[f"c{n}"] for n in range(4)) > 60


def test_a_core_that_was_ejected_gets_a_part_of_its_room_at_first() -> None:
    back = replace(core("back", running=2), grown=0.1)
    route = routed([back, core("far", rtt_ms=300)], WANTED, Random(1))
    assert names(route) == ["far", "back"]
    assert picks([replace(back, grown=0.9), core("far", rtt_ms=300)]) == {"back": 300}


def test_in_a_region_of_many_the_longest_prefix_is_found_and_no_core_is_a_magnet() -> None:
    states = [core(f"c{n}") for n in range(300)]
    wanted = replace(WANTED, prefixes={"c250": 99})
    assert picks(states, wanted, trials=200)["c250"] > 190
    assert max(picks(states, trials=600).values()) < 12


@pytest.mark.parametrize(("full", "most"), [(0.0, 20), (0.5, 60)])
def test_of_many_cores_few_are_asked_how_they_stand(full: float, most: int) -> None:
    states = {f"c{n}": core(f"c{n}", running=10 * (n < full * 1000)) for n in range(1000)}
    by_region, wanted = Cores.of(states.values()).by_region, replace(WANTED, prefixes={"c990": 99})
    for seed in range(50):
        asked: list[str] = []
        known = Cores(by_region, lambda name, asked=asked: asked.append(name) or states[name])  # type: ignore[misc]
        assert choose(known, wanted, Random(seed)).candidates[0].core == "c990"
        assert len(asked) <= most


def test_of_other_regions_that_are_too_far_for_the_wait_one_core_is_asked() -> None:
    home = [waiting(f"h{n}", 100) for n in range(5)]
    near = [core(f"n{n}", "par", rtt_ms=9) for n in range(20)]
    far = [core(f"f{n}", "tok", rtt_ms=250) for n in range(20)]
    states, asked = {one.core: one for one in (*far, *home, *near)}, list[str]()
    by_region = Cores.of(states.values()).by_region
    known = Cores(by_region, lambda name: asked.append(name) or states[name])  # type: ignore[func-returns-value]
    assert choose(known, WANTED, Random(1)).candidates[0].region == "par"
    assert Counter(name[0] for name in asked)["f"] == 1


def test_if_few_of_many_are_usable_they_are_found() -> None:
    states = [core(f"c{n}", running=0 if n == 77 else 10) for n in range(300)]
    assert picks(states, trials=50) == {"c77": 50}


def test_a_prefix_of_most_requests_ends_its_credit_above_the_mean_load() -> None:
    states = [core("warm", running=5), core("a"), core("b")]
    wanted = replace(WANTED, prefixes={"warm": 90})
    assert picks(states, wanted) == {"warm": 300}
    assert picks(states, replace(wanted, prefix_traffic=0.8))["warm"] < 150
    assert picks(states, replace(wanted, prefix_traffic=0.3)) == {"warm": 300}


def test_where_the_drawn_region_is_gone_the_longest_prefix_of_the_nearest_large_one_is_found() -> (
    None
):
    near = [core(f"n{number}", "par", rtt_ms=20, running=number % 5) for number in range(300)]
    far = [core(f"f{number}", "tok", rtt_ms=200) for number in range(300)]
    wanted = replace(WANTED, prefixes={"n77": 80, "f5": 99})
    for seed in range(50):
        route = routed([*far, *near], wanted, Random(seed))
        assert {candidate.region for candidate in route.candidates} == {"par"}
        assert "n77" in names(route)


def test_where_the_drawn_region_is_gone_the_few_usable_of_the_nearest_large_one_are_found() -> None:
    near = [core(f"n{number}", "par", rtt_ms=20, running=10) for number in range(300)]
    near[7] = core("n7", "par", rtt_ms=20)
    far = [core(f"f{number}", "tok", rtt_ms=200) for number in range(300)]
    assert picks([*far, *near], trials=50) == {"n7": 50}


def test_where_most_of_the_drawn_region_is_full_its_last_free_core_is_found_before_others() -> None:
    here = [core(f"h{number}", running=10) for number in range(300)]
    here[7] = core("h7")
    far = [core(f"f{number}", "tok", rtt_ms=200) for number in range(300)]
    assert picks([*far, *here], trials=50) == {"h7": 50}


@given(CORES, PREFIXES, st.integers(0, 2**32), st.integers(1, 6))
def test_a_route_that_names_few_is_the_beginning_of_the_one_that_names_all(
    states: list[CoreState], prefixes: dict[str, int], seed: int, most: int
) -> None:
    wanted = Wanted(HOME, 100, prefixes=prefixes)
    whole = routed(states, wanted, Random(seed))
    short = routed(states, replace(wanted, named_max=most), Random(seed))
    assert short == replace(whole, candidates=whole.candidates[:most])


@given(CORES, PREFIXES, st.integers(0, 2**32))
def test_a_named_core_costs_the_sum_of_its_parts(
    states: list[CoreState], prefixes: dict[str, int], seed: int
) -> None:
    wanted = Wanted(HOME, 100, prefixes=prefixes)
    for candidate in routed(states, wanted, Random(seed)).candidates:
        assert candidate.ttft_ms == candidate.cost.ms


def test_a_core_that_measured_nothing_is_weighed_by_those_that_are_beside_it_each_time() -> None:
    new = replace(core("new"), load=Load(sequences_max=10))
    for rate_ms in (0.5, 4.0):
        load = Load(sequences_max=10, prefill_ms_per_token=rate_ms)
        route = routed([new, replace(core("other"), load=load)], WANTED, Random(1))
        assert {candidate.cost.prefill_ms for candidate in route.candidates} == {100 * rate_ms}
