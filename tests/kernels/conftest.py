"""Kernels for GPUs, run by Triton's interpreter where there is no GPU.

The interpreter looks through all of `triton.language` whenever one kernel function calls another;
once a module is enough, and makes these tests several times faster.
"""

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

from firstlight.kernels.gpu.launch import INTERPRETED

_patch = interpreter._patch_lang
_patched: set[int] = set()


class _Kept:
    def restore(self) -> None:
        pass


def _patch_once(function):
    if id(function.__globals__) not in _patched:
        _patched.add(id(function.__globals__))
        _patch(function)
    return _Kept()


if INTERPRETED:
    interpreter._patch_lang = _patch_once


@pytest.fixture
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")


@pytest.fixture(autouse=True)
def _quiet_arithmetic():
    """A GPU says nothing about overflow and NaN; numpy would warn, and warnings are errors here."""
    with np.errstate(all="ignore"):
        yield
