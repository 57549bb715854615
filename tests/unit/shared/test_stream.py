"""The token stream: positions, chain hashes, epochs, and what a follower refuses."""

import json
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstlight.shared.errors import PeerError
from firstlight.shared.stream import TokenStream, chain_next, chain_of, ending
from firstlight.shared.types import Commit, FinishReason

VECTORS = Path(__file__).parents[2] / "vectors" / "chains.json"


def commit_of(author: TokenStream, position: int, count: int, *, epoch: int = 0) -> Commit:
    ids = author.ids_from(position)[:count]
    chain = author.chain_at(position + len(ids))
    assert chain is not None
    return Commit("r", epoch, position, ids, chain)


def test_vectors_in_the_repository_are_what_we_compute():
    for one in json.loads(VECTORS.read_text())["chains"]:
        raw = b"".join(token.to_bytes(4, "little") for token in one["prompt"])
        chain = blake2b(raw, digest_size=8).digest()
        expected = [chain.hex()]
        for token in one["ids"]:
            chain = blake2b(chain + token.to_bytes(4, "little"), digest_size=8).digest()
            expected.append(chain.hex())
        assert expected == one["chains"]
        stream = TokenStream(one["prompt"])
        assert stream.chain == chain_of(one["prompt"])
        stream.append(one["ids"])
        start = len(one["prompt"])
        assert [
            stream.chain_at(start + n).hex()
            for n in range(len(expected))  # type: ignore[union-attr]
        ] == expected


def test_positions_count_from_the_first_prompt_id():
    stream = TokenStream((5, 6, 7), (8,))
    assert stream.position == 4
    assert stream.ids_from(3) == (8,)
    assert stream.ids_from(0) == (8,)


def test_chain_at_is_unknown_inside_the_prompt_and_ahead():
    stream = TokenStream((5, 6), (7,))
    assert stream.chain_at(1) is None
    assert stream.chain_at(4) is None
    assert stream.chain_at(3) == chain_next(chain_of((5, 6)), 7)


def test_a_gap_is_refused_and_changes_nothing():
    author, follower = TokenStream((1,), (2, 3, 4)), TokenStream((1,))
    with pytest.raises(PeerError, match="position 2, but 1 is next"):
        follower.receive(commit_of(author, 2, 2))
    assert follower.ids == []


def test_a_repeated_commit_is_harmless_and_an_overlap_trimmed():
    author, follower = TokenStream((1,), (2, 3, 4)), TokenStream((1,))
    assert follower.receive(commit_of(author, 1, 2)) == (2, 3)
    assert follower.receive(commit_of(author, 1, 2)) == ()
    assert follower.receive(commit_of(author, 2, 2)) == (4,)


def test_a_contradiction_is_refused():
    follower = TokenStream((1,), (2,))
    with pytest.raises(PeerError, match="contradicts"):
        follower.receive(commit_of(TokenStream((1,), (9, 3)), 1, 2))


def test_a_wrong_chain_is_refused():
    follower = TokenStream((1,))
    with pytest.raises(PeerError, match="chain hash"):
        follower.receive(Commit("r", 0, 1, (2,), b"12345678"))
    assert follower.ids == []


def test_an_older_epoch_is_dropped_and_a_future_one_refused():
    author, follower = TokenStream((1,), (2,)), TokenStream((1,))
    follower.assign()
    assert follower.receive(commit_of(author, 1, 1, epoch=0)) == ()
    with pytest.raises(PeerError, match="epoch 2"):
        follower.receive(commit_of(author, 1, 1, epoch=2))


@given(
    st.lists(st.integers(0, 50), max_size=30),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=40),
)
def test_a_follower_never_holds_anything_but_a_front_of_the_author(ids, pieces):
    author, follower = TokenStream((7, 8), ids), TokenStream((7, 8))
    for offset, count in pieces:
        position = 2 + min(offset, len(ids))
        if position > follower.position:
            with pytest.raises(PeerError):
                follower.receive(commit_of(author, position, count))
        else:
            follower.receive(commit_of(author, position, count))
        assert follower.ids == ids[: len(follower.ids)]
        assert follower.chain == author.chain_at(follower.position)


@pytest.mark.parametrize(
    ("token", "generated", "stopped", "expected"),
    [
        (2, 1, False, FinishReason.STOP),
        (2, 5, False, FinishReason.STOP),
        (3, 5, False, FinishReason.LENGTH),
        (3, 5, True, FinishReason.STOP),
        (3, 4, False, None),
    ],
)
def test_the_first_id_that_completes_an_ending_ends(token, generated, stopped, expected):
    found = ending(
        token, generated=generated, max_tokens=5, eos_ids=frozenset({2}), stopped=stopped
    )
    assert found == expected
