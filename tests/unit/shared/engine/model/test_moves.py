"""Blocks between the pool and the host tier, on real tensors."""

import torch

from firstlight.shared.engine.kv.manager import Moves
from firstlight.shared.engine.model.load import LoadedModel
from firstlight.shared.engine.runner import TorchRunner


def test_a_block_moves_to_the_host_tier_and_back_bit_for_bit(shallow: LoadedModel) -> None:
    kv = shallow.storage(4, 3)
    runner = TorchRunner(shallow, kv)
    kv.pages.copy_(torch.randn(kv.pages.shape))
    before = runner.read_block(2)
    assert len(before) == runner.block_bytes
    runner.move(Moves(saves=((2, 1),)))
    assert runner.read_slot(1) == before
    kept = kv.pages.clone()
    runner.move(Moves(fills=((1, 3),)))
    assert runner.read_block(3) == before
    assert torch.equal(kv.pages[:, :, :3], kept[:, :, :3])


def test_what_leaves_is_copied_before_what_comes_takes_its_place(shallow: LoadedModel) -> None:
    kv = shallow.storage(2, 2)
    runner = TorchRunner(shallow, kv)
    kv.pages.copy_(torch.randn(kv.pages.shape))
    leaving, coming = runner.read_block(0), runner.read_block(1)
    runner.write_slot(0, bytearray(coming))
    runner.move(Moves(saves=((0, 1),), fills=((0, 0),)))
    assert (runner.read_slot(1), runner.read_block(0)) == (leaving, coming)
