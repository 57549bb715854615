"""What is asked of the rows of a step that are sampled, from draws to tensors and back to ids.

Which drafted ids are right is found out on the device: a row counts if every row before it, of its
sequence, chose the id that was drafted. Of rows that do not count the host is told only whether
they failed. All that goes back is one run of 32-bit numbers: an id a row, and behind them the
logarithms of those who asked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firstlight.kernels import ops
from firstlight.kernels.draws import DrawTable
from firstlight.shared.engine.device.memory import LOGGED_ROWS_MAX
from firstlight.shared.engine.device.packed import Field, Staging, size_of
from firstlight.shared.engine.plan import StepPlan
from firstlight.shared.engine.sampler import Sampled
from firstlight.shared.sampling import Draw, Floats, Ids, greedy
from firstlight.shared.types import TokenLogprobs

FAILED = -1
UNREACHED = -2
_NO_DRAFT = -1
_NO_IDS, _NO_VALUES = np.empty(0, np.int32), np.empty(0, np.float32)
Arrays: TypeAlias = dict[str, NDArray[Any]]
_DTYPES = {
    "rows": torch.int64,
    "drafts": torch.int64,
    "firsts": torch.int64,
    "logged": torch.int64,
    "keys": torch.int64,
    "shares": torch.float64,
    "temperatures": torch.float32,
    "top_k": torch.int32,
    "penalties": torch.float32,
    "starts": torch.int32,
    "ids": torch.int32,
    "values": torch.float32,
}


@dataclass(frozen=True)
class Asked:
    """The rows of one step that are sampled."""

    draws: Sequence[Draw]
    arrays: Arrays
    """By the names of `_DTYPES`: which rows of the step, the id drafted behind each, the first of
    its sequence, those whose logprobs are wanted; the rest as in a `DrawTable`."""
    filtered: bool
    adjusted: bool
    top: int
    """The most logprobs that a row asks for, beside that of its id."""

    @property
    def logged(self) -> int:
        """Rows that ask for logprobs."""
        return len(self.arrays["logged"])


def ask(plan: StepPlan, vocab: int) -> Asked | None:
    """What a plan asks for; None if no row of it is sampled."""
    rows: list[int] = []
    drafts: list[int] = []
    firsts: list[int] = []
    draws: list[Draw] = []
    end = 0
    for one in plan.sequences:
        end += len(one.ids)
        count = len(one.draws)
        if count:
            firsts += [len(rows)] * count
            rows += range(end - count, end)
            drafts += [*one.ids[len(one.ids) - count + 1 :], _NO_DRAFT]
            draws += one.draws
    if not draws:
        return None
    wanted = [draw.sampling.logprobs for draw in draws]
    logged = [place for place, top in enumerate(wanted) if top is not None]
    arrays, filtered, adjusted = _table(draws, vocab)
    for name, values in (
        ("rows", rows),
        ("drafts", drafts),
        ("firsts", firsts),
        ("logged", logged),
    ):
        arrays[name] = np.array(values, np.int64)
    top = max((top for top in wanted if top is not None), default=0)
    return Asked(draws, arrays, filtered, adjusted, top)


def send(asked: Asked, staging: Staging) -> dict[str, Tensor]:
    """The arrays on the device, after one copy."""
    fields = _fields(asked)
    here, there = staging.views(fields)
    for name, array in asked.arrays.items():
        here[name].numpy()[...] = array
    staging.send(size_of(fields))
    return there


def size_bytes(asked: Asked) -> int:
    """What its arrays take."""
    return size_of(_fields(asked))


def choose(asked: Asked, there: dict[str, Tensor], logits: Tensor, form: str) -> Tensor:
    """int32 [m + …] on the device: an id a row, FAILED or UNREACHED; then, for each row that asks,
    the logarithm of its id, the best ids, and theirs. Adjusts the logits in place."""
    table = DrawTable(
        keys=there["keys"],
        temperatures=there["temperatures"],
        top_k=there["top_k"],
        shares=there["shares"],
        penalties=there["penalties"],
        starts=there["starts"],
        ids=there["ids"],
        values=there["values"],
        rows=logits.shape[0],
        vocab=logits.shape[1],
        filtered=asked.filtered,
        adjusted=asked.adjusted,
    )
    raw = logits.index_select(0, there["logged"]) if asked.logged else None
    ops.adjust_logits(logits, table, kernels=form)
    ids = ops.sample(logits, table, kernels=form)
    found = reached(ids, there["drafts"], there["firsts"]).int()
    if raw is None:
        return found
    own = ids.index_select(0, there["logged"]).clamp(min=0)
    return torch.cat((found, logarithms(raw, own, asked.top).flatten()))


def reached(ids: Tensor, drafts: Tensor, firsts: Tensor) -> Tensor:
    """The ids of rows that count, UNREACHED behind a draft that was refused, FAILED anywhere.

    `drafts` int64 [m] is what was drafted behind each row; `firsts` the first row of its sequence.
    """
    refused = (ids != drafts).long()
    before = refused.cumsum(0) - refused
    counts = before == before.index_select(0, firsts)
    return torch.where(counts | (ids < 0), ids, UNREACHED)


def read(asked: Asked, found: NDArray[np.int32]) -> Iterator[Sampled]:
    """What became of each row, from what `choose` gave, on the host."""
    rows = len(asked.draws)
    width = 1 + 2 * asked.top
    lines = found[rows:].reshape(-1, width)
    logged = dict(zip(asked.arrays["logged"].tolist(), lines, strict=True))
    for place, (token, draw) in enumerate(zip(found[:rows].tolist(), asked.draws, strict=True)):
        if token == FAILED:
            yield Sampled(
                -1,
                error=f"logits at position {draw.position} are not finite, or nothing is left",
            )
        elif token == UNREACHED:
            yield Sampled(-1)
        elif place in logged:
            yield Sampled(token, _logprobs(logged[place], draw.sampling.logprobs or 0, asked.top))
        else:
            yield Sampled(token)


def _logprobs(line: NDArray[np.int32], wanted: int, top: int) -> TokenLogprobs:
    chosen, best, theirs = line[:1].view(np.float32), line[1 : 1 + top], line[1 + top :]
    pairs = zip(best[:wanted].tolist(), theirs[:wanted].view(np.float32).tolist(), strict=True)
    return TokenLogprobs(float(chosen[0]), tuple(pairs))


def logarithms(raw: Tensor, own: Tensor, top: int) -> Tensor:
    """int32 [n, 1 + 2 · top] of logits [n, vocab] and the row's ids [n]: that of its id, the best
    ids, theirs; floats as their bits. The lowest id first of equals; a few rows at a time."""
    some = [slice(start, start + LOGGED_ROWS_MAX) for start in range(0, len(raw), LOGGED_ROWS_MAX)]
    return torch.cat([_lines(raw[part], own[part], top) for part in some])


def _lines(raw: Tensor, own: Tensor, top: int) -> Tensor:
    total = raw.double().logsumexp(-1, keepdim=True)
    order = raw.argsort(dim=-1, descending=True, stable=True)[:, :top]
    chosen, theirs = (
        (raw.gather(1, ids).double() - total).float().view(torch.int32)
        for ids in (own[:, None], order)
    )
    return torch.cat((chosen, order.int(), theirs), 1)


def _fields(asked: Asked) -> list[Field]:
    return [(name, dtype, asked.arrays[name].shape) for name, dtype in _DTYPES.items()]


def _table(draws: Sequence[Draw], vocab: int) -> tuple[Arrays, bool, bool]:
    """(arrays of a `DrawTable`, whether a row filters, whether one adjusts). Requests were checked
    when they came, and ids when they were taken."""
    warm = [not greedy(draw.sampling) for draw in draws]
    parts: list[tuple[Ids | NDArray[np.int32], Floats]] = []
    starts = np.zeros((3, len(draws) + 1), np.int32)
    end = 0
    for kind, pick in enumerate((_biases, _seen, _counted)):
        for row, draw in enumerate(draws):
            starts[kind, row] = end
            parts.append(pick(draw))
            end += len(parts[-1][0])
        starts[kind, -1] = end
    top_k = [draw.sampling.top_k if draw.sampling.top_k < vocab else 0 for draw in draws]
    shares = [(draw.sampling.top_p, draw.sampling.min_p) for draw in draws]
    return (
        {
            "keys": np.array(
                [(d.seed & 0xFFFFFFFF, d.seed >> 32, d.position, d.choice) for d in draws], np.int64
            ),
            "shares": np.array(shares, np.float64),
            "temperatures": np.array(
                [
                    d.sampling.temperature if hot else 0.0
                    for d, hot in zip(draws, warm, strict=True)
                ],
                np.float32,
            ),
            "top_k": np.array(top_k, np.int32),
            "penalties": np.array(
                [
                    (
                        draw.sampling.repetition_penalty,
                        draw.sampling.presence_penalty,
                        draw.sampling.frequency_penalty,
                    )
                    for draw in draws
                ],
                np.float32,
            ),
            "starts": starts,
            "ids": np.concatenate([ids for ids, _ in parts], dtype=np.int32, casting="unsafe"),
            "values": np.concatenate([values for _, values in parts]),
        },
        any(
            hot and (most > 0 or top_p < 1 or min_p > 0)
            for hot, most, (top_p, min_p) in zip(warm, top_k, shares, strict=True)
        ),
        end > 0,
    )


def _biases(draw: Draw) -> tuple[NDArray[np.int32], Floats]:
    if not draw.sampling.logit_bias:
        return _NO_IDS, _NO_VALUES
    ids, values = zip(*draw.sampling.logit_bias, strict=True)
    return np.array(ids, np.int32), np.array(values, np.float32)


def _seen(draw: Draw) -> tuple[Ids | NDArray[np.int32], Floats]:
    if draw.sampling.repetition_penalty == 1.0:
        return _NO_IDS, _NO_VALUES
    ids = draw.history.seen(draw.drafted)
    return ids, np.zeros(len(ids), np.float32)


def _counted(draw: Draw) -> tuple[Ids | NDArray[np.int32], Floats]:
    sampling = draw.sampling
    if not (sampling.presence_penalty or sampling.frequency_penalty):
        return _NO_IDS, _NO_VALUES
    return draw.history.counts(draw.drafted)
