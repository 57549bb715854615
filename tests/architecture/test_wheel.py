"""What is installed is what is here: sdist, then a wheel from it, module by module."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOP = ("edge_node", "core_node", "global_lb", "shared", "kernels", "infra")


def test_a_wheel_built_from_the_sdist_holds_every_module(tmp_path: Path) -> None:
    expected = {
        "firstlight/" + str(path.relative_to(ROOT))
        for top in TOP
        for path in (ROOT / top).rglob("*.py")
        if "__pycache__" not in path.parts
    } | {f"firstlight/{path.name}" for path in (ROOT / "src" / "firstlight").glob("*.py")}
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, "--sdist", str(ROOT)], check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    subprocess.run([*build, "--wheel", str(unpacked)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert expected <= names
    assert "firstlight/py.typed" in names
    assert not [n for n in names if n.startswith(("shared/", "kernels/", "infra/"))]
