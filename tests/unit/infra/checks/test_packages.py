"""Python and packages against our own metadata, with versions that stand in for installed ones."""

import pytest

from firstlight.infra.checks.finding import Level
from firstlight.infra.checks.packages import (
    Requirement,
    judge_packages,
    judge_python,
    needed,
    release,
    within,
)

METADATA = [
    "grpcio<2,>=1.85.1",
    "pydantic-settings[yaml]<3,>=2.6",
    'uvloop<1,>=0.21; sys_platform != "win32"',
    'torch<2.14,>=2.13; extra == "engine"',
    'firstlight[engine]; extra == "edge"',
    'aioquic<1.8,>=1.7.2; extra == "edge"',
    'fastapi<1,>=0.160; extra == "lb"',
    'firstlight[core,edge,lb]; extra == "demo"',
]


def names(extras: list[str], system: str = "linux") -> list[str]:
    return [one.name for one in needed(METADATA, extras, system)]


def test_a_role_needs_what_its_extra_and_the_extras_below_it_name() -> None:
    base = ["grpcio", "pydantic-settings", "uvloop"]
    assert names(["lb"]) == sorted([*base, "fastapi"])
    assert names(["edge"]) == sorted([*base, "aioquic", "torch"])


def test_a_package_of_another_system_is_not_needed() -> None:
    assert "uvloop" not in names(["lb"], "win32")


@pytest.mark.parametrize(
    ("text", "wanted", "inside"),
    [
        ("2.13.0+cpu", "<2.14,>=2.13", True),
        ("2.14", "<2.14,>=2.13", False),
        ("2.9", ">=2.13", False),
        ("2.13", ">=2.13.0", True),
        ("1.7.5", "~=1.7.2", True),
        ("1.8.0", "~=1.7.2", False),
        ("3.1.4", "==3.1.*", True),
        ("3.2", "==3.1.*", False),
        ("3.2", "!=3.2", False),
        ("1!2.0", "<=2,>1.9", True),
    ],
)
def test_a_version_is_inside_a_range_as_pip_would_say(text: str, wanted: str, inside: bool) -> None:
    assert within(release(text), wanted) is inside


@pytest.mark.parametrize(("text", "wanted"), [("unknown", ">=1"), ("1.0", "===1.0"), ("1", "@ x")])
def test_what_cannot_be_compared_is_not_guessed(text: str, wanted: str) -> None:
    assert within(release(text), wanted) is None


def test_a_missing_package_says_how_to_install_it() -> None:
    (found,) = judge_packages([Requirement("torch", "<2.14,>=2.13")], {}.get, ["core"])
    assert found.level is Level.BAD
    assert found.do == "pip install 'torch<2.14,>=2.13'"


def test_a_package_out_of_range_names_both_versions() -> None:
    have = {"torch": "2.12.1"}
    (found,) = judge_packages([Requirement("torch", "<2.14,>=2.13")], have.get, ["core"])
    assert (found.level, found.seen) == (Level.BAD, "2.12.1, expected <2.14,>=2.13")


def test_packages_in_range_are_one_finding() -> None:
    have = {"torch": "2.13.0+cpu", "numpy": "2.1"}
    wanted = [Requirement("torch", ">=2.13"), Requirement("numpy", "<3")]
    (found,) = judge_packages(wanted, have.get, ["core"])
    assert (found.level, found.seen) == (Level.OK, "2 of core are installed and in range")


@pytest.mark.parametrize(
    ("running", "level"), [((3, 11, 0), Level.OK), ((3, 10, 9), Level.BAD), ((3, 14), Level.OK)]
)
def test_python_is_judged_by_the_declared_range(running: tuple[int, ...], level: Level) -> None:
    assert judge_python(running, ">=3.11").level is level
