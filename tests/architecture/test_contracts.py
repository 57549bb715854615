"""The contracts in pyproject.toml say what the folders say."""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOP = ("edge_node", "core_node", "global_lb", "shared", "kernels", "infra")
CONTRACTS = {
    contract["name"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
}


def modules(folder: str) -> dict[str, Path]:
    """Dotted name to file of every module of ours below a top-level folder, packages included."""
    found = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = parts[:-1] if parts[-1] == "__init__" else parts
        found[".".join(("firstlight", *name))] = path
    return found


def contract(beginning: str) -> dict[str, list[str]]:
    (found,) = [value for name, value in CONTRACTS.items() if name.startswith(beginning)]
    return found


def says_sans_io(path: Path) -> bool:
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return "sans-io" in docstring.lower()


def test_every_top_level_folder_has_its_link() -> None:
    links = {p.name: p for p in (ROOT / "src" / "firstlight").iterdir() if p.is_symlink()}
    assert sorted(links) == sorted(TOP)
    assert all(path.resolve() == ROOT / name for name, path in links.items())


def test_the_torch_contract_names_every_child_of_shared_but_the_engine() -> None:
    children = {
        f"firstlight.shared.{path.stem}"
        for path in (ROOT / "shared").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    expected = (children | {"firstlight.global_lb"}) - {
        "firstlight.shared.engine",
        "firstlight.shared.__init__",
    }
    assert set(contract("The load balancer and shared")["source_modules"]) == expected


def test_the_sans_io_contract_names_modules_that_exist() -> None:
    known = {name for top in TOP for name in modules(top)}
    assert set(contract("Decisions are sans-IO")["source_modules"]) <= known


def test_every_module_that_says_it_is_sans_io_is_held_to_it() -> None:
    listed = tuple(contract("Decisions are sans-IO")["source_modules"])
    claims = {name for top in TOP for name, path in modules(top).items() if says_sans_io(path)}
    assert {name for name in claims if not name.startswith(listed)} == set()


def test_the_wire_contract_names_modules_that_exist() -> None:
    known = {name for top in TOP for name in modules(top)}
    listed = set(contract("Wire messages")["allowed_importers"])
    assert listed <= known


@pytest.mark.parametrize("name", ["edge", "core", "lb", "engine", "demo", "node", "client"])
def test_every_role_has_an_extra(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"][name]


def test_the_client_loads_nothing_that_its_extra_does_not_bring() -> None:
    heavy = "torch triton grpc google.protobuf numpy pydantic typer fastapi starlette redis"
    script = (
        f"import sys, firstlight.client; print([m for m in {heavy.split()} if m in sys.modules])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert loaded.stdout.strip() == "[]"
