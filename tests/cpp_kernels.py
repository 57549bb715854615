"""A mark for tests of the C++ kernels: where there are none, it skips the test and says why."""

import pytest

from firstlight.kernels.cpu import extension


def _why_not() -> str:
    try:
        extension.native()
    except ValueError as error:
        return str(error)
    return ""


cpp = pytest.mark.skipif(bool(_why_not()), reason=_why_not())
