"""One answer on its way: text, ending, credit, and what a lost core means."""

from random import Random

import doubles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstlight.edge_node.choice import CREDIT_STEP_TOKENS, Assignment, Choice
from firstlight.shared.errors import PeerError, RequestError
from firstlight.shared.retry import RetryBudget, Why
from firstlight.shared.stream import CREDIT_TOKENS, TokenStream
from firstlight.shared.types import (
    Commit,
    Done,
    Failed,
    FinishReason,
    HintCount,
    TokenLogprobs,
)

EOS = 127
EU = Assignment("core-eu", "eu", "class-a", network_ms=4.0)
US = Assignment("core-us", "us", "class-a", network_ms=80.0)
OTHER = Assignment("core-x", "us", "class-b", network_ms=80.0)


def letters(token: int) -> bytes:
    """Ids 97 to 122 are letters; the end token has no text."""
    return b"" if token == EOS else bytes([token])


def choice(*, stop: tuple[str, ...] = (), max_tokens: int = 8) -> Choice:
    request = doubles.request(max_tokens=max_tokens, eos_ids=frozenset({EOS}))
    made = Choice(request, index=0, stop=stop, token_bytes=letters, received_s=10.0)
    made.assign(EU)
    return made


def commit(
    made: Choice,
    text: bytes,
    *,
    position: int | None = None,
    epoch: int = 1,
    logprobs: bool = False,
) -> Commit:
    """What a core would say next."""
    author = TokenStream(made.request.prompt, made.stream.ids)
    at = author.position if position is None else position
    known = author.position - at
    chain = author.append(text[known:])
    entries = tuple(TokenLogprobs(-float(i)) for i in range(len(text))) if logprobs else ()
    return Commit(made.request.id, epoch, at, tuple(text), chain, entries)


def test_ids_become_text_in_order() -> None:
    made = choice()
    first = made.commit(commit(made, b"ab"), 10.5)
    second = made.commit(commit(made, b"c"), 10.6)
    assert first is not None
    assert second is not None
    assert (first.text, first.ids, first.offset) == ("ab", (97, 98), 2)
    assert (second.text, second.offset, second.finish) == ("c", 3, None)


def test_a_repeat_changes_nothing() -> None:
    made = choice()
    made.commit(commit(made, b"ab"), 10.5)
    again = commit(made, b"ab", position=made.request.prompt.__len__())
    assert made.commit(again, 10.6) is None
    assert made.stats.completion_tokens == 2


def test_an_older_epoch_is_dropped() -> None:
    made = choice()
    stale = commit(made, b"zz")
    made.assign(US)
    assert made.commit(stale, 10.5) is None
    assert made.stream.ids == []


def test_a_gap_is_an_error_and_changes_nothing() -> None:
    made = choice()
    ahead = Commit(made.request.id, 1, made.stream.position + 1, (97,), bytes(8))
    with pytest.raises(PeerError, match="is next"):
        made.commit(ahead, 10.5)
    assert made.stream.ids == []


def test_ids_after_the_end_token_are_dropped() -> None:
    made = choice()
    event = made.commit(commit(made, bytes([97, EOS, 98])), 10.5)
    assert event is not None
    assert (event.text, event.ids, event.finish) == ("a", (97, EOS), FinishReason.STOP)
    assert made.stats.completion_tokens == 2
    assert not made.core_goes_on


def test_the_last_allowed_id_ends_with_length() -> None:
    made = choice(max_tokens=2)
    event = made.commit(commit(made, b"abc"), 10.5)
    assert event is not None
    assert (event.text, event.finish) == ("ab", FinishReason.LENGTH)


def test_a_stop_string_cuts_text_ids_and_logprobs_and_only_we_know() -> None:
    made = choice(stop=("bc",))
    held = made.commit(commit(made, b"ab", logprobs=True), 10.5)
    ended = made.commit(commit(made, b"cd", logprobs=True), 10.6)
    assert held is not None
    assert ended is not None
    assert (held.text, [token.id for token in held.tokens]) == ("a", [97])
    assert (ended.text, ended.ids, ended.tokens) == ("", (99,), ())
    assert ended.finish is FinishReason.STOP
    assert made.core_goes_on


