"""How many blocks of KV a GPU has room for. Sans-IO.

What a core may take is a share of what was free before it placed anything; weights and the largest
step come first, and the pool gets the rest. So it is known at start, and nothing is allocated later
that was not counted here.
"""

from dataclasses import dataclass

from firstlight.shared.errors import ConfigError

LOGGED_ROWS_MAX = 8
"""Rows whose logprobs are worked out at once: every row of a step can ask for them."""
_LOGGED_BYTES = 40
"""A logit of such a row: its sort has numbers and places twice, and whose they are."""


@dataclass(frozen=True, slots=True)
class Need:
    """What has to lie beside the pool, and what a block of it takes."""

    weights_bytes: int
    workspace_bytes: int
    """Of the largest step."""
    block_bytes: int


def pool_blocks(free_bytes: int, share: float, need: Need, least: int = 1) -> int:
    """Blocks that fit into `share` of `free_bytes` beside the rest; one more is the device's own.

    Raises:
        ConfigError: fewer than `least`; says how much is missing and what takes it.

    """
    if not 0 < share <= 1:
        raise ConfigError(f"memory_share is {share}, not above 0 and at most 1")
    ours = int(free_bytes * share)
    rest = ours - need.weights_bytes - need.workspace_bytes
    blocks = max(rest, 0) // need.block_bytes
    if blocks < least:
        missing = least * need.block_bytes - rest
        raise ConfigError(
            f"memory_share {share} of {_gb(free_bytes)} that are free on the GPU is {_gb(ours)}: "
            f"weights take {_gb(need.weights_bytes)}, the largest step "
            f"{_gb(need.workspace_bytes)}, and a pool of {least} blocks "
            f"{_gb(least * need.block_bytes)}; {_gb(missing)} are missing"
        )
    return blocks


@dataclass(frozen=True, slots=True)
class Widths:
    """What of a model decides how large a step is, in numbers a row."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    wide: int
    """Of gate and up together, of all experts that a row goes through."""
    chosen: int
    """Experts a row; 0: none."""
    vocab: int
    value_bytes: int
    """Of a number of a row."""


def workspace_bytes(of: Widths, *, rows: int, sampled: int, pieces: int) -> int:
    """The most that a step of `rows` holds at one time beside weights and pool.

    Attention keeps partial sums of every piece of keys, in float32; a mixture keeps a pair for each
    row and expert; a row that is sampled with filters has its logits, as they were for logprobs,
    and their weights in float64; a few rows have what their logprobs are found by. These never are
    there together, but the memory of one is not always given to another.
    """
    query = of.heads * of.head_dim
    row = (3 * of.hidden + 2 * query + 2 * of.kv_heads * of.head_dim) * of.value_bytes
    attention = of.heads * pieces * (of.head_dim + 2) * 4
    mlp = (of.wide + of.wide // 2 + of.chosen * of.hidden) * of.value_bytes + 64 * of.chosen
    logits = of.vocab * (4 + 4 + 8)
    logged = min(sampled, LOGGED_ROWS_MAX) * of.vocab * _LOGGED_BYTES
    return rows * (row + attention + mlp) + sampled * logits + logged


def _gb(size: int) -> str:
    return f"{size / 1e9:,.2f} GB"
