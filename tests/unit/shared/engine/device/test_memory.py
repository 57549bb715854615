"""How many blocks fit, and what is said where too few do."""

import pytest

from firstlight.shared.engine.device.memory import Need, Widths, pool_blocks, workspace_bytes
from firstlight.shared.errors import ConfigError

GB = 10**9
LLAMA_8B = Widths(
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    wide=28_672,
    chosen=0,
    vocab=128_256,
    value_bytes=2,
)


def test_the_pool_gets_what_weights_and_the_largest_step_leave_of_the_share():
    need = Need(weights_bytes=16 * GB, workspace_bytes=2 * GB, block_bytes=2_097_152)
    blocks = pool_blocks(80 * GB, 0.9, need)
    assert blocks == (72 - 18) * GB // 2_097_152
    assert blocks * need.block_bytes <= 54 * GB < (blocks + 1) * need.block_bytes


def test_a_pool_may_take_all_that_is_free():
    assert pool_blocks(100, 1.0, Need(40, 20, 10), least=4) == 4


def test_too_little_memory_is_an_error_that_says_what_takes_it():
    need = Need(weights_bytes=16 * GB, workspace_bytes=2 * GB, block_bytes=GB // 100)
    with pytest.raises(ConfigError) as told:
        pool_blocks(20 * GB, 0.9, need, least=64)
    assert str(told.value) == (
        "memory_share 0.9 of 20.00 GB that are free on the GPU is 18.00 GB: weights take 16.00 GB, "
        "the largest step 2.00 GB, and a pool of 64 blocks 0.64 GB; 0.64 GB are missing"
    )


def test_weights_that_do_not_fit_say_how_much_is_missing():
    with pytest.raises(ConfigError, match=r"0\.74 GB are missing"):
        pool_blocks(10 * GB, 1.0, Need(10 * GB, 73 * GB // 100, GB // 100))


@pytest.mark.parametrize("share", [0.0, -1.0, 1.01, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ConfigError, match="memory_share"):
        pool_blocks(100, share, Need(1, 1, 1))


def test_the_largest_step_grows_with_rows_reach_and_rows_that_are_sampled():
    small = workspace_bytes(LLAMA_8B, rows=64, sampled=64, pieces=16)
    assert workspace_bytes(LLAMA_8B, rows=128, sampled=64, pieces=16) > small
    assert workspace_bytes(LLAMA_8B, rows=64, sampled=128, pieces=16) > small
    longer = workspace_bytes(LLAMA_8B, rows=64, sampled=64, pieces=32)
    assert longer - small == 64 * 32 * 16 * (128 + 2) * 4  # a partial sum a row, head and piece
