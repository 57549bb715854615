"""Whole blocks of a pool copied and packed: what is right, in plain torch."""

from torch import Tensor


def copy_blocks(pool: Tensor, sources: Tensor, targets: Tensor) -> None:
    """In `pool` [layers, 2, blocks, …], each target block becomes its source in every layer."""
    pool[:, :, targets] = pool[:, :, sources]


def pack_blocks(pool: Tensor, blocks: Tensor) -> Tensor:
    """[count, layers, 2, …]: each block as one contiguous run, in the order asked for."""
    return pool[:, :, blocks].movedim(2, 0).contiguous()


def unpack_blocks(packed: Tensor, pool: Tensor, blocks: Tensor) -> None:
    """The inverse: each run of `packed` becomes a block of `pool`."""
    pool[:, :, blocks] = packed.movedim(0, 2)
