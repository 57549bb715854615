from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DRAW: np.dtype[np.void]
"""seed, top_p, min_p, top_k, position, choice, temperature (0: greedy), repetition, presence,
frequency, then how many of `bias_ids`, `seen` and `counted` are this draw's."""
NOT_FINITE: int
NONE_IS_LEFT: int

def available() -> list[str]: ...
def matmul(kernels: str, weights: Matrix, rows: NDArray[np.float32]) -> NDArray[np.float32]: ...

class Matrix:
    @staticmethod
    def from_blocks(type: str, rows: NDArray[np.uint8], inputs: int) -> Matrix: ...
    @staticmethod
    def from_floats(format: str, rows: NDArray[np.float32]) -> Matrix: ...
    @property
    def format(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    def unpacked(self) -> NDArray[np.float32]: ...

class Decoder:
    def __init__(
        self,
        *,
        kernels: str,
        threads: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        hidden: int,
        intermediate: int,
        vocab: int,
        rms_eps: float,
        frequencies: Sequence[float],
    ) -> None: ...
    def add(
        self,
        *,
        attention_norm: NDArray[np.float32],
        qkv: Matrix,
        qkv_bias: NDArray[np.float32],
        q_norm: NDArray[np.float32],
        k_norm: NDArray[np.float32],
        output: Matrix,
        mlp_norm: NDArray[np.float32],
        gate_up: Matrix,
        down: Matrix,
    ) -> None: ...
    def end(self, *, embedding: Matrix, norm: NDArray[np.float32], head: Matrix) -> None: ...
    def run(
        self,
        *,
        ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        slots: NDArray[np.int64],
        spans: NDArray[np.int32],
        tables: NDArray[np.int32],
        table_offsets: NDArray[np.int32],
        logit_rows: NDArray[np.int64],
        pages: NDArray[np.float16],
        logits: NDArray[np.float32],
    ) -> None: ...
    def sample(
        self,
        *,
        logits: NDArray[np.float32],
        draws: NDArray[np.void],
        bias_ids: NDArray[np.int64],
        biases: NDArray[np.float32],
        seen: NDArray[np.int64],
        counted: NDArray[np.int64],
        counts: NDArray[np.float32],
    ) -> NDArray[np.int64]: ...
