"""Attention over pages on a CPU, in one form for prefill, decode and verify.

Keys are cut into pieces of 128 positions at absolute boundaries, the rows of a sequence into tiles
of T tokens (padded by repeating the last one); with grouped heads a tile is a matrix of T · group
rows. A pair (tile, piece) is one small matrix product of constant shape, and all pairs of a step
go into a few batched calls.

Why a row's bits depend on nothing but its own context: the maximum over pieces is exact in any
order; a masked key has the weight exp(−∞) = 0 exactly; the sums of the pieces are added in the
order of the pieces. A piece that a tile neighbour needs and this row does not adds exact zeros.
What remains is that a batched product gives a matrix the same bits in any batch and any T;
`check_invariance` shows it on the machine at hand for the tile sizes that it lets through.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firstlight.kernels.pages import BLOCK_ROWS, Heads, Span, check_spans

PIECE = 128
"""Key positions a piece."""
TILES = (1, 2, 8, 32)
"""Tokens a tile that are tried; a span takes the smallest that holds it, or the largest."""
_PIECE_BLOCKS = PIECE // BLOCK_ROWS
_SINKS = -1
"""In the place of a piece: the first one, of which only the sinks are seen."""
_SCRATCH_FLOATS_MAX = 2 << 20
"""Bounds the temporary memory of one batched call (8 MiB, so that it stays in the cache)."""


@dataclass(frozen=True)
class Products:
    """How the small matrix products are carried out."""

    tiles: tuple[int, ...]
    batched: bool
    """False: one call a matrix, for a machine whose batched product depends on the batch."""

    @property
    def signature(self) -> str:
        """What can change bits: sizes that passed the check give the same ones."""
        return "batched" if self.batched else f"each-{self.tiles[0]}"


@dataclass(frozen=True)
class _Tile:
    table: Sequence[int]
    rows: range
    first_position: int
    pieces: Sequence[int]
    """Those that hold a key which one of its rows sees, ascending; with sinks `_SINKS` is first."""


@dataclass(frozen=True)
class _Chunk:
    """Tiles that share one batched call; pairs are ordered by place of the piece in its tile, then
    by tile."""

    tokens: int
    active: tuple[tuple[int, int], ...]
    """Of the first piece of tiles, of the second …: its first pair and its number of tiles. Tiles
    with more pieces come first, so that the tiles of a later piece are a prefix of those of an
    earlier one."""
    query_index: Tensor
    page_index: Tensor
    pair_tile: Tensor
    bias: Tensor


class PagedAttention:
    """The attention of one step: planned here, then called with every layer's rows and pool."""

    def __init__(
        self,
        spans: Sequence[Span],
        tables: Sequence[Sequence[int]],
        heads: Heads,
        blocks: int,
        products: Products,
        row_heads: int,
    ) -> None:
        rows = check_spans(spans, tables, blocks)
        self._heads = heads
        self._products = products
        sizes: dict[int, list[_Tile]] = {}
        for span, table in zip(spans, tables, strict=True):
            tokens = next((t for t in products.tiles if t >= span.rows), products.tiles[-1])
            sizes.setdefault(tokens, []).extend(_tiles(span, table, tokens, heads))
        self._chunks: list[_Chunk] = []
        sources: NDArray[np.int64] = np.empty((rows, heads.kv_heads, heads.group), np.int64)
        done = 0
        for tokens, tiles in sizes.items():
            tiles.sort(key=lambda tile: -len(tile.pieces))
            for part in _split(tiles, tokens, heads):
                self._chunks.append(_chunk(part, tokens, heads, blocks, row_heads))
                done = _note_sources(sources, part, tokens, done)
        self._output_index = torch.from_numpy(sources.reshape(-1))
        self._rows = rows

    def __call__(self, rows: Tensor, pages: Tensor) -> Tensor:
        """(rows [n, row_heads, head_dim] contiguous, pool of a layer) → [n, heads · head_dim]."""
        flat = rows.view(-1, self._heads.head_dim)
        parts = [self._attend(chunk, flat, pages) for chunk in self._chunks]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole.index_select(0, self._output_index).view(self._rows, -1)

    def _attend(self, chunk: _Chunk, flat: Tensor, pages: Tensor) -> Tensor:
        heads = self._heads
        dim, lines = heads.head_dim, chunk.tokens * heads.group
        pairs = chunk.pair_tile.shape[0]
        seen = pages.view(-1, BLOCK_ROWS * dim).index_select(0, chunk.page_index)
        seen = seen.view(2, pairs * heads.kv_heads, PIECE, dim)
        query = flat.index_select(0, chunk.query_index).view(-1, lines, dim)
        product = _batched if self._products.batched else _each
        scores = product(query, seen[0].transpose(1, 2), chunk.bias, dim**-0.5)
        weights = scores.view(pairs, heads.kv_heads * lines, PIECE)
        most = weights.amax(-1)
        tiles = chunk.active[0][1]
        if len(chunk.active) > 1:
            top = most[:tiles].clone()
            for first, count in chunk.active[1:]:
                torch.maximum(top[:count], most[first : first + count], out=top[:count])
            most = top.index_select(0, chunk.pair_tile)
        weights.sub_(most.unsqueeze(-1)).exp_()
        total = weights.sum(-1)
        sums = product(scores, seen[1], None, 1.0).view(pairs, heads.kv_heads * lines, dim)
        for first, count in chunk.active[1:]:
            total[:count].add_(total[first : first + count])
            sums[:count].add_(sums[first : first + count])
        return sums[:tiles].div_(total[:tiles].unsqueeze(-1)).view(-1, dim)


