"""What lets a stream go on elsewhere, and what does not."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from firstlight.edge_node.answer import Ask
from firstlight.edge_node.resume import Seals, check_committed
from firstlight.shared.errors import RequestError
from firstlight.shared.types import Sampling

OLD, NEW, FOREIGN = b"o" * 32, b"n" * 32, b"f" * 32
ASK = Ask(
    tenant="acme",
    model="m",
    prompts=((1, 2, 3), (4, 5)),
    sampling=Sampling(temperature=0.5),
    seed=7,
    max_tokens=20,
    context_max=16,
    n=2,
    stop=("end",),
    committed=((9,), (), (8, 8), ()),
)


def test_every_edge_with_the_key_believes_a_seal() -> None:
    Seals([NEW]).check(Seals([NEW]).seal(ASK), replace(ASK, committed=(), hints=False, budget_s=1))


def test_a_seal_of_the_key_before_is_believed_and_one_of_before_that_is_not() -> None:
    old = Seals([OLD]).seal(ASK)
    Seals([NEW, OLD]).check(old, ASK)
    assert Seals([NEW, OLD]).seal(ASK) != old
    with pytest.raises(RequestError, match="too old") as caught:
        Seals([NEW]).check(old, ASK)
    assert (caught.value.param, caught.value.code) == ("firstlight.resume.cap", "invalid_resume")


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": "other"}, {"model": "other"}, {"prompts": ((1, 2, 3), (4, 6))},
        {"prompts": ((1, 2), (3, 4, 5))}, {"sampling": Sampling(temperature=0.6)}, {"seed": 8},
        {"max_tokens": None}, {"n": 1}, {"stop": ()}, {"ignore_eos": True},
    ],
)  # fmt: skip
def test_a_seal_is_for_one_request(change: dict[str, object]) -> None:
    seal = Seals([NEW]).seal(ASK)
    with pytest.raises(RequestError):
        Seals([NEW]).check(seal, replace(ASK, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize("forge", [lambda seal: "", lambda seal: seal[:-1], lambda seal: "é" + seal,
                                   lambda seal: Seals([FOREIGN]).seal(ASK)])  # fmt: skip
def test_a_forged_seal_is_refused(forge: Callable[[str], str]) -> None:
    with pytest.raises(RequestError, match="does not belong"):
        Seals([NEW]).check(forge(Seals([NEW]).seal(ASK)), ASK)


@pytest.mark.parametrize(
    ("committed", "wrong"),
    [
        (((9,), (), ()), "3 choices, expected 4"),
        ((), "0 choices"),
        (((9,), (), (8, 100), ()), "token id 100 at 1"),
        (((9,) * 16_385, (), (), ()), "16385 ids, at most 16384"),
        (((9,) * 14, (), (), ()), "14 ids of choice 0, the context has room for 13"),
    ],
)
def test_ids_that_cannot_begin_an_answer_are_refused(
    committed: tuple[tuple[int, ...], ...], wrong: str
) -> None:
    check_committed(ASK, 100)
    with pytest.raises(RequestError, match=wrong):
        check_committed(replace(ASK, committed=committed), 100)
