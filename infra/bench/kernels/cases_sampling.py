"""Sampling of all rows of a decode."""

from collections.abc import Iterator
from functools import partial

import torch

from firstlight.infra.bench.kernels.cases import Case, Prepared, Source
from firstlight.infra.bench.kernels.shapes import Shape
from firstlight.kernels import ops
from firstlight.kernels.draws import Draw, draw_table

_SEEN = 2048
"""Distinct ids that a penalty looks at."""
_DRAWS = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 0.8},
    "top-k": {"temperature": 0.8, "top_k": 50},
    "top-p": {"temperature": 0.8, "top_p": 0.95},
}


def cases(shape: Shape) -> Iterator[Case]:
    """A logit read once is the floor; with a filter a row is read again, from the cache."""
    rows, vocab = shape.sequences, shape.vocab
    for variant, settings in _DRAWS.items():
        yield Case(
            "sample",
            variant,
            shape.name,
            f"{rows} × {vocab}",
            rows * vocab * 4,
            0,
            partial(_sample, shape, settings),
        )
    seen = min(_SEEN, vocab)
    yield Case(
        "adjust_logits",
        "repetition",
        shape.name,
        f"{rows} rows, {seen} ids each",
        rows * seen * 16,
        0,
        partial(_adjust, shape, seen),
    )


def _sample(shape: Shape, settings: dict[str, float], device: torch.device) -> Prepared:
    source = Source(device)
    logits = source.floats(shape.sequences, shape.vocab, dtype=torch.float32)
    draws = [
        Draw(
            seed=row,
            position=row,
            temperature=settings["temperature"],
            top_k=int(settings.get("top_k", 0)),
            top_p=settings.get("top_p", 1.0),
        )
        for row in range(shape.sequences)
    ]
    table = draw_table(draws, shape.vocab, device=source.device)

    def torchs() -> torch.Tensor:
        if settings["temperature"] == 0:
            return logits.argmax(-1)
        return torch.multinomial(logits.softmax(-1), 1)

    return Prepared(
        lambda: ops.sample(logits, table, kernels="gpu"), None, None if table.filtered else torchs
    )


def _adjust(shape: Shape, seen: int, device: torch.device) -> Prepared:
    source = Source(device)
    logits = source.floats(shape.sequences, shape.vocab, dtype=torch.float32)
    step = shape.vocab // seen
    ids = tuple(range(0, step * seen, step))
    draws = [Draw(1, row, repetition=1.1, seen=ids) for row in range(shape.sequences)]
    table = draw_table(draws, shape.vocab, device=source.device)
    return Prepared(lambda: ops.adjust_logits(logits, table, kernels="gpu"))
