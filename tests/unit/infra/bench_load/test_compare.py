"""Ratios and their intervals."""

from random import Random

import pytest
from load_records import answered, missed

from firstlight.infra.bench.load import compare
from firstlight.infra.bench.load.compare import Block, Ratio, ratios
from firstlight.infra.bench.load.figures import Sla
from firstlight.infra.bench.load.records import Record

NONE = Sla()


def a_block(seed: int, factor: float = 1.0, count: int = 160) -> Block:
    random = Random(seed)
    firsts = [factor * random.uniform(0.05, 0.15) for _ in range(count)]
    return Block([answered(n, first_s=first) for n, first in enumerate(firsts)], 10.0)


def named(found: list[Ratio], name: str) -> Ratio:
    return next(one for one in found if one.name == name)


def test_a_server_that_is_twice_as_slow_has_a_ratio_of_two_and_an_interval_about_it() -> None:
    pairs = [(a_block(1, 2.0), a_block(2)), (a_block(3, 2.0), a_block(4))]
    found = named(ratios(pairs, NONE, 1), "ttft_p50_ms")
    assert found.ratio == pytest.approx(2.0, rel=0.1)
    assert found.low < found.ratio < found.high
    assert found.low > 1.5
    assert found.high < 2.5
    assert found.ratio == pytest.approx(found.a / found.b, abs=1e-3)


def test_intervals_of_two_alike_hold_one_about_as_often_as_they_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compare, "DRAWS", 200)
    monkeypatch.setattr(compare, "_MEASURES", {"p50": compare._MEASURES["ttft_p50_ms"]})
    held = 0
    for seed in range(40):
        (one,) = ratios([(a_block(2 * seed), a_block(2 * seed + 1))], NONE, seed)
        held += one.low <= 1 <= one.high
    assert 34 <= held < 40  # 95 % are 38; an interval that always held would tell nothing


def test_the_same_seed_draws_the_same_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "DRAWS", 100)
    pairs = [(a_block(1), a_block(2))]
    assert ratios(pairs, NONE, 7) == ratios(pairs, NONE, 7)
    assert ratios(pairs, NONE, 7) != ratios(pairs, NONE, 8)


def test_misses_count_in_the_share_and_not_in_the_times() -> None:
    half = [missed("cut", n) if n % 2 else answered(n) for n in range(64)]
    whole = [answered(n) for n in range(64)]
    found = ratios([(Block(half, 10.0), Block(whole, 10.0))], NONE, 1)
    assert named(found, "goodput_share").ratio == 0.5
    assert named(found, "ttft_p50_ms").ratio == 1.0
    assert named(found, "tokens_out_per_s").ratio == 0.5


def test_a_side_that_answered_nothing_has_no_ratio_of_times() -> None:
    nothing: list[Record] = [missed("timeout", n) for n in range(10)]
    found = ratios([(Block([answered()] * 10, 1.0), Block(nothing, 1.0))], NONE, 1)
    assert "ttft_p50_ms" not in {one.name for one in found}
    assert ratios([], NONE, 1) == []
