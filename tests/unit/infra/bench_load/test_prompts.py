"""Prompts share exactly the tokens that a trace says they share."""

from collections.abc import Sequence

import pytest

from firstlight.infra.bench.load.prompts import TracePrompts, Vocabulary, words_of
from firstlight.infra.bench.load.schedule import Arrival
from firstlight.shared.errors import ConfigError
from firstlight.shared.text.tokenizer import Tokenizer


def ids_of(
    tokenizer: Tokenizer, vocabulary: Vocabulary, arrivals: Sequence[Arrival], *labels: object
) -> list[list[int]]:
    prompts = TracePrompts(vocabulary, arrivals, 1, *labels)
    texts = [prompts.text(index) for index in range(len(arrivals))]
    return [tokenizer.encode(text, special=False) for text in texts]


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def test_every_prompt_has_exactly_its_tokens(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    lengths = [1, 2, 511, 512, 513, 1500]
    blocks = [Arrival(0.0, tokens, 1, tuple(range(-(-tokens // 512)))) for tokens in lengths]
    own = [Arrival(0.0, tokens, 1) for tokens in lengths]
    assert [len(ids) for ids in ids_of(tokenizer, vocabulary, [*blocks, *own])] == lengths * 2


def test_prompts_part_at_the_first_token_of_the_first_block_that_differs(
    tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    arrivals = [
        Arrival(0.0, 1500, 1, (0, 1, 2)),
        Arrival(0.0, 1400, 1, (0, 1, 3)),
        Arrival(0.0, 1400, 1, (0, 4, 2)),
        Arrival(0.0, 1300, 1, (5, 1, 2)),
        Arrival(0.0, 1200, 1, (0, 1)),  # its tail is its own
        Arrival(0.0, 700, 1, (0, 1)),  # the last block is not whole
    ]
    first, *others = ids_of(tokenizer, vocabulary, arrivals)
    assert [shared(first, other) for other in others] == [1024, 512, 0, 1024, 700]


def test_what_a_cache_could_know_is_what_an_earlier_prompt_begins_with(
    vocabulary: Vocabulary,
) -> None:
    ways = [(700, (0, 1)), (700, (0, 2)), (600, (0, 2)), (600, (3, 2)), (30, ()), (30, ())]
    arrivals = [Arrival(0.0, tokens, 1, blocks) for tokens, blocks in ways]
    assert TracePrompts(vocabulary, arrivals, 1).shareable_tokens == 512 + 600


def test_no_two_of_many_followers_begin_alike(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    arrivals = [Arrival(0.0, 514, 1, (0, n)) for n in range(1, 8001)]
    prompts = TracePrompts(vocabulary, arrivals, 1)
    begun = {prompts.text(index).split()[512] for index in range(len(arrivals))}
    assert len(begun) == 8000


def test_prompts_without_blocks_share_nothing(tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
    first, *others = ids_of(tokenizer, vocabulary, [Arrival(0.0, 40, 1)] * 20)
    assert {shared(first, other) for other in others} == {0}


def test_beyond_the_words_of_the_vocabulary_the_second_word_tells_followers_apart(
    vocabulary: Vocabulary,
) -> None:
    few = Vocabulary.__new__(Vocabulary)
    few.firsts, few.others = vocabulary.firsts[:64], vocabulary.others
    arrivals = [Arrival(0.0, 2, 1)] * 300
    prompts = TracePrompts(few, arrivals, 1)
    late = [prompts.text(index) for index in range(64, 300)]
    assert len(set(late)) == len(late)


def test_another_label_shares_as_much_with_other_words(
    tokenizer: Tokenizer, vocabulary: Vocabulary
) -> None:
    arrivals = [Arrival(0.0, 700, 1, (0, 1)), Arrival(0.0, 700, 1, (0, 2))]
    one, again, other = (ids_of(tokenizer, vocabulary, arrivals, label) for label in (0, 0, 1))
    assert one == again
    assert shared(one[0], one[1]) == shared(other[0], other[1]) == 512
    assert shared(one[0], other[0]) <= 1


def test_a_vocabulary_without_words_is_refused() -> None:
    class Bytes:
        vocab = 256

        def token_bytes(self, id_: int) -> bytes:
            return bytes([id_])

        def encode(self, text: str, *, special: bool) -> list[int]:
            return list(text.encode())

    with pytest.raises(ConfigError, match="too few words"):
        words_of(Bytes())  # type: ignore[arg-type]
