"""How fast KV moves from core to core: what rules that move it reckon with, and what it takes."""

from firstlight.infra.sim.matrix import Matrix

NEAR_BYTES_PER_S, FAR_BYTES_PER_S = 100e9 / 8, 10e9 / 8
"""Within a region and between regions. 100 Gbit/s is the least that Mooncake finds of use."""
MOVED_TOKEN_BYTES = 131_072
"""Of a Llama 8B in 16 bits."""


def move_s(tokens: int, matrix: Matrix, source: int, to: int) -> float:
    """From asking for the KV of so many tokens until all of it is there."""
    if not tokens:
        return 0.0
    rate = NEAR_BYTES_PER_S if source == to else FAR_BYTES_PER_S
    return matrix.rtt_ms[source][to] / 1000 + tokens * MOVED_TOKEN_BYTES / rate
