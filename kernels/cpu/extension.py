"""The kernels in C++, if they were built when this was installed and this machine can run them.

They are compiled at installation where there is a compiler, for several instruction sets at once;
which of them runs is found out here. Nothing else imports `_native`.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from firstlight.kernels.cpu import _native
except ImportError as error:
    _missing = str(error)
else:
    _missing = ""

PANEL_OUTPUTS = 16
"""Outputs of a matrix that the kernels take together."""
REVISION = 1
"""Raised by whatever changes the bits of a result: the order of sums, a format, a polynomial."""


def instruction_sets() -> tuple[str, ...]:
    """What kernels can run here, the fastest first; none if they were not built."""
    return () if _missing else tuple(_native.available())


def native() -> ModuleType:
    """The extension module.

    Raises:
        ValueError: it was not built, or this machine has none of its instruction sets.

    """
    if _missing:
        raise ValueError(f"the C++ kernels are not installed: {_missing}")
    if not _native.available():
        raise ValueError("the C++ kernels need a CPU with AVX2, FMA and F16C")
    return _native


def in_turn(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Rows of gate and up projection as the decoder wants them: 16 of each in turn.

    Raises:
        ValueError: their number is not a multiple of 16.

    """
    rows, *rest = parts[0].shape
    if rows % PANEL_OUTPUTS:
        raise ValueError(f"{rows} rows are not a multiple of {PANEL_OUTPUTS}")
    split = [part.reshape(-1, PANEL_OUTPUTS, *rest) for part in parts]
    return np.stack(split, 1).reshape(-1, *rest)
