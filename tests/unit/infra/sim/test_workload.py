"""What is asked in a simulation: sessions, regions, load, and requests like those of a trace."""

from math import inf
from random import Random
from statistics import mean

import pytest
from sim_bed import SPEC, arrivals

from firstlight.infra.bench.load.schedule import Arrival
from firstlight.infra.sim.workload import (
    Asked,
    at_load,
    fit,
    generated,
    offered_s,
    placed,
    sessions,
    work_s,
)
from firstlight.shared.errors import ConfigError


def arrival(at_s: float, *blocks: int) -> Arrival:
    return Arrival(at_s, 512 * len(blocks), 10, blocks)


def test_requests_that_begin_alike_are_of_one_session() -> None:
    asked = [arrival(0, 1, 2), arrival(1, 5, 6), arrival(2, 1, 2, 3), arrival(3, 5, 9)]
    assert sessions(asked) == [0, 1, 0, 1]


def test_what_all_begin_with_makes_no_session() -> None:
    asked = [arrival(n, 0, 10 + n) for n in range(9)]
    assert sessions(asked) == list(range(9))


def test_a_session_stays_in_its_region() -> None:
    homes: dict[int, set[int]] = {}
    for one in placed(arrivals(200), 3, Random(1)):
        homes.setdefault(one.session, set()).add(one.origin)
    assert all(len(regions) == 1 for regions in homes.values())
    assert len(set.union(*homes.values())) == 3


def test_without_a_diurnal_swing_regions_get_like_shares() -> None:
    asked = placed([arrival(n, n) for n in range(3000)], 3, Random(1))
    counts = [sum(one.origin == region for one in asked) for region in range(3)]
    assert all(900 < count < 1100 for count in counts)


def test_with_a_diurnal_swing_a_region_has_its_noon() -> None:
    asked = placed([arrival(n, n) for n in range(3000)], 3, Random(1), diurnal=1.0)
    early = sum(one.origin == 0 for one in asked[:300])
    middle = sum(one.origin == 0 for one in asked[1350:1650])
    assert early > 170
    assert middle < 30


def test_blocks_that_a_trace_does_not_name_are_nobody_elses() -> None:
    bare = [Arrival(float(n), 1000, 10) for n in range(2)]
    one, other = placed(bare, 1, Random(1))
    assert len(one.blocks) == 2
    assert not set(one.blocks) & set(other.blocks)


def test_work_is_what_the_table_says_of_a_prefill_and_a_share_of_the_decodes() -> None:
    prefill_ms = 0.0125 * 5000 + 1.75e-6 * 5000 * 5001 / 2
    token_ms = SPEC.table.ms(5) / 5 + 3.9e-5 * 5050
    assert work_s(5000, 100, SPEC) == pytest.approx((prefill_ms + 100 * token_ms) / 1000)


def test_time_is_scaled_so_that_the_load_holds() -> None:
    asked, speed = at_load(placed(arrivals(), 3, Random(1)), 0.6, 5, SPEC)
    assert offered_s(asked, SPEC) / (5 * max(one.at_s for one in asked)) == pytest.approx(0.6)
    assert speed > 0


@pytest.mark.parametrize("load", [0.0, -1.0, inf, float("nan")])
def test_a_load_that_cannot_be_is_refused(load: float) -> None:
    with pytest.raises(ConfigError, match="load"):
        at_load(placed(arrivals(), 3, Random(1)), load, 5, SPEC)


def test_requests_that_all_come_at_once_have_no_load() -> None:
    with pytest.raises(ConfigError, match="at once"):
        at_load([Asked(0.0, 100, 10, (), 0, 0)], 0.5, 5, SPEC)


def test_generated_requests_are_like_those_of_the_trace() -> None:
    like = arrivals(2000)
    made = generated(fit(like), 2000, Random(2))
    assert len(made) == 2000
    assert [one.at_s for one in made] == sorted(one.at_s for one in made)
    assert mean(one.tokens_out for one in made) == pytest.approx(
        mean(one.tokens_out for one in like), rel=0.1
    )
    assert all(one.blocks[0] == 0 for one in made)
    assert all(len(one.blocks) == -(-one.tokens_in // 512) for one in made)


def test_turns_of_a_generated_session_begin_as_those_before() -> None:
    made = generated(fit(arrivals(300)), 300, Random(2))
    of = sessions(made)
    assert len(set(of)) < 300


def test_a_diurnal_swing_is_from_none_to_all() -> None:
    with pytest.raises(ConfigError, match="diurnal"):
        placed(arrivals(), 3, Random(1), diurnal=1.5)
