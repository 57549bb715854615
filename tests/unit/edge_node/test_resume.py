"""What lets a stream go on elsewhere, and what does not."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from firstlight.edge_node.answer import Ask
from firstlight.edge_node.journal_page import Written, class_hash
from firstlight.edge_node.resume import Seals, check_committed, check_offsets, from_journal
from firstlight.shared.errors import NotFoundError, RequestError
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


@pytest.mark.parametrize(
    ("streams", "offsets", "wrong"),
    [
        (4, (1, 2, 3), "4 streams and 3 offsets, expected 4"),
        (3, (1, 2, 3, 4), "3 streams and 4 offsets"),
        (4, (14, 0, 0, 0), "14 ids of choice 0, the context has room for 13"),
        (4, (0, 0, 0, 15), "15 ids of choice 3, the context has room for 14"),
    ],
)
def test_offsets_that_no_client_can_have_are_refused(
    streams: int, offsets: tuple[int, ...], wrong: str
) -> None:
    check_offsets(ASK, 4, (13, 13, 14, 14))
    with pytest.raises(RequestError, match=wrong):
        check_offsets(ASK, streams, offsets)


def pages(*ids: tuple[int, ...], of: str = "class") -> list[Written]:
    return [Written(one, class_hash(of)) for one in ids]


def test_what_was_journaled_is_known_and_the_offsets_are_what_the_client_has() -> None:
    ask = from_journal(ASK, pages((1, 2, 3), (4,)), (1, 3), "class")
    assert (ask.committed, ask.has) == (((1, 2, 3), (4,)), (1, 3))
    assert ask.numerics_class == "class"


@pytest.mark.parametrize("named", ["other", None])
def test_what_is_missing_is_computed_again_in_the_same_class_alone(named: str | None) -> None:
    with pytest.raises(NotFoundError, match="has 1 of 3 ids of choice 1") as caught:
        from_journal(ASK, pages((1, 2, 3), (4,)), (1, 3), named)
    assert caught.value.code == "resume_unknown"


def test_of_another_class_a_journal_that_lacks_nothing_goes_on_as_of_none() -> None:
    assert from_journal(ASK, pages((1, 2, 3), (4,)), (3, 1), "other").numerics_class == ""


def test_pages_are_made_with_the_current_key_and_the_one_before() -> None:
    (rotated,), (old,) = (Seals(keys).pages(ASK, ["s"]) for keys in ([NEW, OLD], [OLD]))
    assert rotated[1] == old[0]
    assert rotated[0] != old[0]


def test_a_page_is_for_one_request_however_it_is_told() -> None:
    (mine,) = Seals([NEW]).pages(ASK, ["s"])
    assert Seals([NEW]).pages(replace(ASK, committed=(), hints=False), ["s"]) == [mine]
    assert Seals([NEW]).pages(replace(ASK, tenant="other"), ["s"]) != [mine]
