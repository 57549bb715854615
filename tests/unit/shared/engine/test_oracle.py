"""A drafter that foretells a timed core: as often as it is told, and no core changes its answer."""

import pytest
from doubles import Answers, config, request

from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.oracle import Oracle, OracleConfig
from firstlight.shared.engine.steptable import StepTable
from firstlight.shared.engine.timed import TimedRunner
from firstlight.shared.errors import ConfigError
from firstlight.shared.types import Request, Sampling

VOCAB = 1000
HOT = Sampling(temperature=0.8)


def answer(one: Request) -> tuple[int, ...]:
    limits = config(blocks=64, context_max=1024, speculation="off")
    runner = TimedRunner(StepTable.linear(8.0, 0.5), blocks=64, host_blocks=0, vocab=VOCAB)
    engine = Engine(runner, limits)
    engine.add(one, epoch=1, credit=10_000, now=0.0)
    return tuple(Answers().drain(engine).ids[one.id])


def oracle(one: Request, acceptance: float, name: str = "o") -> Oracle:
    return Oracle(acceptance, one, range(VOCAB), name=name)


def verdicts(made: Oracle, truth: tuple[int, ...], start: int) -> list[bool]:
    """Whether it is right about each id of an answer, given all before it."""
    right = []
    for place, token in enumerate(truth):
        right.append(made.next() == token)
        made.rewind(start + place)
        made.append((token,))
    return right


@pytest.mark.parametrize("sampling", [HOT, Sampling(temperature=0.0)])
def test_one_that_never_errs_says_the_whole_answer(sampling):
    one = request(sampling=sampling, seed=7, max_tokens=60)
    sure = oracle(one, 1.0)
    assert tuple(sure.next() for _ in range(60)) == answer(one)


def test_it_is_right_as_often_as_it_is_told():
    one = request(sampling=HOT, seed=7, max_tokens=900)
    right = verdicts(oracle(one, 0.7), answer(one), len(one.prompt))
    assert 0.65 < sum(right) / len(right) < 0.75


def test_one_that_always_errs_says_no_id_of_the_answer():
    one = request(sampling=HOT, max_tokens=100)
    assert not any(verdicts(oracle(one, 0.0), answer(one), len(one.prompt)))


def test_after_a_wrong_id_it_goes_on_from_its_own_text_until_it_is_taken_back():
    one = request(sampling=HOT, seed=3, max_tokens=40)
    truth = answer(one)
    made = oracle(one, 0.7)
    drafted = tuple(made.next() for _ in range(40))
    wrong = next(place for place in range(40) if drafted[place] != truth[place])
    assert all(one != other for one, other in zip(drafted[wrong:], truth[wrong:], strict=True))
    made.rewind(len(one.prompt) + wrong)
    made.append((truth[wrong],))
    assert made.position == len(one.prompt) + wrong + 1
    later = verdicts(made, truth[wrong + 1 :], made.position)
    assert any(later)


def test_what_it_says_of_a_prefix_is_always_the_same():
    one = request(sampling=HOT, seed=3)
    first, again = oracle(one, 0.5), oracle(one, 0.5)
    said = [first.next() for _ in range(50)]
    assert [again.next() for _ in range(50)] == said
    again.rewind(len(one.prompt) + 20)
    assert [again.next() for _ in range(30)] == said[20:]


def test_two_of_different_names_err_at_different_places():
    one = request(sampling=HOT, max_tokens=200)
    truth = answer(one)
    here = verdicts(oracle(one, 0.5, "edge"), truth, len(one.prompt))
    there = verdicts(oracle(one, 0.5, "core"), truth, len(one.prompt))
    assert 50 < sum(one != other for one, other in zip(here, there, strict=True)) < 150


@pytest.mark.parametrize("wrong", [{"acceptance": 1.5}, {"token_ms": 0.0}, {"acceptance": -0.1}])
def test_a_drafter_that_cannot_be_is_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        OracleConfig(**wrong)
