"""Prompts whose tokens are shared exactly where a trace says so.

Each prompt is a way down a tree: a hash id is a block of 512 tokens, and requests with the same ids
at the beginning have the same text there. Two ways part at the first token: it is a word that no
other child of that node begins with (beyond as many children as the vocabulary has words, about
31,500 for SmolLM2, the second word tells them apart). What no hash id stands for is the request's
own, and new from its first token.

Words are one token each with the blank before them, whatever stands around them; that is checked
when the words are chosen, and what servers count says whether it holds for them.
"""

import re
from collections.abc import Hashable, Sequence
from functools import lru_cache
from random import Random

from firstlight.infra.bench.engine.prompts import common_words
from firstlight.infra.bench.load.schedule import BLOCK_TOKENS, Arrival
from firstlight.shared.errors import ConfigError
from firstlight.shared.text.tokenizer import Tokenizer

BLOCKS_KEPT_MAX = 4096
"""Blocks whose words are remembered; others are made again."""
_WORD = re.compile(rb" [A-Za-z]{2,}")
_ROOT = 0


def words_of(tokenizer: Tokenizer) -> list[str]:
    """All words of the vocabulary that stay one token each beside any other of them.

    Raises:
        ConfigError: there are too few to begin blocks with.

    """
    there = (tokenizer.token_bytes(id_) for id_ in range(tokenizer.vocab))
    words = sorted({raw.decode() for raw in there if _WORD.fullmatch(raw)})
    if len(tokenizer.encode("".join(words), special=False)) != len(words):
        words = [word for word in words if len(tokenizer.encode(word, special=False)) == 1]
        if len(tokenizer.encode("".join(words), special=False)) != len(words):
            raise ConfigError("this vocabulary joins tokens over words, so that no length is exact")
    if len(words) < 64:
        raise ConfigError("this vocabulary has too few words to begin blocks with")
    return words


class Vocabulary:
    """What prompts are made of; read once, for any number of schedules."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.firsts: list[str] = words_of(tokenizer)
        self.others: list[str] = [f" {word}" for word in common_words(tokenizer)]


class TracePrompts:
    """The prompts of one schedule. Other labels, other words throughout; the same sharing."""

    def __init__(
        self, vocabulary: Vocabulary, arrivals: Sequence[Arrival], seed: int, *labels: object
    ) -> None:
        self._arrivals, self._seed = arrivals, f"{seed}/{labels}"
        self._firsts = list(vocabulary.firsts)
        Random(self._seed).shuffle(self._firsts)
        self._others = vocabulary.others
        self._nodes: dict[tuple[int, Hashable], tuple[int, int]] = {}
        """(parent node, key) → (node, its number among the parent's children)."""
        self._children: dict[int, int] = {}
        self.shareable_tokens = 0
        """Of all prompts, those that an earlier one of this schedule begins with too, at most."""
        self._ways = [self._way(index, arrival) for index, arrival in enumerate(arrivals)]
        self._block = lru_cache(maxsize=BLOCKS_KEPT_MAX)(self._make)

    def text(self, index: int) -> str:
        """The prompt of the `index`-th arrival: exactly its tokens."""
        tokens, words = self._arrivals[index].tokens_in, list[str]()
        for key, number in self._ways[index]:
            if isinstance(key, int):
                words.extend(self._block(key, number))
            else:  # its own, of any length: not worth keeping
                words.extend(self._words(key, number, tokens - len(words)))
        return "".join(words[:tokens])

    def _way(self, index: int, arrival: Arrival) -> list[tuple[Hashable, int]]:
        """Its blocks, each with its number among its siblings, then its own tail if it has one."""
        node, way = _ROOT, list[tuple[Hashable, int]]()
        keys: list[Hashable] = list(arrival.blocks)
        if len(keys) * BLOCK_TOKENS < arrival.tokens_in:
            keys.append(("own", index))
        for place, key in enumerate(keys):
            if (node, key) in self._nodes:
                left = arrival.tokens_in - place * BLOCK_TOKENS
                self.shareable_tokens += min(BLOCK_TOKENS, left)
            node, number = self._step(node, key)
            way.append((key, number))
        return way

    def _step(self, node: int, key: Hashable) -> tuple[int, int]:
        found = self._nodes.get((node, key))
        if found is None:
            number = self._children.get(node, 0)
            self._children[node] = number + 1
            found = self._nodes[node, key] = (len(self._nodes) + 1, number)
        return found

    def _make(self, key: Hashable, number: int) -> tuple[str, ...]:
        return tuple(self._words(key, number, BLOCK_TOKENS))

    def _words(self, key: Hashable, number: int, count: int) -> list[str]:
        more, first = divmod(number, len(self._firsts))
        words = [self._firsts[first]] + ([self._firsts[more]] if more else [])
        random = Random(f"{self._seed}/{key}")
        return (words + random.choices(self._others, k=max(0, count - len(words))))[:count]
