"""The event loop of an edge: uvloop where it is installed, asyncio's own elsewhere."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

try:
    import uvloop
except ImportError:  # it is not made for every platform
    uvloop = None  # type: ignore[assignment]

Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` to its end on the fastest loop there is."""
    if uvloop is None:
        return asyncio.run(main)
    return uvloop.run(main)
