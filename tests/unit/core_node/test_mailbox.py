"""The mailbox: which hints are of use, and what they add up to."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstlight.core_node.mailbox import (
    HINT_IDS_MAX,
    HINTS_KEPT_MAX,
    SOURCES_MAX,
    Continuation,
    Fate,
    Mailbox,
)
from firstlight.shared.stream import TokenStream
from firstlight.shared.types import Hint, HintCount

VOCAB = 100
PROMPT = (1, 2, 3)
ANSWER = tuple(Random(7).choices(range(VOCAB), k=200))
"""What the target will say after the prompt."""
FULL = TokenStream(PROMPT, ANSWER)


def opened(committed: int = 0) -> Mailbox:
    mailbox = Mailbox(VOCAB)
    mailbox.open("r", PROMPT, ANSWER[:committed])
    return mailbox


def true_hint(offset: int, length: int, source: str = "edge") -> Hint:
    """A hint that says what the target will say from the `offset`-th id of the answer on."""
    start = len(PROMPT) + offset
    chain = FULL.chain_at(start)
    assert chain is not None
    return Hint("r", start, chain, ANSWER[offset : offset + length], source)


def wrong_hint(offset: int, ids: Sequence[int], source: str = "edge") -> Hint:
    """A hint of the right history whose ids are as given."""
    true = true_hint(offset, 1)
    return Hint("r", true.start, true.chain, tuple(ids), source)


def test_a_hint_at_the_next_position_is_the_candidate() -> None:
    mailbox = opened()
    assert mailbox.hint(true_hint(0, 4)) is Fate.KEPT
    assert mailbox.candidate("r") == Continuation(3, ANSWER[:4], ("edge",) * 4)


def test_without_hints_the_candidate_is_empty_and_starts_at_the_next_position() -> None:
    assert opened(5).candidate("r") == Continuation(8)


def test_what_was_committed_since_is_cut_off_the_candidate() -> None:
    mailbox = opened()
    mailbox.hint(true_hint(0, 6))
    assert mailbox.committed("r", ANSWER[:2]) == FULL.chain_at(5)
    assert mailbox.candidate("r").ids == ANSWER[2:6]


def test_a_late_hint_is_used_from_the_next_position_on() -> None:
    mailbox = opened(3)
    assert mailbox.hint(true_hint(1, 5)) is Fate.KEPT
    assert mailbox.candidate("r").ids == ANSWER[3:6]


def test_a_hint_that_says_nothing_new_is_late() -> None:
    assert opened(5).hint(true_hint(1, 4)) is Fate.LATE


def test_a_hint_of_another_history_is_wrong() -> None:
    hint = true_hint(2, 3)
    mailbox = opened(2)
    assert mailbox.hint(Hint("r", hint.start, bytes(8), hint.ids, "edge")) is Fate.WRONG
    assert mailbox.candidate("r").ids == ()


def test_a_hint_that_contradicts_what_was_committed_since_is_wrong() -> None:
    other = (ANSWER[1] + 1) % VOCAB
    assert opened(3).hint(wrong_hint(1, (other, *ANSWER[2:9]))) is Fate.WRONG


def test_a_kept_hint_that_a_commit_contradicts_is_dropped() -> None:
    mailbox = opened()
    mailbox.hint(wrong_hint(0, ((ANSWER[0] + 1) % VOCAB, *ANSWER[1:4])))
    mailbox.committed("r", ANSWER[:1])
    assert mailbox.candidate("r").ids == ()


def test_a_hint_that_starts_inside_the_prompt_is_wrong() -> None:
    assert opened().hint(Hint("r", 1, FULL.chain_at(3) or b"", ANSWER[:3], "edge")) is Fate.WRONG


def test_hints_that_arrive_out_of_order_are_joined_by_their_chain() -> None:
    mailbox = opened()
    for hint in (true_hint(6, 3), true_hint(3, 3, "core"), true_hint(0, 3)):
        assert mailbox.hint(hint) is Fate.KEPT
    found = mailbox.candidate("r")
    assert found.ids == ANSWER[:9]
    assert found.sources == ("edge",) * 3 + ("core",) * 3 + ("edge",) * 3


def test_a_hint_after_a_gap_waits_until_the_sequence_is_there() -> None:
    mailbox = opened()
    mailbox.hint(true_hint(4, 3))
    assert mailbox.candidate("r").ids == ()
    mailbox.committed("r", ANSWER[:4])
    assert mailbox.candidate("r").ids == ANSWER[4:7]


def test_a_hint_ahead_of_a_history_that_did_not_come_is_dropped() -> None:
    mailbox = opened()
    mailbox.hint(true_hint(2, 3))
    mailbox.committed("r", ((ANSWER[0] + 1) % VOCAB, ANSWER[1]))
    assert mailbox.candidate("r").ids == ()


def test_a_doubled_hint_changes_nothing_and_is_offered_once() -> None:
    mailbox = opened()
    mailbox.hint(true_hint(0, 4))
    assert mailbox.hint(true_hint(0, 4)) is Fate.DOUBLED
    assert mailbox.candidate("r").ids == ANSWER[:4]
    assert mailbox.close("r") == (("edge", HintCount(offered=4)),)


def test_a_doubled_hint_is_recognised_after_its_ids_were_committed() -> None:
    mailbox = opened()
    mailbox.hint(true_hint(0, 2))
    mailbox.committed("r", ANSWER[:5])
    assert mailbox.hint(true_hint(0, 2)) is Fate.DOUBLED


def test_the_oldest_hint_of_a_source_is_dropped_when_too_many_wait() -> None:
    mailbox = opened()
    mailbox.hint(true_hint(0, 1))
    for offset in range(50, 50 + 2 * HINTS_KEPT_MAX, 2):
        mailbox.hint(true_hint(offset, 1))
    assert mailbox.candidate("r").ids == ()


def test_ids_told_one_by_one_are_all_kept_however_far_ahead_they_run() -> None:
    mailbox = opened()
    for offset in range(5 * HINTS_KEPT_MAX):
        assert mailbox.hint(true_hint(offset, 1)) is Fate.KEPT
    assert mailbox.candidate("r").ids == ANSWER[: 5 * HINTS_KEPT_MAX]
    mailbox.committed("r", ANSWER[:3])
    mailbox.hint(true_hint(5 * HINTS_KEPT_MAX, 1))
    assert mailbox.candidate("r").ids == ANSWER[3 : 5 * HINTS_KEPT_MAX + 1]


def test_what_one_source_tells_one_by_one_is_bounded() -> None:
    mailbox = opened()
    for offset in range(40):
        for _ in range(3):
            mailbox.hint(true_hint(offset, 1))
    for offset in range(40, 190):
        mailbox.hint(true_hint(offset, 1))
    kept = mailbox._boxes["r"].kept["edge"]
    assert all(len(hint.ids) <= HINT_IDS_MAX for hint in kept)
    assert sum(len(hint.ids) for hint in kept) == 190
    assert len(kept) <= HINTS_KEPT_MAX


def test_a_chain_that_went_wrong_does_not_stay_in_the_way_of_the_one_after_it() -> None:
    mailbox, astray = opened(), TokenStream(PROMPT, (*ANSWER[:3], 99))
    mailbox.hint(Hint("r", len(PROMPT), FULL.chain_at(3) or b"", (*ANSWER[:3], 99), "edge"))
    for _ in range(2 * HINTS_KEPT_MAX):
        mailbox.hint(Hint("r", astray.position, astray.chain, (7,), "edge"))
        astray.append((7,))
    mailbox.committed("r", ANSWER[:4])
    assert mailbox.candidate("r").ids == ()
    for offset in range(4, 8):
        mailbox.hint(true_hint(offset, 1))
    assert mailbox.candidate("r").ids == ANSWER[4:8]


def test_a_hint_is_not_joined_to_one_that_stood_before_another_that_is_gone() -> None:
    mailbox = opened()
    mailbox.hint(true_hint(20, 1))
    mailbox.hint(true_hint(0, 4))
    mailbox.committed("r", ANSWER[:4])
    mailbox.hint(true_hint(4, 2))
    assert mailbox.candidate("r").ids == ANSWER[4:6]


def test_one_source_cannot_push_out_the_hints_of_another() -> None:
    mailbox = opened()
    mailbox.hint(true_hint(0, 2, "core"))
    for offset in range(50, 80):
        mailbox.hint(true_hint(offset, 1, "edge"))
    assert mailbox.candidate("r").sources == ("core", "core")


def test_an_over_long_hint_is_cut() -> None:
    mailbox = opened()
    mailbox.hint(true_hint(0, HINT_IDS_MAX + 20))
    assert mailbox.candidate("r").ids == ANSWER[:HINT_IDS_MAX]


def test_the_candidate_is_no_longer_than_asked_for() -> None:
    mailbox = opened()
    mailbox.hint(true_hint(0, 5))
    mailbox.hint(true_hint(5, 5))
    assert mailbox.candidate("r", 7).ids == ANSWER[:7]
    assert mailbox.candidate("r", 0).ids == ()


@pytest.mark.parametrize(
    "hint",
    [
        Hint("r", 3, FULL.chain_at(3) or b"", (VOCAB,)),
        Hint("r", 3, FULL.chain_at(3) or b"", (5, -1)),
        Hint("r", 3, FULL.chain_at(3) or b"", ()),
        Hint("r", 3, b"", (5,)),
        Hint("r", 3, bytes(9), (5,)),
        Hint("r", 3, FULL.chain_at(3) or b"", (5,), ""),
        Hint("r", 3, FULL.chain_at(3) or b"", (5,), "x" * 33),
    ],
    ids=["id=vocab", "id<0", "no ids", "no hash", "long hash", "no source", "long source"],
)
def test_a_malformed_hint_is_dropped(hint: Hint) -> None:
    mailbox = opened()
    assert mailbox.hint(hint) is Fate.MALFORMED
    assert mailbox.candidate("r").ids == ()


def test_a_request_takes_hints_of_a_bounded_number_of_sources() -> None:
    mailbox = opened()
    fates = [mailbox.hint(true_hint(0, 1, f"s{i}")) for i in range(SOURCES_MAX + 1)]
    assert fates == [Fate.KEPT] * SOURCES_MAX + [Fate.MALFORMED]


def test_a_hint_for_an_unknown_or_closed_request_is_dropped() -> None:
    mailbox = opened()
    mailbox.close("r")
    assert mailbox.hint(true_hint(0, 1)) is Fate.UNKNOWN
    assert len(mailbox) == 0


def test_closing_twice_is_harmless() -> None:
    mailbox = opened()
    mailbox.close("r")
    assert mailbox.close("r") == ()


def test_the_source_that_was_right_more_often_goes_first() -> None:
    mailbox = opened()
    mailbox.hint(wrong_hint(0, (9, 9), "liar"))
    mailbox.hint(true_hint(0, 1, "core"))
    assert mailbox.candidate("r").sources[0] == "liar"  # nothing known: the longest
    mailbox.verified("r", [("liar", HintCount(verified=1)), ("core", HintCount(0, 1, 1))])
    assert mailbox.candidate("r").sources == ("core",)


def test_counts_add_up_by_source() -> None:
    mailbox = opened()
    mailbox.hint(true_hint(0, 4))
    mailbox.hint(true_hint(4, 2, "core"))
    mailbox.verified("r", [("edge", HintCount(verified=4, accepted=3))])
    mailbox.verified("r", [("edge", HintCount(verified=1, accepted=1)), ("nobody", HintCount())])
    assert mailbox.close("r") == (("core", HintCount(2)), ("edge", HintCount(4, 5, 4)))


def test_a_resumed_request_continues_behind_its_committed_ids() -> None:
    mailbox = opened(10)
    assert mailbox.tip("r") == (13, FULL.chain_at(13))
    mailbox.hint(true_hint(8, 4))
    assert mailbox.candidate("r").ids == ANSWER[10:12]


hints = st.builds(
    lambda offset, length, source, spoil, at: _spoiled(
        true_hint(offset, length, source), spoil, at
    ),
    offset=st.integers(0, 40),
    length=st.integers(1, 10),
    source=st.sampled_from(["edge", "core", "other"]),
    spoil=st.sampled_from(["", "", "id", "hash", "start"]),
    at=st.integers(0, 9),
)


def _spoiled(hint: Hint, spoil: str, at: int) -> Hint:
    start, chain, ids = hint.start, hint.chain, list(hint.ids)
    if spoil == "id":
        ids[at % len(ids)] = (ids[at % len(ids)] + 1) % VOCAB
    elif spoil == "hash":
        chain = bytes(8)
    elif spoil == "start":
        start += at
    return Hint("r", start, chain, tuple(ids), hint.source)


@settings(max_examples=300, deadline=None)
@given(steps=st.lists(hints | st.integers(1, 5), max_size=60))
def test_any_hints_in_any_order_never_contradict_what_is_committed(
    steps: list[Hint | int],
) -> None:
    mailbox, done, offered = opened(), 0, {h for h in steps if isinstance(h, Hint)}
    for step in steps:
        if isinstance(step, Hint):
            mailbox.hint(step)
        else:
            mailbox.committed("r", ANSWER[done : done + step])
            done += step
        found = mailbox.candidate("r")
        assert found.start == len(PROMPT) + done
        assert len(found.ids) == len(found.sources)
        # Each id was claimed by that source, at that position, under a history that is the
        # committed one followed by the candidate's own ids.
        claimed = TokenStream(PROMPT, ANSWER[:done] + found.ids)
        for i, (token, source) in enumerate(zip(found.ids, found.sources, strict=True)):
            position = found.start + i
            assert any(
                hint.source == source and _claims(hint, position, token, claimed)
                for hint in offered
            )


def _claims(hint: Hint, position: int, token: int, history: TokenStream) -> bool:
    ahead = position - hint.start
    return (
        0 <= ahead < len(hint.ids)
        and hint.ids[ahead] == token
        and history.chain_at(hint.start) == hint.chain
        and hint.ids[:ahead] == history.ids_from(hint.start)[:ahead]
    )


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_true_hints_in_any_order_give_the_whole_continuation(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=HINTS_KEPT_MAX))
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    pieces = [true_hint(start, length) for start, length in zip(starts, lengths, strict=True)]
    noise = data.draw(st.lists(st.integers(1, 5), max_size=3))
    order = data.draw(st.permutations([*pieces, *pieces[:3]]))
    mailbox = opened()
    for hint in order:
        mailbox.hint(hint)
    for i, bad in enumerate(noise):
        mailbox.hint(Hint("r", len(PROMPT) + i, bytes([bad] * 8), (1, 2), "liar"))
    done = data.draw(st.integers(0, sum(lengths)))
    mailbox.committed("r", ANSWER[:done])
    assert mailbox.candidate("r").ids == ANSWER[done : sum(lengths)]
