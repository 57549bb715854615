"""The tree is as tidy as CONTRIBUTING says."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from firstlight.shared import telemetry

ROOT = Path(__file__).parents[2]
LINES_MAX = 500
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "misc", "manager"}
ALLOWED = {"shared/engine/kv/manager.py"}


def tracked() -> list[Path]:
    """Files that are in the repository, or would be; in an archive, every file."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [ROOT / name for name in listed if (ROOT / name).is_file()]


def ours() -> list[Path]:
    return [p for p in tracked() if p.suffix == ".py" and "_pb2" not in p.name]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_module_says_what_it_is() -> None:
    silent = [
        name(path)
        for path in ours()
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_no_module_is_longer_than_the_limit() -> None:
    long = {name(p): n for p in ours() if (n := len(p.read_text().splitlines())) > LINES_MAX}
    assert long == {}


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [name(p) for p in ours() if p.stem in BANNED_NAMES and name(p) not in ALLOWED] == []


@pytest.mark.parametrize(
    "pattern",
    [
        r"\b(TODO|FIXME|XXX|HACK)\b",
        r"(?<![\w.])/(work|root|home)/",
        r"raise NotImplementedError(?!\('Method)",
        r"-----BEGIN",
    ],
)
def test_nothing_unfinished_local_or_secret_is_in_the_tree(pattern: str) -> None:
    found = [
        f"{name(path)}:{number}"
        for path in tracked()
        if path != Path(__file__) and path.suffix in {".py", ".md", ".toml", ".proto", ".yaml", ""}
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert found == []


def test_no_tracked_file_is_large() -> None:
    assert [name(p) for p in tracked() if p.stat().st_size > 300_000] == []


def test_links_in_the_documents_lead_somewhere() -> None:
    broken = []
    for page in [p for p in tracked() if p.suffix == ".md"]:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{name(page)} → {target}")
    assert broken == []


def test_every_page_can_be_found_from_the_readme_or_the_map() -> None:
    linked = "".join((ROOT / page).read_text() for page in ("README.md", "ARCHITECTURE.md"))
    pages = [name(p) for p in tracked() if p.parent == ROOT / "docs" and p.suffix == ".md"]
    assert len(pages) > 5
    assert [page for page in pages if f"]({page})" not in linked] == []


def test_every_metric_is_set_somewhere() -> None:
    metrics = {metric for metric, value in vars(telemetry).items() if hasattr(value, "_labelnames")}
    product = [path for path in ours() if not name(path).startswith("tests/")]
    used = "\n".join(path.read_text() for path in product)
    assert {metric for metric in metrics if f"telemetry.{metric}" not in used} == set()
