"""How the next id is chosen from logits: the numpy reference that all samplers must equal.

Raw logits in float32 → bias → repetition penalty → presence and frequency → temperature → min-p →
top-k → top-p; then the id is the argmax of (tempered logit + G) over what is left. G is Gumbel
noise that depends only on (seed, position, choice, id). That makes the sample exact, and the text
independent of batches, hints, machines and moves: a drafted id is right iff it is the sampled one.
The order is versioned by `types.SAMPLING_ORDER_VERSION`.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
import numpy.typing as npt

from firstlight.shared.errors import RequestError
from firstlight.shared.types import Sampling, TokenLogprobs, check_ids

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Bits = npt.NDArray[np.uint32]

GREEDY_BELOW = 1e-5
"""A smaller temperature is 0: logits divided by it would lose what tells them apart."""
LOGIT_BIASES_MAX = 1024
TOP_LOGPROBS_MAX = 20

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_ROUNDS = 10
_PIECE = 4096


def philox(counter: Sequence[Words], key: Sequence[Words]) -> Words:
    """Philox-4x32-10 (Salmon et al., 2011): 32-bit words held in uint64, shape [4, …].

    Four counter words and two key words, each below 2³², as arrays that broadcast against each
    other. Worked off in pieces that stay in a core's cache.
    """
    shape = np.broadcast_shapes(*(word.shape for word in (*counter, *key)))
    out = np.empty((4, *shape), dtype=np.uint64)
    for place, word in enumerate(counter):
        out[place] = word
    flat = out.reshape(4, -1)
    keys = [np.broadcast_to(word, shape).reshape(-1) if word.size > 1 else word for word in key]
    for start in range(0, flat.shape[1], _PIECE):
        piece = slice(start, start + _PIECE)
        _rounds(flat[:, piece], *(w[piece] if w.size > 1 else w.reshape(-1)[0] for w in keys))
    return out


def _rounds(words: Words, k0: Words | np.uint64, k1: Words | np.uint64) -> None:
    a, b, c, d = words
    high, low = np.empty_like(a), np.empty_like(a)
    for _ in range(_ROUNDS):
        np.multiply(a, _MULTIPLIERS[0], out=high)
        np.multiply(c, _MULTIPLIERS[1], out=low)
        np.right_shift(low, _HALF, out=a)
        np.bitwise_xor(a, b, out=a)
        np.bitwise_xor(a, k0, out=a)
        np.right_shift(high, _HALF, out=c)
        np.bitwise_xor(c, d, out=c)
        np.bitwise_xor(c, k1, out=c)
        np.bitwise_and(low, _LOW, out=b)
        np.bitwise_and(high, _LOW, out=d)
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW


def noise_bits(ids: Ids, *, seed: int, position: int, choice: int) -> Bits:
    """32 random bits of ascending ids: word id & 3 of counter (id >> 2, position, choice, 0)."""
    last_id = int(ids[-1])
    first, last = int(ids[0]) >> 2, last_id >> 2
    one = np.ones(1, dtype=np.uint64)
    rest = (one * np.uint64(position), one * np.uint64(choice), one * np.uint64(0))
    key = (one * np.uint64(seed & 0xFFFFFFFF), one * np.uint64(seed >> 32))
    if last - first < len(ids):
        words = philox((np.arange(first, last + 1, dtype=np.uint64), *rest), key)
        spread: Bits = words.astype(np.uint32).T.reshape(-1)[int(ids[0]) - 4 * first :]
        if last_id - int(ids[0]) < len(ids):
            return spread[: len(ids)]
        near: Bits = spread[ids - ids[0]]
        return near
    apart: Bits = philox(((ids >> 2).astype(np.uint64), *rest), key).astype(np.uint32)
    own: Bits = apart[ids & 3, np.arange(len(ids))]
    return own


def gumbel(bits: Bits) -> Floats:
    """G = −log(−log1p(−u)), u = (bits + ½)/2³², rounded to float32.

    Evaluated in float64 and rounded once, so that it does not depend on whose logarithm it was.
    """
    u = (bits.astype(np.float64) + 0.5) * 2.0**-32
    return (-np.log(-np.log1p(-u))).astype(np.float32)


def noise(ids: Ids, *, seed: int, position: int, choice: int) -> Floats:
    """Gumbel noise of each id at an absolute position (first prompt id = 0) of a choice."""
    return gumbel(noise_bits(ids, seed=seed, position=position, choice=choice))


class _Counted:
    """Distinct ids in the order in which they first came, and how often each came, as arrays.

    One more id costs the same however many there are: the arrays double when they are full.
    """

    def __init__(self, ids: Collection[int]) -> None:
        found = Counter(ids)
        self._place = dict(zip(found, range(len(found)), strict=True))
        self._ids = np.fromiter(found.keys(), dtype=np.int64, count=len(found))
        self._counts = np.fromiter(found.values(), dtype=np.float32, count=len(found))

    def add(self, token: int) -> None:
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            more = max(16, place)
            self._ids = np.append(self._ids, np.zeros(more, dtype=np.int64))
            self._counts = np.append(self._counts, np.zeros(more, dtype=np.float32))
        self._ids[place] = token
        self._counts[place] += 1

    def with_more(self, drafted: Sequence[int]) -> tuple[Ids, Floats]:
        """As if `drafted` had been added; copies, which later ids do not change."""
        held, more = len(self._place), Counter(drafted)
        fresh = [token for token in more if token not in self._place]
        places = dict(zip(fresh, range(held, held + len(fresh)), strict=True))
        ids = np.empty(held + len(fresh), dtype=np.int64)
        counts = np.zeros(held + len(fresh), dtype=np.float32)
        ids[:held], ids[held:] = self._ids[:held], fresh
        counts[:held] = self._counts[:held]
        for token, times in more.items():
            counts[places[token] if token in places else self._place[token]] += times
        return ids, counts


class History:
    """Which ids a sequence holds, and how often each was generated: what penalties look at."""

    def __init__(self, prompt: Collection[int], generated: Sequence[int] = ()) -> None:
        self._generated = _Counted(generated)
        self._all = _Counted([*prompt, *generated])

    def append(self, token: int) -> None:
        """Count one more generated id."""
        self._generated.add(token)
        self._all.add(token)

    def counts(self, drafted: Sequence[int]) -> tuple[Ids, Floats]:
        """Distinct generated and drafted ids, and how often each occurs."""
        return self._generated.with_more(drafted)

    def seen(self, drafted: Sequence[int]) -> Ids:
        """Distinct ids of the prompt, the generated ids and the drafted ones, in no set order."""
        return self._all.with_more(drafted)[0]


@dataclass(frozen=True, slots=True)
class Draw:
    """One id to choose: everything but the logits."""

    sampling: Sampling
    seed: int
    choice: int
    position: int
    """Absolute, of the id to choose."""
    history: History
    drafted: tuple[int, ...] = ()
    """Ids between the committed ones and this position."""


def penalized(logits: Floats, draw: Draw) -> Floats:
    """A copy of raw logits [vocab] after bias and penalties.

    Repetition as in Hugging Face: a positive logit is divided by the penalty, a negative one
    multiplied, once per id in prompt or answer. Presence and frequency as in the OpenAI API:
    logit − frequency · count − presence, for ids of the answer.
    """
    sampling, out = draw.sampling, logits.astype(np.float32, copy=True)
    for token, bias in sampling.logit_bias:
        out[token] += np.float32(bias)
    if sampling.repetition_penalty != 1.0:
        ids, penalty = draw.history.seen(draw.drafted), np.float32(sampling.repetition_penalty)
        held = out[ids]
        out[ids] = np.where(held < 0, held * penalty, held / penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        ids, counts = draw.history.counts(draw.drafted)
        out[ids] -= np.float32(sampling.frequency_penalty) * counts
        out[ids] -= np.float32(sampling.presence_penalty)
    return out


def weights(tempered: Floats) -> npt.NDArray[np.float64]:
    """Probabilities up to a common factor: exp(logit − largest logit), in float64."""
    return np.exp(tempered.astype(np.float64) - np.float64(tempered.max()))


def kept(tempered: Floats, sampling: Sampling) -> Ids:
    """Ids that min-p, top-k and top-p leave, by (logit descending, id ascending)."""
    order = np.lexsort((np.arange(len(tempered)), -tempered)).astype(np.int64)
    weight = weights(tempered)
    if sampling.min_p > 0.0:
        order = order[weight[order] >= sampling.min_p]
    if sampling.top_k > 0:
        order = order[: sampling.top_k]
    if sampling.top_p < 1.0:
        order = order[: nucleus(weight[order], weight[np.sort(order)].sum(), sampling.top_p)]
    return order


def nucleus(descending: npt.NDArray[np.float64], total: np.float64, top_p: float) -> int:
    """Length of the shortest front of `descending` with sum ≥ top_p · total; all if none has."""
    reached = np.cumsum(descending) >= top_p * total
    return int(reached.argmax()) + 1 if reached.any() else len(descending)


def greedy(sampling: Sampling) -> bool:
    """Whether the argmax is taken without noise."""
    return sampling.temperature < GREEDY_BELOW


def sample(logits: Floats, draw: Draw) -> int:
    """The id at `draw.position`, from raw logits [vocab]; the lowest id wins a tie."""
    adjusted = penalized(logits, draw)
    if greedy(draw.sampling):
        return int(adjusted.argmax())
    tempered = adjusted / np.float32(draw.sampling.temperature)
    ids = np.sort(kept(tempered, draw.sampling))
    scores = tempered[ids] + noise(ids, seed=draw.seed, position=draw.position, choice=draw.choice)
    return int(ids[scores.argmax()])


def logprobs(logits: Floats, chosen: int, top: int) -> TokenLogprobs:
    """Log-softmax of raw logits [vocab]: of the chosen id and of the `top` best, best first."""
    wide = logits.astype(np.float64)
    peak = wide.max()
    wide -= peak + np.log(np.exp(wide - peak).sum())
    best: list[tuple[int, float]] = []
    if top > 0:
        edge = np.partition(logits, len(logits) - top)[len(logits) - top]
        ids = np.flatnonzero(logits >= edge)
        ids = ids[np.lexsort((ids, -logits[ids]))][:top]
        best = [(int(token), float(wide[token])) for token in ids]
    return TokenLogprobs(float(wide[chosen]), tuple(best))


_RANGES = (
    ("temperature", 0.0, 100.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.01, 100.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
)


def check_sampling(sampling: Sampling, vocab: int) -> None:
    """Raise `RequestError`, with `param`, for a value that this module has no meaning for."""
    for name, low, high in _RANGES:
        value = getattr(sampling, name)
        if not (isfinite(value) and low <= value <= high):
            raise RequestError(f"{name} is {value}, not within {low} to {high}", param=name)
    if not (isfinite(sampling.top_p) and 0.0 < sampling.top_p <= 1.0):
        raise RequestError(f"top_p is {sampling.top_p}, not above 0 and up to 1", param="top_p")
    if sampling.top_k < 0:
        raise RequestError(f"top_k is {sampling.top_k}, not 0 (all) or more", param="top_k")
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= min(TOP_LOGPROBS_MAX, vocab):
        raise RequestError(
            f"logprobs is {sampling.logprobs}, not within 0 to {TOP_LOGPROBS_MAX}",
            param="logprobs",
        )
    _check_bias(sampling.logit_bias, vocab)


def _check_bias(biases: tuple[tuple[int, float], ...], vocab: int) -> None:
    ids = [token for token, _ in biases]
    if len(ids) > LOGIT_BIASES_MAX:
        raise RequestError(
            f"logit_bias has {len(ids)} entries, more than {LOGIT_BIASES_MAX}", param="logit_bias"
        )
    if (wrong := check_ids(ids, vocab)) is not None:
        raise RequestError(
            f"logit_bias names id {ids[wrong]}, not within 0 to {vocab - 1}", param="logit_bias"
        )
    if len(set(ids)) < len(ids):
        raise RequestError("logit_bias names an id twice", param="logit_bias")
    for token, bias in biases:
        if not (isfinite(bias) and -100.0 <= bias <= 100.0):
            raise RequestError(
                f"logit_bias of id {token} is {bias}, not within -100 to 100", param="logit_bias"
            )
