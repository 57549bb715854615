"""The tables: what was measured, what is to be expected, what a compiled kernel takes."""

from collections.abc import Sequence
from dataclasses import asdict

from firstlight.infra.bench.kernels.cases import Case
from firstlight.infra.bench.kernels.compiled import Compiled
from firstlight.infra.bench.kernels.measure import Ceilings, Measured


def measured_row(one: Measured) -> str:
    """A line of the table of `measured_head`."""
    case = one.case
    rate = (
        f"{case.operations / one.ms / 1e9:,.0f} TFLOP/s"
        if one.by_products
        else f"{case.bytes / one.ms / 1e6:,.0f} GB/s"
    )
    theirs = "–" if one.torch_ms is None else f"{one.torch_ms:.3f}"
    exact = "–" if one.error is None else f"{one.error:.1e} of {one.budget:.1e}"
    if one.wrong:
        exact += " WRONG"
    cells = (case.name, case.model, case.shape, f"{one.ms:.3f}", rate)
    return _row((*cells, f"{one.share:.0%}", theirs, exact))


def measured_head() -> str:
    """Two lines that begin the table."""
    return _head(
        ("operation", "model", "shape", "ms", "rate", "of ceiling", "torch ms", "error of allowed")
    )


def expected_table(cases: Sequence[Case]) -> str:
    """Bytes and operations of each case, and operations a byte: unmeasured, from the shapes."""
    rows = [
        _row(
            (
                case.name,
                case.model,
                case.shape,
                f"{case.bytes / 1e6:,.1f}",
                f"{case.operations / 1e9:,.1f}" if case.operations else "–",
                f"{case.operations / case.bytes:,.0f}" if case.operations else "–",
            )
        )
        for case in cases
    ]
    head = ("operation", "model", "shape", "MB", "GFLOP", "FLOP a byte")
    return "\n".join((_head(head), *rows))


def compiled_table(found: Sequence[tuple[Case, Sequence[Compiled]]]) -> str:
    """Every kernel with every set of constants once, under the case that it came with first."""
    rows, known = [], set()
    for case, kernels in found:
        for one in kernels:
            if one in known:
                continue
            known.add(one)
            rows.append(
                _row(
                    (
                        case.name,
                        f"`{one.kernel}`",
                        str(one.registers),
                        f"{one.shared_bytes:,}",
                        str(one.spilled_bytes),
                        str(one.warps),
                        ", ".join(one.products) or "–",
                    )
                )
            )
    head = ("operation", "kernel", "registers", "shared bytes", "spilled", "warps", "products")
    return "\n".join((_head(head), *rows))


def as_json(
    top: Ceilings, measured: Sequence[Measured], left_out: Sequence[Case]
) -> dict[str, object]:
    """All that was measured, for a machine."""
    return {
        "ceilings": asdict(top),
        "cases": [
            {
                "operation": one.case.name,
                "model": one.case.model,
                "shape": one.case.shape,
                "bytes": one.case.bytes,
                "operations": one.case.operations,
                "ms": one.ms,
                "floor_ms": one.floor_ms,
                "torch_ms": one.torch_ms,
                "error": one.error,
                "budget": one.budget,
            }
            for one in measured
        ],
        "left_out": [f"{case.model} {case.name}" for case in left_out],
    }


def _head(cells: Sequence[str]) -> str:
    return f"{_row(cells)}\n|{'---|' * len(cells)}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
