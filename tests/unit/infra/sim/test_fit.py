"""Requests made from a few numbers are like those of the traces that the numbers were fitted to."""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from random import Random

import pytest

from firstlight.infra.bench.load.schedule import Arrival
from firstlight.infra.sim.fit import AZURE, MOONCAKE, Mixture, Part, turns
from firstlight.infra.sim.workload import generated

WITHIN = 0.15
SEEDS = (1, 2)


@cache
def like_mooncake(seed: int) -> tuple[Arrival, ...]:
    return generated(MOONCAKE, 12_031, Random(seed))


@cache
def like_azure(seed: int) -> tuple[Arrival, ...]:
    return generated(AZURE, 19_366, Random(seed))


def quantile(values: Sequence[int], share: float) -> int:
    return sorted(values)[int(share * len(values))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("share", "measured"), [(0.5, 6909), (0.9, 27_367), (0.99, 85_401)])
def test_prompts_are_as_long_as_those_of_mooncake(seed: int, share: float, measured: int) -> None:
    prompts = [one.tokens_in for one in like_mooncake(seed)]
    assert quantile(prompts, share) == pytest.approx(measured, rel=WITHIN)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("share", "measured"), [(0.5, 350), (0.9, 597)])
def test_answers_are_as_long_as_those_of_mooncake(seed: int, share: float, measured: int) -> None:
    answers = [one.tokens_out for one in like_mooncake(seed)]
    assert quantile(answers, share) == pytest.approx(measured, rel=WITHIN)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_infinite_cache_hits_as_much_as_on_mooncake(seed: int) -> None:
    known, hits, blocks = set[int](), 0, 0
    for one in like_mooncake(seed):
        new = next((at for at, block in enumerate(one.blocks) if block not in known), None)
        hits += len(one.blocks) if new is None else new
        blocks += len(one.blocks)
        known.update(one.blocks)
    assert hits / blocks == pytest.approx(0.366, rel=WITHIN)


def test_all_requests_like_mooncakes_begin_with_one_system_prompt() -> None:
    assert {one.blocks[0] for one in like_mooncake(1)} == {0}


@pytest.mark.parametrize("seed", SEEDS)
def test_they_come_as_fast_as_those_of_the_traces(seed: int) -> None:
    assert like_mooncake(seed)[-1].at_s == pytest.approx(3537, rel=WITHIN)
    assert like_azure(seed)[-1].at_s == pytest.approx(3504, rel=WITHIN)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("share", "measured"), [(0.5, 1020), (0.9, 2735), (0.99, 4142)])
def test_prompts_are_as_long_as_those_of_azure(seed: int, share: float, measured: int) -> None:
    prompts = [one.tokens_in for one in like_azure(seed)]
    assert quantile(prompts, share) == pytest.approx(measured, rel=WITHIN)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("share", "measured"), [(0.5, 129), (0.9, 424)])
def test_answers_are_as_long_as_those_of_azure(seed: int, share: float, measured: int) -> None:
    answers = [one.tokens_out for one in like_azure(seed)]
    assert quantile(answers, share) == pytest.approx(measured, rel=WITHIN)


def test_requests_like_azures_have_nothing_in_common() -> None:
    blocks = [block for one in like_azure(1) for block in one.blocks]
    assert len(blocks) == len(set(blocks)) > 0


def test_half_of_a_part_is_below_its_median() -> None:
    assert Part(1.0, 350.0, 0.7).below(350.0) == 0.5


def test_samples_of_a_mixture_rise_between_its_ends() -> None:
    found = Mixture((Part(1.0, 10.0, 2.0), Part(3.0, 100.0, 0.1)), 5.0, 200.0).samples(500)
    assert all(before <= after for before, after in pairwise(found))
    assert (found[0], found[-1]) == pytest.approx((5.0, 200.0), rel=0.01)


def test_a_part_has_its_share_of_the_samples() -> None:
    found = Mixture((Part(1.0, 10.0, 0.1), Part(3.0, 1000.0, 0.1)), 1.0, 1e4).samples(1000)
    assert sum(value < 100.0 for value in found) == 250


def test_a_mixture_without_room_between_its_ends_is_an_error() -> None:
    with pytest.raises(ValueError, match="least 5 and most 5"):
        Mixture((Part(1.0, 10.0, 0.1),), 5.0, 5.0)


def test_so_many_sessions_end_after_each_turn() -> None:
    found = turns(0.5)
    assert [found.count(turn) for turn in (1, 2, 3)] == [512, 256, 128]
