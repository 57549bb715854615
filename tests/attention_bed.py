"""What tests of attention build: a pool, tables over it, rows of sequences, and a plan."""

from dataclasses import dataclass
from random import Random

import torch
from kernel_bed import random_rows
from torch import Tensor

from firstlight.kernels.pages import BLOCK_ROWS, Heads, Span
from firstlight.kernels.plan import AttentionPlan, plan_attention
from firstlight.kernels.reference.quantize import quantize_rows


@dataclass(frozen=True)
class Case:
    queries: Tensor
    pages: Tensor
    scales: Tensor | None
    spans: list[Span]
    tables: list[list[int]]
    heads: Heads
    window: int
    sinks: int
    device: torch.device

    @property
    def plan(self) -> AttentionPlan:
        return self.plan_of(self.spans, self.tables)

    def plan_of(self, spans: list[Span], tables: list[list[int]]) -> AttentionPlan:
        return plan_attention(
            spans,
            tables,
            self.pages.shape[1],
            window=self.window,
            sinks=self.sinks,
            device=self.device,
        )

    def run(self, operation, kernels: str = "gpu", plan: AttentionPlan | None = None) -> Tensor:
        return operation(
            self.queries, self.pages, plan or self.plan, scales=self.scales, kernels=kernels
        )

    def alone(self, operation, span: int, row: int) -> Tensor:
        """One row of one sequence as a step of its own."""
        place = self.spans[span].first_row + row
        context = self.spans[span].first_position + row + 1
        plan = self.plan_of([Span(0, 1, context)], [self.tables[span]])
        query = self.queries[place : place + 1].clone()
        return operation(query, self.pages, plan, scales=self.scales, kernels="gpu")[0]


def case(
    shapes: list[tuple[int, int]],
    heads: Heads,
    device: torch.device,
    *,
    dtype: torch.dtype = torch.float32,
    code: torch.dtype | None = None,
    window: int = 0,
    sinks: int = 0,
    seed: int = 0,
) -> Case:
    """Sequences of (rows, context); tables have holes wherever the window lets them."""
    random = Random(seed)
    blocks = 3 + sum(-(-context // BLOCK_ROWS) for _, context in shapes)
    free = random.sample(range(blocks), blocks)
    spans, tables, first = [], [], 0
    for rows, context in shapes:
        span = Span(first, rows, context)
        spans.append(span)
        table = [free.pop() for _ in range(-(-context // BLOCK_ROWS))]
        if window:
            hidden = max(0, span.first_position - window + 1) // BLOCK_ROWS
            holes = range(-(-sinks // BLOCK_ROWS), hidden)
            table = [-1 if place in holes else block for place, block in enumerate(table)]
        tables.append(table)
        first += rows
    pages = random_rows(2, blocks, heads.kv_heads, BLOCK_ROWS, heads.head_dim, seed=seed)
    scales = None
    if code is None:
        pages = pages.to(dtype)
    else:
        pages, scales = (part.to(device) for part in quantize_rows(pages, code))
    queries = random_rows(first, heads.heads, heads.head_dim, seed=seed + 1, dtype=dtype)
    return Case(
        queries.to(device),
        pages.to(device),
        scales,
        spans,
        tables,
        heads,
        window,
        sinks,
        device,
    )