def check_invariance(heads: Heads) -> Products:
    """Which tile sizes give the same bits here, alone and in a batch.

    The largest tile says what the bits are; a size stays if random rows come out equal through it,
    one by one and several sequences at once. If not even the largest agrees with itself in a
    batch, the products are done one matrix at a time with one tile size, which is invariant by
    construction.
    """
    random = torch.Generator().manual_seed(20)
    blocks, rows, context = 2 * (3 * _PIECE_BLOCKS), 48, 300
    pages = torch.randn(2, blocks, heads.kv_heads, BLOCK_ROWS, heads.head_dim, generator=random)
    queries = torch.randn(rows, heads.heads, heads.head_dim, generator=random)
    tables = [list(range(19)), list(range(blocks - 1, blocks - 20, -1))]

    def run(picked: Sequence[tuple[int, int]], tile: int) -> Tensor:
        """Rows (sequence, row) as sequences of one row each, through one tile size."""
        spans = [Span(i, 1, context - rows + row + 1) for i, (_, row) in enumerate(picked)]
        attention = PagedAttention(
            spans,
            [tables[s] for s, _ in picked],
            heads,
            blocks,
            Products((tile,), True),
            heads.heads,
        )
        return attention(queries[[row for _, row in picked]], pages)

    def whole(tile: int) -> Tensor:
        spans = [Span(0, rows, context), Span(rows, rows, context)]
        products = Products((tile,), True)
        attention = PagedAttention(spans, tables, heads, blocks, products, heads.heads)
        return attention(queries.repeat(2, 1, 1), pages)

    expected = whole(TILES[-1])

    def agrees(tile: int) -> bool:
        single = (0, 1, 17, rows - 1)
        if not torch.equal(whole(tile), expected):
            return False
        for row in single:
            if not torch.equal(run([(0, row)], tile)[0], expected[row]):
                return False
        for count in (2, 3, 5, 16):
            picked = [(i % 2, (7 * i + 3) % rows) for i in range(count)]
            at = [sequence * rows + row for sequence, row in picked]
            if not torch.equal(run(picked, tile), expected[at]):
                return False
        return True

    good = tuple(tile for tile in TILES if agrees(tile))
    return Products(good, True) if TILES[-1] in good else Products((8,), False)


def _tiles(span: Span, table: Sequence[int], tokens: int, heads: Heads) -> list[_Tile]:
    tiles = []
    for start in range(0, span.rows, tokens):
        end = min(start + tokens, span.rows)
        first, last = span.first_position + start, span.first_position + end - 1
        rows = range(span.first_row + start, span.first_row + end)
        tiles.append(_Tile(table, rows, first, _pieces(first, last, heads)))
    return tiles


