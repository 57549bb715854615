"""The numbers of a plan, written into the memory of a shape: all sequences at once.

A step of a GPU takes milliseconds, so what the host does for each sequence counts. A block table
grows once in sixteen tokens; what was made of it is kept for the next step.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from firstlight.kernels.pages import BLOCK_ROWS
from firstlight.shared.engine.device.buckets import SPAN_ROWS, Bucket
from firstlight.shared.engine.device.packed import Field
from firstlight.shared.engine.plan import SequencePlan, StepPlan

NOWHERE = -1
"""The slot of a row that belongs to no sequence."""
Inputs: TypeAlias = Mapping[str, NDArray[Any]]
"""By the names of `fields`."""


def fields(bucket: Bucket) -> list[Field]:
    """What a step of this shape reads, but weights and pool."""
    return [
        ("ids", torch.int64, (bucket.rows,)),
        ("positions", torch.int64, (bucket.rows,)),
        ("slots", torch.int64, (bucket.rows,)),
        ("spans", torch.int32, (bucket.spans, 3)),
        ("owners", torch.int32, (bucket.spans,)),
        ("tables", torch.int32, (bucket.sequences, bucket.table)),
    ]


def clear(inputs: Inputs) -> None:
    """As if there were no sequence: rows without keys, spans without rows. Tables are read only as
    far as a span says."""
    for name in ("ids", "positions", "spans", "owners"):
        inputs[name].fill(0)
    inputs["slots"].fill(NOWHERE)


class Writer:
    """Writes plans for one pool and one vocabulary."""

    def __init__(self, blocks: int, vocab: int) -> None:
        self._blocks, self._vocab = blocks, vocab
        self._tables: dict[str, tuple[tuple[int, ...], NDArray[np.int32]]] = {}
        """Of each sequence of the latest step."""

    def write(self, plan: StepPlan, inputs: Inputs) -> None:
        """Raises `ValueError` for an id or a block that is none, or a table that is too short."""
        clear(inputs)
        parts, rows = plan.sequences, plan.rows
        ids = np.fromiter(chain.from_iterable(one.ids for one in parts), np.int64, rows)
        if not 0 <= ids.min() <= ids.max() < self._vocab:
            raise ValueError(f"ids has a value outside of 0…{self._vocab - 1}")
        inputs["ids"][:rows] = ids
        self._write_tables(parts, inputs["tables"])

        counts = np.array([len(one.ids) for one in parts])
        starts = np.array([one.start for one in parts])
        firsts = counts.cumsum() - counts
        owner = np.arange(len(parts)).repeat(counts)
        positions = np.arange(rows) - firsts[owner] + starts[owner]
        inputs["positions"][:rows] = positions
        block = inputs["tables"][owner, positions // BLOCK_ROWS].astype(np.int64)
        inputs["slots"][:rows] = block * BLOCK_ROWS + positions % BLOCK_ROWS

        spans = -(-counts // SPAN_ROWS)
        owner = np.arange(len(parts)).repeat(spans)
        before = (np.arange(len(owner)) - (spans.cumsum() - spans)[owner]) * SPAN_ROWS
        own = np.minimum(counts[owner] - before, SPAN_ROWS)
        inputs["owners"][: len(owner)] = owner
        whole = (firsts[owner] + before, own, starts[owner] + before + own)
        inputs["spans"][: len(owner)] = np.stack(whole, 1)

    def _write_tables(self, parts: Sequence[SequencePlan], tables: NDArray[np.int32]) -> None:
        before, self._tables = self._tables, {}
        for place, one in enumerate(parts):
            held = before.get(one.request)
            if held is None or held[0] != one.table:
                held = one.table, self._checked(one.table)
            self._tables[one.request] = held
            end = one.start + len(one.ids)
            used = -(-end // BLOCK_ROWS)
            if len(one.table) < used:
                raise ValueError(f"{len(one.table)} blocks for {end} positions")
            tables[place, :used] = held[1][:used]

    def _checked(self, table: tuple[int, ...]) -> NDArray[np.int32]:
        made = np.array(table, np.int32)
        if len(made) and not 0 <= made.min() <= made.max() < self._blocks:
            raise ValueError(f"a table has a block outside of 0…{self._blocks - 1}")
        return made
