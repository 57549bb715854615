"""Kernels measured on a GPU: its ceilings first, then every case against them and float64."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from firstlight.infra.bench.kernels.cases import Case, Prepared, Run
from firstlight.shared.clock import monotonic_s

BUDGET_S = 420.0
"""Cases that have not begun by then are left out, and named."""
_COPY_BYTES = 2 << 30
_SQUARE = 8192


class Timer(Protocol):
    """Median milliseconds of a call on the device, with a cold cache; and the time of day."""

    def ms(self, run: Run) -> float:
        """Of one call."""
        ...

    def now_s(self) -> float:
        """Monotonic."""
        ...


class DeviceTimer:
    """Triton's own timer: warm-up, then a median of calls, the cache emptied before each."""

    def ms(self, run: Run) -> float:
        """Of one call."""
        from triton.testing import do_bench

        return float(do_bench(run, warmup=20, rep=80, return_mode="median"))

    def now_s(self) -> float:
        """Monotonic."""
        return monotonic_s()


@dataclass(frozen=True)
class Ceilings:
    """What this device reaches with torch's own copy and product."""

    bytes_per_s: float
    operations_per_s: float
    """bfloat16."""


@dataclass(frozen=True)
class Measured:
    """One case: how long, how near to its floor, how exact."""

    case: Case
    ms: float
    floor_ms: float
    """What its bytes or its operations take at the ceilings, whichever is more."""
    by_products: bool
    """Whether products, and not bytes, are what its floor is made of."""
    torch_ms: float | None
    error: float | None
    """Largest difference from float64."""
    budget: float | None
    """What the error may be: three times that of torch in the same dtype, and one unit."""

    @property
    def share(self) -> float:
        """Of the ceiling that bounds it."""
        return self.floor_ms / self.ms

    @property
    def wrong(self) -> bool:
        """Whether the error is beyond its budget, NaN included."""
        return self.error is not None and not self.error <= (self.budget or 0.0)


def ceilings(device: torch.device, timer: Timer, scale: int = 1) -> Ceilings:
    """A copy of 2 GiB and a product of 8,192³, both smaller by `scale`."""
    source = torch.empty(_COPY_BYTES // scale, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_ms = timer.ms(lambda: target.copy_(source))
    side = max(16, _SQUARE // scale)
    left, right = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    product_ms = timer.ms(lambda: left @ right)
    return Ceilings(2 * source.numel() / copy_ms * 1e3, 2 * side**3 / product_ms * 1e3)


def measure(
    wanted: Sequence[Case],
    device: torch.device,
    timer: Timer,
    top: Ceilings,
    told: Callable[[Measured], None],
) -> tuple[list[Measured], list[Case]]:
    """(what was measured, what there was no time for); `told` hears of each as it is done."""
    end_s = timer.now_s() + BUDGET_S
    found: list[Measured] = []
    for place, case in enumerate(wanted):
        if timer.now_s() > end_s:
            return found, list(wanted[place:])
        one = _measured(case, case.prepare(device), timer, top)
        found.append(one)
        told(one)
    return found, []


def floor_ms(case: Case, top: Ceilings) -> float:
    """The time below which no kernel can be on a device with these ceilings."""
    return 1e3 * max(case.bytes / top.bytes_per_s, case.operations / top.operations_per_s)


def _measured(case: Case, prepared: Prepared, timer: Timer, top: Ceilings) -> Measured:
    error, budget = None, None
    if prepared.exact is not None:
        found, eager, exact = prepared.exact()
        unit = torch.finfo(eager.dtype).eps * float(exact.abs().max())
        error = float((found.double() - exact).abs().max())
        budget = 3 * float((eager.double() - exact).abs().max()) + unit
    ms = timer.ms(prepared.run)
    torch_ms = None if prepared.torchs is None else timer.ms(prepared.torchs)
    return Measured(
        case,
        ms,
        floor_ms(case, top),
        case.operations / top.operations_per_s > case.bytes / top.bytes_per_s,
        torch_ms,
        error,
        budget,
    )
