"""The kernels for GPUs, measured, or compiled for GPUs that are not here.

    python -m firstlight.infra.bench.kernels [--json FILE] [--only WORD]
    python -m firstlight.infra.bench.kernels expect
    python -m firstlight.infra.bench.kernels compile [--sm 90] [--only WORD]

On a GPU every operation is run at the shapes of an 8B and a 70B model: first a copy and a product
of torch's, which are the ceilings; then each case against float64, its time with a cold cache, its
share of the ceiling that bounds it, and torch's own time for the same. At most eight minutes; exit
code 1 if a result is not as exact as it must be, or a case was left out for lack of time. Without a
GPU nothing is measured: it says so, prints what `expect` prints, and ends with exit code 2.

`expect` prints the least that each case must move and compute. `compile` builds every kernel at the
8B shapes for one kind of GPU, and prints registers, shared memory and products; it needs no GPU.
"""

import argparse
import json
from pathlib import Path

import torch

from firstlight.infra.bench.kernels.cases import Case, cases
from firstlight.infra.bench.kernels.measure import DeviceTimer, Measured, ceilings, measure
from firstlight.infra.bench.kernels.report import (
    as_json,
    compiled_table,
    expected_table,
    measured_head,
    measured_row,
)
from firstlight.infra.bench.kernels.shapes import LLAMA_8B, SHAPES
from firstlight.infra.bench.machine import heading


def main() -> int:
    """Exit code: 0 all well, 1 not exact or not all, 2 nothing to measure on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "what", nargs="?", default="measure", choices=("measure", "expect", "compile")
    )
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--only", default="", help="cases whose name has this word")
    parser.add_argument("--sm", type=int, default=90, help="compile for this kind of GPU")
    options = parser.parse_args()
    shapes = (LLAMA_8B,) if options.what == "compile" else SHAPES
    wanted = [case for shape in shapes for case in cases(shape) if options.only in case.name]
    if options.what == "compile":
        from firstlight.infra.bench.kernels.compiled import compile_cases

        print(compiled_table(compile_cases(options.sm, wanted)))
        return 0
    if options.what == "expect":
        print(expected_table(wanted))
        return 0
    print(heading())
    if not torch.cuda.is_available():
        print("There is no GPU here: nothing was measured. What is to be expected:")
        print(expected_table(wanted))
        return 2
    return _measure(wanted, options.json)


def _measure(wanted: list[Case], to: Path | None) -> int:
    device, timer = torch.device("cuda", 0), DeviceTimer()
    top = ceilings(device, timer)
    name = torch.cuda.get_device_name(device)
    print(
        f"{name}: copies at {top.bytes_per_s / 1e9:,.0f} GB/s, "
        f"bfloat16 products at {top.operations_per_s / 1e12:,.0f} TFLOP/s"
    )
    print(measured_head())

    def told(one: Measured) -> None:
        print(measured_row(one), flush=True)

    found, left_out = measure(wanted, device, timer, top, told)
    if to is not None:
        to.write_text(json.dumps(as_json(top, found, left_out), indent=1))
    for case in left_out:
        print(f"left out for lack of time: {case.model} {case.name}")
    return 1 if left_out or any(one.wrong for one in found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
