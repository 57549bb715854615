"""How what a step launches is kept, to be launched again with one call.

A captured run reads and writes the same memory each time: what differs between two steps has to
come through tensors that stay where they are. It may not read a number back, nor let a shape depend
on one. A run is called up to twice before its first replay, so it must not matter how often.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

Run: TypeAlias = Callable[[], None]
Capture: TypeAlias = Callable[[Run], Run]
"""From a run to what repeats it."""


def launch_again(run: Run) -> Run:
    """Nothing is kept: every launch is made anew. For CPUs, and for graphs that are off."""
    return run


class CudaGraphs:
    """CUDA graphs of one GPU; they share the memory of what they compute in between.

    That is safe because only one of them runs at a time, and nothing of one is read by another: its
    results go to memory of the caller's.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None  # what torch calls a memory pool has no public name

    def __call__(self, run: Run) -> Run:
        """Runs it once as it is, since the first launch of a kernel compiles it; then captures."""
        with torch.cuda.device(self._device):
            aside, current = torch.cuda.Stream(), torch.cuda.current_stream()
            aside.wait_stream(current)
            with torch.cuda.stream(aside):
                run()
            current.wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                run()
            self._pool = graph.pool()
        replay: Run = graph.replay
        return replay