def test_logprobs_leave_out_the_end_token() -> None:
    made = choice()
    event = made.commit(commit(made, bytes([97, EOS]), logprobs=True), 10.5)
    assert event is not None
    assert [token.id for token in event.tokens] == [97]


def test_the_same_commits_give_the_same_text_however_grouped() -> None:
    whole, parts = choice(stop=("de",)), choice(stop=("de",))
    event = whole.commit(commit(whole, b"abcdef"), 10.5)
    pieces = [parts.commit(commit(parts, bytes([byte])), 10.5) for byte in b"abcdef"]
    assert event is not None
    assert event.text == "".join(piece.text for piece in pieces if piece is not None) == "abc"


def test_time_to_first_token_is_split_and_the_rest_is_the_edges() -> None:
    made = choice()
    first = commit(made, b"a")
    first = Commit(first.request, 1, first.position, first.ids, first.chain, (), 16, 2.0, 30.0)
    made.commit(first, 10.050)
    parts = made.stats.ttft_ms
    assert (parts.network, parts.queue, parts.prefill) == (4.0, 2.0, 30.0)
    assert parts.total == pytest.approx(50.0)
    assert parts.first_packet == pytest.approx(14.0)
    assert made.stats.cached_tokens == 16


def test_credit_follows_what_the_client_took_in_steps() -> None:
    made = choice(max_tokens=10_000)
    start = len(made.request.prompt)
    assert made.credit == start + CREDIT_TOKENS
    event = made.commit(commit(made, b"a" * (CREDIT_STEP_TOKENS - 1)), 10.5)
    assert event is not None
    assert made.take(event) is None
    event = made.commit(commit(made, b"a"), 10.6)
    assert event is not None
    assert made.take(event) == start + CREDIT_STEP_TOKENS + CREDIT_TOKENS


def test_another_class_after_a_move_is_said() -> None:
    made = choice()
    made.commit(commit(made, b"a"), 10.5)
    made.lost(10.55, Random(1), died=True)
    made.assign(OTHER)
    made.commit(commit(made, b"b", epoch=2), 10.6)
    assert (made.stats.moved, made.stats.continuation) == (1, "semantic")
    assert made.numerics_class == "class-b"


def test_a_core_of_another_class_that_committed_nothing_leaves_the_answer_exact() -> None:
    made = choice()
    made.commit(commit(made, b"a"), 10.5)
    made.lost(10.52, Random(1), died=True)
    made.assign(OTHER)
    made.lost(10.54, Random(1), died=True)
    made.assign(US)
    made.commit(commit(made, b"b", epoch=3), 10.6)
    assert (made.stats.moved, made.stats.continuation) == (2, "exact")


def test_an_answer_that_begins_at_its_second_core_has_no_class_before() -> None:
    made = choice()
    made.assign(OTHER)
    assert made.numerics_class is None
    made.commit(commit(made, b"a", epoch=2), 10.5)
    assert made.stats.continuation == "exact"


def test_statistics_of_two_cores_add_up() -> None:
    made = choice()
    made.done(Done(made.request.id, 1, (("edge-ngram", HintCount(8, 6, 4)),)))
    made.assign(US)
    made.done(Done(made.request.id, 2, (("edge-ngram", HintCount(2, 2, 1)),)))
    assert made.stats.hints == {"edge-ngram": HintCount(10, 8, 5)}


def test_a_core_that_dies_after_a_token_is_no_strike() -> None:
    made, rng = choice(), Random(1)
    for number in range(3):
        made.commit(commit(made, b"a", epoch=number + 1), 10.5)
        assert made.lost(11.0 + number, rng, died=True).go_on
        made.assign(US if number % 2 else EU)


