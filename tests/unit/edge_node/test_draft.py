"""The edge's drafters: hints that belong to the stream as it is, and a chain that goes on alone."""

from collections.abc import Sequence

import doubles

from firstlight.edge_node.draft import HINT_IDS_MAX, LEAD_MAX, FreeDraft, NgramDraft
from firstlight.shared.stream import TokenStream, chain_of
from firstlight.shared.types import Hint, Request

PROMPT = (1, 2, 3)
TOKEN_MS, RTT_MS = 10.0, 100.0
LEAD = 10 + HINT_IDS_MAX


class Counting:
    """Says 100, 101, 102 … of positions, as a text that can be taken back."""

    def __init__(self) -> None:
        self.ids = list(PROMPT)

    def rewind(self, position: int) -> None:
        assert len(PROMPT) <= position <= len(self.ids)
        del self.ids[position:]

    def append(self, ids: Sequence[int]) -> None:
        self.ids += ids

    def next(self) -> int:
        self.ids.append(100 + len(self.ids) - len(PROMPT))
        return self.ids[-1]


class Bench:
    """A free draft, the stream that it follows and the time."""

    def __init__(self, request: Request | None = None, committed: tuple[int, ...] = ()) -> None:
        self.request = request or doubles.request(prompt=PROMPT, max_tokens=1000)
        self.stream = TokenStream(PROMPT, committed)
        self.drafter, self.now = Counting(), 50.0
        self.draft = FreeDraft(
            self.request, self.stream, self.drafter, token_ms=TOKEN_MS, source="edge-model"
        )
        self.follow()

    def follow(self) -> None:
        self.draft.follow(self.stream, self.now, RTT_MS)

    def commit(self, *ids: int) -> None:
        self.stream.append(ids)
        self.follow()

    def wait(self, tokens: float) -> Hint | None:
        self.now += tokens * TOKEN_MS / 1000 + 1e-9
        return self.draft.hint(self.now)

    def chain_before(self, hint: Hint) -> bytes:
        return TokenStream(PROMPT, self.drafter.ids[len(PROMPT) : hint.start]).chain


def test_a_repetition_is_offered_where_the_stream_stands() -> None:
    request = doubles.request(prompt=(1, 2, 3, 4, 5, 9, 9))
    stream = TokenStream(request.prompt)
    draft = NgramDraft(request, stream)
    stream.append((1, 2))
    draft.follow(stream, now=7.0, rtt_ms=10.0)
    assert draft.due_s == 7.0
    hint = draft.hint(now=7.0)
    assert hint is not None
    assert (hint.start, hint.chain) == (stream.position, stream.chain)
    assert hint.ids[:3] == (3, 4, 5)
    assert len(hint.ids) <= HINT_IDS_MAX
    assert draft.due_s is None, "nothing more before the next commit"


def test_without_a_repetition_there_is_no_hint() -> None:
    request = doubles.request(prompt=(1, 2, 3))
    draft = NgramDraft(request, TokenStream(request.prompt))
    draft.follow(TokenStream(request.prompt), now=0.0, rtt_ms=0.0)
    assert draft.hint(now=0.0) is None


def test_a_chain_offers_each_id_when_it_is_there_and_only_once() -> None:
    bench = Bench()
    assert bench.wait(0.5) is None
    assert bench.wait(0.5) == Hint("r", 3, chain_of(PROMPT), (100,), "edge-model")
    assert bench.wait(0.5) is None
    second = bench.wait(1.5)
    assert second == Hint("r", 4, TokenStream(PROMPT, (100,)).chain, (101, 102), "edge-model")


def test_a_commit_that_agrees_leaves_the_chain_alone() -> None:
    bench = Bench()
    bench.wait(4)
    due_s = bench.draft.due_s
    bench.commit(100, 101)
    assert bench.draft.due_s == due_s
    hint = bench.wait(1)
    assert hint is not None
    assert (hint.start, hint.ids, hint.chain) == (7, (104,), bench.chain_before(hint))


def test_a_commit_that_disagrees_starts_it_again_and_drops_the_id_in_the_making() -> None:
    bench = Bench()
    bench.wait(4.5)
    bench.commit(100, 7)
    assert bench.wait(0.9) is None
    hint = bench.wait(0.1)
    assert hint is not None
    assert (hint.start, hint.ids) == (5, (102,))
    assert hint.chain == bench.stream.chain == bench.chain_before(hint)


def test_a_commit_that_is_ahead_of_the_chain_is_gone_on_from() -> None:
    bench = Bench()
    bench.wait(1.5)
    bench.commit(100, 101, 102, 103)
    hint = bench.wait(1)
    assert hint is not None
    assert (hint.start, hint.ids, hint.chain) == (7, (104,), bench.stream.chain)


def test_the_chain_stands_when_no_core_could_use_more_and_goes_on_with_the_next_commit() -> None:
    bench = Bench()
    hint = bench.wait(1000)
    assert hint is not None
    assert len(hint.ids) == LEAD
    assert bench.draft.due_s is None
    bench.commit(100, 101)
    more = bench.wait(1000)
    assert more is not None
    assert (more.start, len(more.ids), more.chain) == (3 + LEAD, 2, bench.chain_before(more))


def test_however_far_a_core_is_the_lead_is_bounded() -> None:
    bench = Bench()
    bench.draft.follow(bench.stream, bench.now, rtt_ms=1e6)
    hint = bench.wait(1000)
    assert hint is not None
    assert len(hint.ids) == LEAD_MAX


def test_nothing_is_drafted_for_the_last_id_of_an_answer_nor_behind_one_that_ends_it() -> None:
    short = Bench(doubles.request(prompt=PROMPT, max_tokens=4)).wait(1000)
    assert short is not None
    assert short.ids == (100, 101, 102)
    ended = Bench(doubles.request(prompt=PROMPT, max_tokens=99, eos_ids=frozenset({101})))
    hint = ended.wait(1000)
    assert hint is not None
    assert hint.ids == (100, 101)
    ended.commit(100, 7)
    again = ended.wait(1)
    assert again is not None
    assert again.ids == (102,), "it had not ended after all"


def test_another_core_is_told_from_where_the_stream_stands() -> None:
    bench = Bench()
    bench.wait(5)
    bench.commit(100)
    bench.draft.reopened()
    bench.follow()
    hint = bench.wait(3)
    assert hint is not None
    assert (hint.start, hint.ids, hint.chain) == (4, (101, 102, 103), bench.stream.chain)


def test_what_was_committed_before_it_began_is_not_drafted_again() -> None:
    bench = Bench(committed=(100, 55))
    hint = bench.wait(2)
    assert hint is not None
    assert (hint.start, hint.ids, hint.chain) == (5, (102, 103), bench.stream.chain)
