"""The kernels on one GPU: which it is, what it can, how much memory it has left.

The operations themselves are those of `kernels.ops`, called with this form. This is the only module
that asks CUDA about a device.
"""

import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import triton

from firstlight.kernels.gpu.capture import Capture, CudaGraphs, launch_again
from firstlight.kernels.gpu.launch import INTERPRETED

ARCHITECTURE_MIN = (8, 0)
FLOAT8_MIN = (8, 9)


@dataclass(frozen=True)
class Found:
    """What CUDA says of this machine."""

    cuda: str | None
    """Version that torch was built with; None: without."""
    architectures: tuple[tuple[int, int], ...] = ()
    """Of each GPU: 9, 0 for sm_90."""


@dataclass(frozen=True)
class GpuKernels:
    """The set of operations for a model on `device`."""

    device: torch.device
    architecture: tuple[int, int] | None
    """None: there is no GPU, and kernels are interpreted, or torch's."""
    free_bytes: int
    """Memory of the device that nobody had taken when it was opened."""
    capture: Capture = launch_again
    form: str = "gpu"
    """What `kernels.ops` is asked for."""

    def __post_init__(self) -> None:
        """Refuse a form that cannot run there."""
        if self.form == "gpu" and self.device.type == "cpu" and not INTERPRETED:
            raise ValueError(f"kernels gpu on {self.device}, expected a GPU")

    @property
    def signature(self) -> str:
        """All about it that can change a bit of a result: neither graphs nor which GPU of its kind.

        What compiles a kernel decides in which order its sums are added up.
        """
        if self.architecture is None:
            return f"{self.form} interpreted" if self.form == "gpu" else self.form
        return f"{self.form} {_name(self.architecture)} triton={triton.__version__}"

    def here(self) -> AbstractContextManager[object]:
        """What is launched inside goes to this GPU, whichever is the thread's own."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def wait(self) -> None:
        """Until what this thread launched there is done."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def check_weights(self, form: str) -> None:
        """Whether products here take weights of this form.

        Raises:
            ValueError: the GPU is too old for it.

        """
        if form == "fp8" and self.architecture is not None and self.architecture < FLOAT8_MIN:
            raise ValueError(
                f"weights of fp8 need {_name(FLOAT8_MIN)} or later, and {self.device} is "
                f"{_name(self.architecture)}"
            )


def find() -> Found:
    """The GPUs of this machine."""
    if torch.version.cuda is None:
        return Found(None)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    each = (torch.cuda.get_device_capability(place) for place in range(count))
    return Found(torch.version.cuda, tuple(each))


def choose(device: str, found: Found) -> tuple[int, tuple[int, int]]:
    """(number, architecture) of the GPU called `device`: cuda is the first one.

    Raises:
        ValueError: names the device and what was found instead.

    """
    match = re.fullmatch(r"cuda(?::(\d{1,3}))?", device)
    if match is None:
        raise ValueError(f"device is {device!r}, expected cpu, cuda, or cuda:1 for the second GPU")
    if found.cuda is None:
        raise ValueError(
            f"device is {device!r}, and this torch ({torch.__version__}) was built without CUDA"
        )
    number = int(match[1] or 0)
    if number >= len(found.architectures):
        names = ", ".join(map(_name, found.architectures)) or "none"
        raise ValueError(
            f"device is {device!r}, and CUDA {found.cuda} finds {len(found.architectures)} GPUs "
            f"here ({names})"
        )
    architecture = found.architectures[number]
    if architecture < ARCHITECTURE_MIN:
        raise ValueError(
            f"device {device!r} is {_name(architecture)}, expected {_name(ARCHITECTURE_MIN)} or "
            "later"
        )
    return number, architecture


def on_gpu(device: str, *, graphs: bool) -> GpuKernels:
    """The kernels on this GPU.

    Raises:
        ValueError: as `choose`; or others have the GPU, or all of its memory.

    """
    number, architecture = choose(device, find())
    place = torch.device("cuda", number)
    try:
        free_bytes, _ = torch.cuda.mem_get_info(place)
    except RuntimeError as error:
        raise ValueError(f"device is {device!r}, and CUDA cannot open it: {error}") from error
    capture = CudaGraphs(place) if graphs else launch_again
    return GpuKernels(place, architecture, free_bytes, capture)


def _name(architecture: tuple[int, int]) -> str:
    return "sm_{}{}".format(*architecture)
