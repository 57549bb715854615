"""Kernels compiled for GPUs that are not here.

Triton asks its driver for what it compiles; here that is a stand-in with no device. A launch then
compiles and goes no further, so that the launchers' own code says with which constants each kernel
is built. ptxas comes with Triton, and cuobjdump, which knows what a kernel takes of a processor.
"""

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from firstlight.infra.bench.kernels.cases import Case

_PRODUCT = re.compile(r"(?:wgmma\.mma_async|mma\.sync)\.\S*?(m\d+n\d+k\d+)")
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True)
class Compiled:
    """One kernel with one set of constants."""

    kernel: str
    registers: int
    """A thread."""
    shared_bytes: int
    """A program."""
    spilled_bytes: int
    """Of registers to memory, a thread."""
    warps: int
    products: tuple[str, ...]
    """The shapes of the tensor cores' products that it is made of, of wgmma or mma."""


class _NoDevice(DriverBase):  # type: ignore[misc]
    """What the compiler asks of a driver."""

    def __init__(self, capability: int) -> None:
        self._capability = capability

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_active_torch_device(self) -> str:
        return "meta"

    def get_benchmarker(self) -> Callable[..., Any]:
        raise RuntimeError("there is no device to measure on")

    def get_current_device(self) -> int:
        return self._capability  # what was compiled is kept by device, and must not be mixed up

    def get_current_stream(self, device: int) -> int:
        return device


@contextmanager
def launches_compiled(capability: int) -> Iterator[list[Any]]:
    """Within, launches compile for `sm_{capability}` instead; yields what they made, in order.

    For a process that launches nothing afterwards: the stand-in stays Triton's driver.
    """
    made: list[Any] = []

    def compiled(function: Any, grid: object) -> Callable[..., None]:
        def launch(*arguments: object, **constants: object) -> None:
            made.append(function.run(*arguments, grid=grid, warmup=True, **constants))

        return launch

    launching = JITFunction.__getitem__
    driver.set_active(_NoDevice(capability))
    JITFunction.__getitem__ = compiled
    try:
        yield made
    finally:
        JITFunction.__getitem__ = launching


def usage(made: Any) -> Compiled:
    """What a compiled kernel takes of a processor."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(made.asm["cubin"])
        command = [str(tool), "-res-usage", str(binary)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = _USAGE.search(said)
    if found is None:
        raise ValueError(f"cuobjdump says {said!r}, expected registers and shared memory")
    registers, stack, _, local = (int(number) for number in found.groups())
    meta = made.metadata
    kind = "wgmma" if "wgmma" in made.asm["ptx"] else "mma"
    products = tuple(sorted({f"{kind} {size}" for size in _PRODUCT.findall(made.asm["ptx"])}))
    return Compiled(meta.name, registers, meta.shared, stack + local, meta.num_warps, products)


def compile_cases(capability: int, wanted: Sequence[Case]) -> list[tuple[Case, list[Compiled]]]:
    """Each case with the kernels that it launches, for one kind of GPU.

    Float8 needs sm_89: an older GPU gets no case with it, and its launchers refuse it.
    """
    meta = torch.device("meta")
    found = []
    for case in wanted:
        if capability < 89 and "fp8" in case.variant:
            continue
        with launches_compiled(capability) as made:
            case.prepare(meta).run()
        found.append((case, [usage(one) for one in made]))
    return found
