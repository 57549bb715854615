"""Blocks copied and packed on Triton: every byte, and no other."""

import pytest
import torch
from kernel_bed import random_rows, same_bits

from firstlight.kernels import ops

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.float8_e4m3fn]


def pool(device, dtype=torch.float32, shape=(3, 2, 7, 2, 16, 18)):
    return (random_rows(*shape) * 10).to(dtype).to(device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_copied_block_is_its_source_in_every_layer(dtype, device):
    found, expected = pool(device, dtype), pool("cpu", dtype)
    ops.copy_blocks(found, [1, 1, 6], [0, 5, 2], kernels="gpu")
    ops.copy_blocks(expected.view(torch.uint8), [1, 1, 6], [0, 5, 2], kernels="reference")
    assert same_bits(found.cpu(), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packed_blocks_are_those_of_the_reference_and_come_back(dtype, device):
    held = pool(device, dtype)
    packed = ops.pack_blocks(held, [4, 0, 6], kernels="gpu")
    expected = ops.pack_blocks(pool("cpu", dtype).view(torch.uint8), [4, 0, 6], kernels="reference")
    assert same_bits(packed.cpu().view(torch.uint8), expected)
    other = pool(device, dtype)
    other[:, :, [4, 0, 6]] = 0
    ops.unpack_blocks(packed, other, [4, 0, 6], kernels="gpu")
    assert same_bits(other, held)


def test_the_scales_of_a_pool_are_packed_as_well(device):
    scales = random_rows(2, 2, 5, 3, 16).to(device)
    packed = ops.pack_blocks(scales, [3, 1], kernels="gpu")
    assert same_bits(packed, scales[:, :, [3, 1]].movedim(2, 0).contiguous())


def test_a_pool_whose_blocks_are_odd_is_moved_by_the_byte(device):
    held = torch.arange(2 * 2 * 3 * 7, dtype=torch.uint8).view(2, 2, 3, 1, 7).to(device)
    packed = ops.pack_blocks(held, [2], kernels="gpu")
    assert same_bits(packed[0], held[:, :, 2])


def test_no_blocks_are_no_work(device):
    held = pool(device)
    ops.copy_blocks(held, [], [], kernels="gpu")
    assert ops.pack_blocks(held, [], kernels="gpu").shape == (0, 3, 2, 2, 16, 18)
    assert same_bits(held, pool(device))
