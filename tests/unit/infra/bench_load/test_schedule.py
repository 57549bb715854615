"""When requests come, and what is cut off them."""

from itertools import pairwise
from random import Random
from statistics import mean

import pytest

from firstlight.infra.bench.load.run import cold_ones
from firstlight.infra.bench.load.schedule import (
    ARRIVALS_MAX,
    Arrival,
    Cut,
    fitted,
    poisson,
    replayed,
    steady,
)
from firstlight.shared.errors import ConfigError


def times(arrivals: tuple[Arrival, ...]) -> list[float]:
    return [arrival.at_s for arrival in arrivals]


def test_a_steady_rate_is_evenly_spaced_from_the_first_moment_on() -> None:
    arrivals = steady(4.0, 1.0, (10, 3))
    assert times(arrivals) == [0.0, 0.25, 0.5, 0.75]
    assert {(a.tokens_in, a.tokens_out) for a in arrivals} == {(10, 3)}


def test_poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() -> None:
    at = times(poisson(50.0, 400.0, (1, 1), Random(3)))
    gaps = [after - before for before, after in pairwise(at)]
    assert mean(gaps) == pytest.approx(0.02, rel=0.03)
    # The share of gaps above the mean is 1/e.
    assert sum(gap > 0.02 for gap in gaps) / len(gaps) == pytest.approx(0.3679, abs=0.01)
    assert at[-1] < 400.0


def test_the_same_seed_gives_the_same_arrivals_and_another_one_others() -> None:
    one, again, other = (poisson(5.0, 10.0, (1, 1), Random(seed)) for seed in (1, 1, 2))
    assert one == again != other


def test_a_trace_begins_at_once_and_goes_as_fast_as_asked() -> None:
    rows = [Arrival(10.0, 1, 1), Arrival(14.0, 2, 1), Arrival(12.0, 3, 1), Arrival(30.0, 4, 1)]
    replay = replayed(rows, 2.0, limit=None, duration_s=5.0)
    assert times(replay) == [0.0, 1.0, 2.0]
    assert [arrival.tokens_in for arrival in replay] == [1, 3, 2]


def test_a_limit_stops_reading() -> None:
    def rows() -> object:
        yield Arrival(0.0, 1, 1)
        yield Arrival(1.0, 1, 1)
        raise AssertionError("read too far")

    assert len(replayed(rows(), 1.0, limit=2, duration_s=None)) == 2  # type: ignore[arg-type]


def test_an_empty_trace_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no request"):
        replayed([], 1.0, None, None)


def test_more_requests_than_can_be_kept_are_refused() -> None:
    with pytest.raises(ConfigError, match=str(ARRIVALS_MAX)):
        poisson(ARRIVALS_MAX + 1.0, 1.0, (1, 1), Random(1))


def test_prompts_and_answers_are_cut_to_what_was_asked_with_their_blocks() -> None:
    (cut,) = fitted([Arrival(0.0, 2000, 90, (7, 8, 9, 10))], Cut(1024, 20))
    assert (cut.tokens_in, cut.tokens_out, cut.blocks) == (1024, 20, (7, 8))


def test_prompt_and_answer_fit_into_the_context_together() -> None:
    arrivals = [Arrival(0.0, 9000, 500), Arrival(0.0, 100, 50), Arrival(0.0, 10, 9000)]
    cut = fitted(arrivals, Cut(context_tokens=8192))
    assert [(a.tokens_in, a.tokens_out) for a in cut] == [(7692, 500), (100, 50), (1, 8191)]


def test_half_of_both_kinds_of_connections_are_cold() -> None:
    cold = cold_ones("both", 1000, Random(1))
    assert 450 < sum(cold) < 550
    assert cold_ones("both", 1000, Random(1)) == cold
    assert cold_ones("warm", 2, Random(1)) == [False, False]
    assert cold_ones("cold", 2, Random(1)) == [True, True]
