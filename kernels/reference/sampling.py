"""How an id is chosen: what is right, one row after another.

Bias → repetition penalty → frequency and presence → temperature → min-p → top-k → top-p; then the
largest of logit + noise. The noise is Gumbel's, made of the bits that Philox-4x32-10 gives for
(id, position, choice) under the seed. Logits are in float32, noise and shares in float64.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firstlight.kernels.draws import DrawTable

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)


def noise_bits(ids: Tensor, keys: Tensor) -> Tensor:
    """int64 [ids] below 2³²: word id & 3 of Philox at the counter (id >> 2, position, choice, 0).

    `keys` int64 [4]: low and high half of the seed, position, choice.
    """
    low, high, position, choice = (np.uint64(int(key)) for key in keys)
    a = (ids.numpy() >> 2).astype(np.uint64)
    b, c, d = (np.full_like(a, word) for word in (position, choice, np.uint64(0)))
    for _ in range(_ROUNDS):
        left, right = a * np.uint64(_MULTIPLIERS[0]), c * np.uint64(_MULTIPLIERS[1])
        a, b, c, d = (
            (right >> np.uint64(32)) ^ b ^ low,
            right & _LOW,
            (left >> np.uint64(32)) ^ d ^ high,
            left & _LOW,
        )
        low, high = (low + np.uint64(_WEYL[0])) & _LOW, (high + np.uint64(_WEYL[1])) & _LOW
    words: NDArray[np.uint64] = np.stack((a, b, c, d))[ids.numpy() & 3, np.arange(len(ids))]
    return torch.from_numpy(words.astype(np.int64))


def noise(ids: Tensor, keys: Tensor) -> Tensor:
    """float32 [ids]: −log(−log(1 − u)), u = (bits + ½) / 2³², in float64 and rounded once."""
    rest = (2.0**32 - noise_bits(ids, keys).double() - 0.5) * 2.0**-32  # 1 − u, exactly
    return (-(-rest.log()).log()).float()


def adjust_logits(logits: Tensor, draws: DrawTable) -> None:
    """Adds biases and takes penalties off, in place: float32 [n, vocab]."""
    for row, (repetition, presence, frequency) in enumerate(draws.penalties):
        own = logits[row]
        biased, seen, counted = (
            slice(int(starts[row]), int(starts[row + 1])) for starts in draws.starts
        )
        own[draws.ids[biased].long()] += draws.values[biased]
        held = own[draws.ids[seen].long()]
        own[draws.ids[seen].long()] = torch.where(held < 0, held * repetition, held / repetition)
        ids = draws.ids[counted].long()
        own[ids] = own[ids] - frequency * draws.values[counted] - presence


def sample(logits: Tensor, draws: DrawTable) -> Tensor:
    """int64 [n]: the ids that adjusted logits float32 [n, vocab] give; −1: a row is not finite."""
    picked = [_one(row, draws, index) for index, row in enumerate(logits)]
    return torch.tensor(picked, dtype=torch.int64, device=logits.device)


def _one(logits: Tensor, draws: DrawTable, row: int) -> int:
    if not logits.isfinite().all():
        return -1
    temperature = draws.temperatures[row]
    if temperature == 0:
        return int(_first_largest(logits))
    tempered = logits / temperature
    ids = _kept(tempered, int(draws.top_k[row]), *draws.shares[row].tolist())
    return int(ids[_first_largest(tempered[ids] + noise(ids, draws.keys[row]))])


def _first_largest(values: Tensor) -> int:
    return int((values == values.max()).nonzero()[0])


def _kept(tempered: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """Ids that are left, ascending."""
    weight = (tempered.double() - tempered.max().double()).exp()
    order = torch.argsort(tempered, dim=-1, descending=True, stable=True)
    order = order[weight[order] >= min_p]
    if top_k:
        order = order[:top_k]
    if top_p < 1.0:
        sums = weight[order].cumsum(0)
        order = order[: int((sums < top_p * weight[order].sum()).sum()) + 1]
    return order.sort().values