def _pieces(first: int, last: int, heads: Heads) -> Sequence[int]:
    """The pieces that rows at the positions from `first` to `last` look at."""
    if not heads.window:
        return range(last // PIECE + 1)
    near = range(max(first - heads.window + 1, 0) // PIECE, last // PIECE + 1)
    return [_SINKS, *near] if heads.sinks else near


def _split(tiles: Sequence[_Tile], tokens: int, heads: Heads) -> list[Sequence[_Tile]]:
    """Runs of tiles whose temporaries stay within the bound; one tile at least."""
    lines = tokens * heads.group
    pair = heads.kv_heads * (2 * PIECE * heads.head_dim + 2 * lines * (PIECE + heads.head_dim))
    parts, start, pairs = [], 0, 0
    for index, tile in enumerate(tiles):
        if pairs and (pairs + len(tile.pieces)) * pair > _SCRATCH_FLOATS_MAX:
            parts.append(tiles[start:index])
            start, pairs = index, 0
        pairs += len(tile.pieces)
    parts.append(tiles[start:])
    return parts


def _chunk(
    tiles: Sequence[_Tile], tokens: int, heads: Heads, blocks: int, row_heads: int
) -> _Chunk:
    count, kv_heads, group = len(tiles), heads.kv_heads, heads.group
    counts = np.array([len(tile.pieces) for tile in tiles])
    actives = [int((counts > place).sum()) for place in range(int(counts[0]))]
    pair_tile = np.concatenate([np.arange(active) for active in actives])
    pair_piece = np.array(
        [tile.pieces[place] for place, active in enumerate(actives) for tile in tiles[:active]]
    )
    offsets = np.arange(tokens)
    lengths = np.array([len(tile.rows) for tile in tiles])
    inside = np.minimum(offsets, lengths[:, None] - 1)  # a padded row repeats the last one
    row = np.array([tile.rows.start for tile in tiles])[:, None] + inside
    visible = np.array([tile.first_position for tile in tiles])[:, None] + inside + 1

    head = np.arange(kv_heads)[:, None, None] * group + np.arange(group)
    query = row[:, None, :, None] * row_heads + head  # [tiles, kv_heads, T, group]
    query = query[pair_tile]
    to_sinks = pair_piece == _SINKS
    query[to_sinks] += heads.heads + 2 * heads.kv_heads
    pair_piece = np.maximum(pair_piece, 0)
    reach = max(tile.pieces[-1] for tile in tiles) + 1
    tables = np.zeros((count, reach * _PIECE_BLOCKS), np.int64)
    for index, tile in enumerate(tiles):
        used = -(-(tile.first_position + len(tile.rows)) // BLOCK_ROWS)
        tables[index, :used] = tile.table[:used]
    block = tables.reshape(count, -1, _PIECE_BLOCKS)[pair_tile, pair_piece]
    page = block[:, None, :] * kv_heads + np.arange(kv_heads)[:, None]  # [pairs, kv_heads, 8]
    page = page + np.arange(2)[:, None, None, None] * (blocks * kv_heads)

    position = pair_piece[:, None] * PIECE + np.arange(PIECE)
    hidden = position[:, None, :] >= visible[pair_tile][:, :, None]  # [pairs, T, PIECE]
    if heads.window:
        first = np.maximum(visible[pair_tile] - heads.window, heads.sinks)[:, :, None]
        far = position[:, None, :] < first
        beside = position[:, None, :] >= heads.sinks
        hidden |= np.where(to_sinks[:, None, None], beside, far)
    bias = np.where(hidden, np.float32(-np.inf), np.float32(0))
    shape = (len(pair_tile), kv_heads, tokens, group, PIECE)
    bias = np.broadcast_to(bias[:, None, :, None, :], shape).reshape(-1, tokens * group, PIECE)
    starts = np.concatenate(([0], np.cumsum(actives)[:-1])).tolist()
    return _Chunk(
        tokens=tokens,
        active=tuple(zip(starts, actives, strict=True)),
        query_index=torch.from_numpy(query.reshape(-1)),
        page_index=torch.from_numpy(page.reshape(-1)),
        pair_tile=torch.from_numpy(pair_tile),
        bias=torch.from_numpy(np.ascontiguousarray(bias)),
    )


def _note_sources(
    sources: NDArray[np.int64], tiles: Sequence[_Tile], tokens: int, done: int
) -> int:
    """Where each row's heads will lie in the joined results of all chunks; returns their number."""
    _, kv_heads, group = sources.shape
    place = np.arange(kv_heads)[None, :, None] * tokens * group + np.arange(group)
    for tile in tiles:
        inside = np.arange(len(tile.rows))[:, None, None]
        sources[tile.rows.start : tile.rows.stop] = done + place + inside * group
        done += kv_heads * tokens * group
    return done


def _batched(left: Tensor, right: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    if bias is None:
        return torch.bmm(left, right)
    return torch.baddbmm(bias, left, right, alpha=scale)


def _each(left: Tensor, right: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    products = torch.stack([torch.mm(a, b) for a, b in zip(left, right, strict=True)])
    return products if bias is None else products.mul_(scale).add_(bias)
