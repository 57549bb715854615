"""Whole blocks of a pool copied (copy on write) and packed (transfer), whatever is in them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from firstlight.kernels.gpu.launch import INTERPRETED, check_device

_CHUNK = 2048


@triton.jit
def move_kernel(
    source,
    target,
    source_blocks,
    target_blocks,
    source_block,
    source_part,
    target_block,
    target_part,
    words,
    CHUNK: tl.constexpr,
    INDEXED: tl.constexpr,
    SCATTERED: tl.constexpr,
):
    """A program moves CHUNK words of one layer's keys or values of one block.

    Grid: (count, 2 · layers, ⌈words / CHUNK⌉). Tile: [CHUNK]. A part is a layer's keys or values;
    word w of part p of block b lies at b · *_block + p · *_part + w. Blocks are taken from
    `source_blocks` if INDEXED and `target_blocks` if SCATTERED [count] int64, else they are 0, 1, …
    Dtypes: words of 1, 2, 4 or 8 bytes, whatever they mean: copies are exact.
    Reads and writes each word once. Roofline: bandwidth.
    Errors: none; block ids were checked on the host.
    """
    item = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1).to(tl.int64)
    word = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    read, write = item, item
    if INDEXED:
        read = tl.load(source_blocks + item)
    if SCATTERED:
        write = tl.load(target_blocks + item)
    inside = word < words
    value = tl.load(source + read * source_block + part * source_part + word, mask=inside)
    tl.store(target + write * target_block + part * target_part + word, value, mask=inside)


def copy_blocks(pool: Tensor, sources: Tensor, targets: Tensor) -> None:
    """See `kernels.reference.blocks`."""
    check_device("pool", pool)
    held = _parts(pool)
    strides = (held.stride(1), held.stride(0))
    _move(held, held, sources, targets, strides, strides, len(sources), held.shape[0])


def pack_blocks(pool: Tensor, blocks: Tensor) -> Tensor:
    """See `kernels.reference.blocks`."""
    check_device("pool", pool)
    layers, sides, _, *rest = pool.shape
    packed = torch.empty(len(blocks), layers, sides, *rest, dtype=pool.dtype, device=pool.device)
    held, runs = _parts(pool), _runs(packed)
    outer = (held.stride(1), held.stride(0))
    inner = (runs.stride(0), runs.stride(1))
    _move(held, runs, blocks, None, outer, inner, len(blocks), held.shape[0])
    return packed


def unpack_blocks(packed: Tensor, pool: Tensor, blocks: Tensor) -> None:
    """See `kernels.reference.blocks`."""
    check_device("pool", pool)
    held, runs = _parts(pool), _runs(packed)
    outer = (held.stride(1), held.stride(0))
    inner = (runs.stride(0), runs.stride(1))
    _move(runs, held, None, blocks, inner, outer, len(blocks), held.shape[0])


def _parts(pool: Tensor) -> Tensor:
    """A view [2 · layers, blocks, words]."""
    return _words(pool.view(pool.shape[0] * pool.shape[1], pool.shape[2], -1))


def _runs(packed: Tensor) -> Tensor:
    """A view [count, 2 · layers, words]."""
    count, layers, sides = packed.shape[:3]
    width = packed[0, 0, 0].numel() if count else 1
    return _words(packed.view(count, layers * sides, width))


def _words(view: Tensor) -> Tensor:
    """The same bytes in the longest words that divide the last dimension."""
    size = view.shape[-1] * view.element_size()
    words = ((torch.int64, 8), (torch.int32, 4), (torch.int16, 2), (torch.uint8, 1))
    return view.view(next(dtype for dtype, length in words if size % length == 0))


def _move(
    source: Tensor,
    target: Tensor,
    source_blocks: Tensor | None,
    target_blocks: Tensor | None,
    read: tuple[int, int],
    written: tuple[int, int],
    count: int,
    parts: int,
) -> None:
    words = source.shape[-1]
    if count == 0:
        return
    move_kernel[(count, parts, triton.cdiv(words, _CHUNK))](
        source,
        target,
        source if source_blocks is None else source_blocks,
        target if target_blocks is None else target_blocks,
        *read,
        *written,
        words,
        CHUNK=_CHUNK if not INTERPRETED else min(_CHUNK, triton.next_power_of_2(words)),
        INDEXED=source_blocks is not None,
        SCATTERED=target_blocks is not None,
        num_warps=4,
    )
