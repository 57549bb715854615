"""Round trips, and messages on their way."""

from random import Random

import pytest

from firstlight.infra.sim.matrix import GORGO, MATRICES, Matrix, Path, azure, written
from firstlight.shared.errors import ConfigError


def path(jitter_ms: float = 0.0, loss: float = 0.0) -> Path:
    return Path(100.0, Matrix("m", ("a",), ((100.0,),), jitter_ms, loss), Random(1))


def test_a_message_takes_half_a_round_trip() -> None:
    assert path().arrival_s(1.0) == pytest.approx(1.05)


def test_jitter_has_the_mean_that_was_asked_for() -> None:
    way = path(jitter_ms=10.0)
    late = [way.arrival_s(float(n)) - n - 0.05 for n in range(4000)]
    assert sum(late) / len(late) == pytest.approx(0.010, rel=0.1)


def test_messages_do_not_overtake_each_other() -> None:
    way = path(jitter_ms=50.0, loss=0.1)
    times = [way.arrival_s(n / 1000) for n in range(500)]
    assert times == sorted(times)


def test_a_lost_message_is_sent_again() -> None:
    way = path(loss=0.2)
    late = [way.arrival_s(float(n)) - n for n in range(1000)]
    again = [took for took in late if took > 0.06]
    assert 150 < len(again) < 250
    assert min(again) == pytest.approx(0.05 + 0.125)


def test_matrices_are_the_same_there_and_back() -> None:
    for matrix in MATRICES.values():
        size = range(len(matrix.regions))
        assert all(matrix.rtt_ms[i][j] == matrix.rtt_ms[j][i] for i in size for j in size)


def test_the_published_round_trips_are_those_from_ashburn() -> None:
    assert GORGO.rtt_ms[0] == (37.0, 279.0, 456.0)


def test_azures_round_trips_are_the_laboratorys() -> None:
    assert azure(("east-us", "japan-east")).rtt_ms[0][1] == 165.0


def test_a_place_that_azure_has_not_is_named() -> None:
    with pytest.raises(ConfigError, match="'moon' is none of gorgo, azure, and none of"):
        azure(("east-us", "moon"))


def test_a_matrix_can_be_written() -> None:
    assert written("2,80;80,3").rtt_ms == ((2.0, 80.0), (80.0, 3.0))


@pytest.mark.parametrize("text", ["2,80;80", "2,x;3,4", "1e9"])
def test_what_is_written_must_be_a_matrix(text: str) -> None:
    with pytest.raises(ConfigError):
        written(text)


def test_rows_that_are_too_few_are_told_as_they_were_written() -> None:
    with pytest.raises(ConfigError, match="round trips '2,80;80' of 2 regions"):
        written("2,80;80")


@pytest.mark.parametrize(
    "rtt_ms", [(), ((1.0, 2.0),), ((1.0, 2.0), (2.0,)), ((1.0, float("nan")), (1.0, 1.0))]
)
def test_what_is_no_matrix_is_refused(rtt_ms: tuple[tuple[float, ...], ...]) -> None:
    with pytest.raises(ConfigError, match="round trips"):
        Matrix("m", ("a", "b"), rtt_ms)


@pytest.mark.parametrize(("jitter_ms", "loss"), [(-1.0, 0.0), (0.0, 1.0), (float("nan"), 0.0)])
def test_jitter_and_loss_have_limits(jitter_ms: float, loss: float) -> None:
    with pytest.raises(ConfigError, match="jitter"):
        Matrix("m", ("a",), ((1.0,),), jitter_ms, loss)