def test_two_cores_that_die_before_a_token_end_it_as_poison() -> None:
    made, rng = choice(), Random(1)
    assert made.lost(11.0, rng, died=True).go_on
    made.assign(US)
    decision = made.lost(11.1, rng, died=True)
    assert (decision.go_on, decision.why) == (False, Why.POISON)
    assert made.tried == {"core-eu", "core-us"}


def test_a_core_that_hands_over_before_a_token_is_no_strike() -> None:
    made, rng = choice(), Random(1)
    for _ in range(3):
        assert made.lost(11.0, rng, died=False).go_on
        made.assign(US)
    assert made.stats.moved == 3


def test_a_refusal_that_goes_elsewhere_is_no_move() -> None:
    made = choice()
    failed = Failed(made.request.id, 1, "capacity", "full", retry_elsewhere=True)
    assert made.refused(failed, RetryBudget(10.0), 10.0, Random(1)).go_on
    made.assign(US)
    assert (made.stats.core, made.stats.moved) == ("core-us", 0)


def test_a_refusal_for_good_is_final() -> None:
    made = choice()
    failed = Failed(made.request.id, 1, "request", "no", retry_elsewhere=False)
    decision = made.refused(failed, RetryBudget(10.0), 10.0, Random(1))
    assert (decision.go_on, decision.why) == (False, Why.FINAL)


@pytest.mark.parametrize("where", ["ids", "alternatives"])
def test_an_id_without_text_is_the_cores_fault_and_changes_nothing(where: str) -> None:
    request = doubles.request(max_tokens=8, eos_ids=frozenset({EOS}))

    def known(token: int) -> bytes:
        if token > EOS:
            raise RequestError(f"token id {token} is not in the vocabulary")
        return letters(token)

    made = Choice(request, index=0, stop=(), token_bytes=known, received_s=10.0)
    made.assign(EU)
    author = TokenStream(request.prompt)
    ids = (97, 200) if where == "ids" else (97,)
    tops = (TokenLogprobs(-1.0, ((200, -1.0),)),) * len(ids) if where == "alternatives" else ()
    bad = Commit(request.id, 1, author.position, ids, author.append(ids), tops)
    with pytest.raises(PeerError, match="200 is not in the vocabulary"):
        made.commit(bad, 10.5)
    assert made.stream.ids == []


PIECES = (b"", b"a", b"ab", b"b", "é".encode()[:1], "é".encode()[1:], b"\xff")


def told(made: Choice, ids: list[int]) -> tuple[list[tuple[str, int]], FinishReason | None]:
    """(text, offset) of each event for one id after the other, and how the choice ended."""
    made.assign(EU)
    events: list[tuple[str, int]] = []
    for token in ids:
        if made.finish is None:
            event = made.commit(commit(made, bytes([token]), epoch=made.stream.epoch), 10.5)
            assert event is not None
            events.append((event.text, event.offset))
    return events, made.finish


def pieces_choice(
    most: int, stop: tuple[str, ...], committed: tuple[int, ...] = (), has: int | None = None
) -> Choice:
    request = doubles.request(max_tokens=most, eos_ids=frozenset({len(PIECES)}))
    return Choice(
        request,
        index=0,
        stop=stop,
        token_bytes=lambda token: (*PIECES, b"")[token],
        received_s=10.0,
        committed=committed,
        has=has,
        numerics_class="class-a",
    )


ANY_PIECES = st.lists(st.integers(0, len(PIECES)), min_size=1, max_size=14)
ANY_STOPS = st.lists(st.text("abé", min_size=1, max_size=3), max_size=2).map(tuple)


@given(ANY_PIECES, ANY_STOPS, st.integers(1, 14), st.data())
def test_a_choice_resumed_at_any_event_tells_the_rest_of_the_text(
    ids: list[int], stop: tuple[str, ...], most: int, data: st.DataObject
) -> None:
    whole, finish = told(pieces_choice(most, stop), ids)
    lost_after = data.draw(st.integers(0, len(whole)))
    offset = whole[lost_after - 1][1] if lost_after else 0
    resumed = pieces_choice(most, stop, tuple(ids[:offset]))
    rest, again = told(resumed, ids[offset:])
    before, after = "".join(t for t, _ in whole[:lost_after]), "".join(t for t, _ in rest)
    assert before + after == "".join(text for text, _ in whole)
    if finish is not None:
        assert again == finish
        assert resumed.stats.completion_tokens <= len(ids)


