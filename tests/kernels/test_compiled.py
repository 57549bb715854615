"""Every kernel compiles for the GPUs that it is meant for, and takes of them what the page says.

Compiled in processes of their own: here Triton interprets.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from firstlight.infra.bench.kernels.cases import cases
from firstlight.infra.bench.kernels.report import expected_table
from firstlight.infra.bench.kernels.shapes import SHAPES

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"
TARGETS = (90, 80)
COMPILE_MAX_S = 600
REGISTERS_MAX = 255
SHARED_MAX_BYTES = {90: 227 << 10, 80: 163 << 10}
"""Of a program, by NVIDIA's table of compute capabilities."""


@pytest.fixture(scope="module")
def tables():
    """What the command prints for each target; both at once."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-m", "firstlight.infra.bench.kernels", "compile", "--sm"]
    started = {
        target: subprocess.Popen(
            [*command, str(target)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for target in TARGETS
    }
    said = {}
    for target, process in started.items():
        out, error = process.communicate(timeout=COMPILE_MAX_S)
        assert process.returncode == 0, error[-2000:]
        said[target] = out.strip()
    return said


def rows(table: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]


@pytest.mark.parametrize("target", TARGETS)
def test_every_operation_compiles_and_fits(tables, target):
    found = rows(tables[target])
    operations = {case.operation for case in cases(SHAPES[0])}
    same_as_another = {"unpack_blocks"} | ({"pack_blocks"} if target == 80 else set())
    assert {row[0].split()[0] for row in found} >= operations - same_as_another
    for _, _, registers, shared, *_ in found:
        assert int(registers) <= REGISTERS_MAX
        assert int(shared.replace(",", "")) <= SHARED_MAX_BYTES[target]


@pytest.mark.parametrize("target", TARGETS)
def test_a_product_is_made_of_one_kind_of_step_whatever_the_number_of_rows(tables, target):
    steps: dict[tuple[str, str], set[str]] = {}
    for name, kernel, *_, products in rows(tables[target]):
        if kernel in ("`matmul_kernel`", "`grouped_kernel`"):
            kinds = {re.sub(r"n\d+", "", product) for product in products.split(", ")}
            steps.setdefault((name, kernel), set()).update(kinds)
    assert len(steps) >= 6
    assert {key: kinds for key, kinds in steps.items() if len(kinds) != 1} == {}


@pytest.mark.parametrize("target", TARGETS)
def test_the_page_has_what_was_compiled(tables, target):
    assert f"### sm_{target}" in PAGE.read_text()
    assert tables[target] in PAGE.read_text()


def test_the_page_has_what_is_to_be_expected():
    assert expected_table([case for shape in SHAPES for case in cases(shape)]) in PAGE.read_text()
