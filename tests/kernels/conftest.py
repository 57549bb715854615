"""Kernels for GPUs, run by Triton's interpreter where there is no GPU.

The interpreter looks through all of `triton.language` whenever one kernel function calls another;
once a module is enough, and makes these tests several times faster. Its products are numpy's,
whose bits depend on where in the matrix a row stands; a device adds along K in one order, and so it
is done here.
"""

import warnings

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


def _dot(self, a, b, d, input_precision, max_num_imprecise_acc):
    left, right = (_wide(self, part) for part in (a, b))
    total = d.data.copy()
    term = np.empty_like(total)
    for place in range(left.shape[-1]):
        np.multiply(left[..., place, None], right[..., place, None, :], out=term, dtype=term.dtype)
        total += term
    return interpreter.TensorHandle(total, d.dtype.scalar)


def _wide(builder, part):
    if part.dtype.primitive_bitwidth == 8 and part.dtype.is_floating():
        return builder.create_fp_to_fp(part, interpreter.tl.float32, None).data
    return part.data


if INTERPRETED:
    interpreter._patch_lang = _patch_once
    interpreter.InterpreterBuilder.create_dot = _dot


@pytest.fixture
def device() -> torch.device:
    return torch.device("cpu" if INTERPRETED else "cuda")


@pytest.fixture(autouse=True)
def _quiet_arithmetic():
    """A GPU says nothing about overflow and NaN; numpy would warn, and warnings are errors here."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
        yield