@given(ANY_PIECES, ANY_STOPS, st.integers(1, 14), st.data())
def test_a_choice_of_which_more_or_less_is_known_than_the_client_has_tells_the_rest(
    ids: list[int], stop: tuple[str, ...], most: int, data: st.DataObject
) -> None:
    first = pieces_choice(most, stop)
    whole, finish = told(first, ids)
    lost_after = data.draw(st.integers(0, len(whole)))
    has = whole[lost_after - 1][1] if lost_after else 0
    known = data.draw(st.integers(0, first.stats.completion_tokens))
    resumed = pieces_choice(most, stop, tuple(ids[:known]), has)
    rest, again = told(resumed, ids[known:])
    before = "".join(text for text, _ in whole[:lost_after])
    after = resumed.backlog.text + "".join(text for text, _ in rest)
    assert before + after == "".join(text for text, _ in whole)
    assert again == finish


@given(ANY_PIECES, ANY_STOPS, st.integers(1, 14), st.data())
def test_a_choice_told_again_from_any_event_tells_the_rest_and_goes_on(
    ids: list[int], stop: tuple[str, ...], most: int, data: st.DataObject
) -> None:
    whole, finish = told(pieces_choice(most, stop), ids)
    made, known = pieces_choice(most, stop), data.draw(st.integers(0, len(ids)))
    so_far, _ = told(made, ids[:known])
    lost_after = data.draw(st.integers(0, len(so_far)))
    has = so_far[lost_after - 1][1] if lost_after else 0
    event = made.tell_from(has)
    rest, again = told(made, ids[known:])
    had = "".join(text for text, _ in so_far[:lost_after])
    assert had + event.text + "".join(text for text, _ in rest) == "".join(t for t, _ in whole)
    assert again == finish
    told_ids = event.ids + tuple(ids[known : made.stats.completion_tokens])
    assert told_ids == tuple(ids[has : made.stats.completion_tokens])


def test_ids_that_the_client_has_are_committed_and_not_told() -> None:
    made = pieces_choice(8, (), committed=(1,), has=3)
    assert made.behind
    made.assign(EU)
    silent = made.commit(commit(made, b"\1\1"), 10.5)
    assert silent is not None
    assert (silent.text, silent.ids, silent.offset) == ("", (), 3)
    assert not made.behind
    told_of = made.commit(commit(made, b"\2"), 10.6)
    assert told_of is not None
    assert (told_of.text, told_of.ids, told_of.offset) == ("ab", (2,), 4)


def test_only_the_first_commit_says_what_the_start_cost() -> None:
    made = choice()
    made.commit(commit(made, b"a"), 10.5)
    before = made.stats.ttft_ms
    made.commit(commit(made, b"b"), 12.0)
    assert made.stats.ttft_ms == before
    assert before.total == pytest.approx(500.0)


def test_cores_that_fell_silent_before_a_token_are_no_strike() -> None:
    made, rng = choice(), Random(1)
    for number in range(3):
        assert made.lost(11.0 + number, rng, died=False).go_on
        made.assign(US if number % 2 else EU)
    decision = made.lost(15.0, rng, died=True)
    assert decision.go_on, "that is the first"


def test_a_strike_is_of_one_life_of_a_core() -> None:
    made, rng = choice(), Random(1)
    assert made.lost(11.0, rng, died=True).go_on
    made.assign(US)
    assert made.lost(12.0, rng, died=True, living={("core-eu", EU.incarnation)}).go_on
    made.assign(EU)
    assert made.lost(13.0, rng, died=True, living={("core-us", 99)}).why is Why.POISON
