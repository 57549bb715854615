"""Keys and values of all sequences: one allocation at start, none on a request's path."""

import torch
from torch import Tensor

from firstlight.kernels.pages import BLOCK_ROWS
from firstlight.shared.blocks import BLOCK_TOKENS
from firstlight.shared.engine.model.config import ModelConfig
from firstlight.shared.errors import ConfigError

assert BLOCK_ROWS == BLOCK_TOKENS, (BLOCK_ROWS, BLOCK_TOKENS)


class KvStorage:
    """The pool. `pages` is float32 [layers, 2, blocks, kv_heads, 16, head_dim]: keys, then values.

    The head stands before the token, so that 16 tokens of a head are one contiguous run. It starts
    as zeros and only ever holds finite values: attention multiplies what it must not see by
    exactly 0.
    """

    def __init__(self, config: ModelConfig, blocks: int) -> None:
        if blocks < 1:
            raise ConfigError(f"a KV pool of {blocks} blocks, expected at least 1")
        shape = (config.layers, 2, blocks, config.kv_heads, BLOCK_TOKENS, config.head_dim)
        try:
            self.pages = torch.zeros(shape, dtype=torch.float32)
        except RuntimeError as error:
            size = blocks * BLOCK_TOKENS * config.kv_bytes_per_token
            raise ConfigError(
                f"no memory for a KV pool of {blocks} blocks, {size} bytes"
            ) from error
        self.blocks = blocks

    @property
    def k(self) -> Tensor:
        """Keys, a view [layers, blocks, kv_heads, 16, head_dim]."""
        return self.pages[:, 0]

    @property
    def v(self) -> Tensor:
        """Values, a view [layers, blocks, kv_heads, 16, head_dim]."""
        return self.pages[:, 1]

    @property
    def bytes(self) -> int:
        """Size of the pool."""
        return self.pages.numel() * self.pages.element_size()
