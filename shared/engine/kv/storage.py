"""Keys and values of all sequences: one allocation at start, none on a request's path."""

import mmap
from math import prod

import torch
from torch import Tensor

from firstlight.kernels.pages import BLOCK_ROWS, FLOAT_PAGES, PageForm
from firstlight.shared.blocks import BLOCK_TOKENS
from firstlight.shared.engine.model.config import ModelConfig
from firstlight.shared.errors import ConfigError

assert BLOCK_ROWS == BLOCK_TOKENS, (BLOCK_ROWS, BLOCK_TOKENS)
_CPU = torch.device("cpu")


class KvStorage:
    """The pool. `pages` is [layers, 2, blocks, kv_heads, 16, head_dim]: keys, then values.

    The head stands before the token, so that 16 tokens of a head are one contiguous run; what is
    in that run is a matter of the form. It starts as zeros and only ever holds finite values:
    attention multiplies what it must not see by exactly 0.
    """

    def __init__(
        self,
        config: ModelConfig,
        blocks: int,
        host_blocks: int = 0,
        form: PageForm = FLOAT_PAGES,
        device: torch.device = _CPU,
    ) -> None:
        if blocks < 1:
            raise ConfigError(f"a KV pool of {blocks} blocks, expected at least 1")
        one = (config.kv_heads, BLOCK_TOKENS, config.head_dim)
        on_gpu = device.type == "cuda"
        shape, host_shape = (config.layers, 2, blocks, *one), (host_blocks, config.layers, 2, *one)
        try:
            if on_gpu:
                self.pages = torch.zeros(shape, dtype=form.dtype, device=device)
            else:
                self.pages = _zeros(shape, form.dtype)
            self.host = torch.empty(host_shape, dtype=form.dtype, pin_memory=on_gpu)
            """The host tier: a block is one contiguous run. On a CPU its memory is taken as it is
            used; beside a GPU at once, since it copies only what stays where it is."""
        except (RuntimeError, OSError, OverflowError) as error:
            values = (blocks + host_blocks) * BLOCK_TOKENS * config.kv_values_per_token
            size = values * form.dtype.itemsize
            raise ConfigError(
                f"no memory for a KV pool of {blocks} blocks and a host tier of {host_blocks}, "
                f"{size} bytes"
            ) from error
        self.layout = f"{form.name} layers={config.layers} 2 {'x'.join(map(str, one))}"
        """What the bytes of a block mean; part of the namespace that cores share KV in."""
        self.blocks = blocks
        self.block_bytes = block_bytes(config, form)

    def block(self, block: int) -> Tensor:
        """One block of the pool, a view [layers, 2, kv_heads, 16, head_dim]."""
        return self.pages[:, :, block]

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
        """Size of the pool, without the host tier."""
        return self.pages.numel() * self.pages.element_size()


def block_bytes(config: ModelConfig, form: PageForm) -> int:
    """Size of a block in a pool of this form."""
    return config.kv_values_per_token * BLOCK_TOKENS * form.dtype.itemsize


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that lie in huge pages where the system has them: a step reads blocks from all over.

    Raises:
        OSError, OverflowError: there is no such amount of memory.

    """
    size = prod(shape)
    own = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, size * dtype.itemsize, flags=own)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=size).view(shape)
