"""Python, and the packages that a role needs, as our own package metadata declares them.

`packaging` is nobody's dependency here, so the few forms that our metadata uses are read by hand;
a form that is not understood is said to be so, never guessed.
"""

import platform
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version

from firstlight.infra.checks.finding import Finding, bad, ok, unseen
from firstlight.infra.checks.subject import Subject

OURS = "firstlight"
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)\s*(\[(?P<extras>[^]]*)\])?\s*\(?(?P<range>[^;)]*)\)?\s*(;(?P<marker>.*))?"
)
_MARKER = re.compile(r"\(?\s*(extra|sys_platform)\s*(==|!=)\s*['\"]([^'\"]*)['\"]\s*\)?")
_BOUND = re.compile(r"(>=|<=|==|!=|~=|<|>)\s*([0-9][^\s,]*)")

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package and the range that it must lie in."""

    name: str
    range: str


def look(subject: Subject) -> list[Finding]:
    """Python and the packages of the roles."""
    try:
        metadata = distribution(OURS)
    except PackageNotFoundError:
        why = "firstlight is not installed as a package here"
        return [unseen("packages", why, "install it: make setup")]
    extras = sorted(str(role) for role in subject.roles)
    found = [judge_python(sys.version_info[:3], str(metadata.metadata["Requires-Python"] or ""))]
    requirements = needed(metadata.requires or (), extras, sys.platform)
    return found + judge_packages(requirements, installed, extras)


def installed(name: str) -> str | None:
    """The version of an installed package; None if there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def judge_python(running: Version, wanted: str) -> Finding:
    """Whether Python is of the declared range, such as `>=3.11`."""
    shown = f"{'.'.join(map(str, running))} ({platform.python_implementation()})"
    inside = within(running, wanted)
    if inside is None:
        return unseen("python", f"the range {wanted!r} cannot be read")
    if not inside:
        return bad("python", f"{shown}, expected {wanted}", f"install Python {wanted}")
    return ok("python", shown)


def judge_packages(
    requirements: Sequence[Requirement], found: Callable[[str], str | None], extras: Sequence[str]
) -> list[Finding]:
    """One finding a package that is missing or out of range; else one for all of them."""
    findings = []
    for one in requirements:
        have = found(one.name)
        name, pip = f"package {one.name}", f"pip install '{one.name}{one.range}'"
        if have is None:
            findings.append(bad(name, "not installed", pip))
            continue
        inside = within(release(have), one.range)
        if inside is None:
            findings.append(unseen(name, f"the range {one.range!r} cannot be compared with {have}"))
        elif not inside:
            findings.append(bad(name, f"{have}, expected {one.range}", pip))
    if not findings:
        seen = f"{len(requirements)} of {', '.join(extras)} are installed and in range"
        findings.append(ok("packages", seen))
    return findings


def needed(lines: Sequence[str], extras: Sequence[str], system: str) -> list[Requirement]:
    """What the metadata's `Requires-Dist` asks for with these extras, its own extras resolved."""
    wanted, todo, seen = {}, list(extras), set(extras)
    for one in _chosen(lines, None, system):
        wanted[one.name] = one
    while todo:
        for one in _chosen(lines, todo.pop(), system):
            if one.name.partition("[")[0] == OURS:
                more = set(one.name.partition("[")[2].rstrip("]").split(",")) - seen
                seen |= more
                todo += sorted(more)
            else:
                wanted[one.name] = one
    return sorted(wanted.values(), key=lambda one: one.name)


def _chosen(lines: Sequence[str], extra: str | None, system: str) -> Iterator[Requirement]:
    """The requirements of one extra; None: those of no extra."""
    for line in lines:
        match = _REQUIREMENT.fullmatch(line.strip())
        if match is None:
            continue
        marks = _MARKER.findall(match["marker"] or "")
        if {value for key, _, value in marks if key == "extra"} != ({extra} if extra else set()):
            continue
        systems = [(sign, value) for key, sign, value in marks if key == "sys_platform"]
        if all((system == value) == (sign == "==") for sign, value in systems):
            own = f"[{match['extras'].replace(' ', '')}]" if match["name"] == OURS else ""
            yield Requirement(match["name"] + own, (match["range"] or "").strip())


def release(text: str) -> Version:
    """The numbers of a version: `2.13.0+cpu` is (2, 13, 0); empty if it begins with none."""
    match = re.match(r"(\d+!)?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match[2].split(".")) if match else ()


def within(have: Version, wanted: str) -> bool | None:
    """Whether a version lies in a range like `>=2.13,<2.14`; None if either cannot be read."""
    bounds = [_BOUND.fullmatch(part.strip()) for part in wanted.split(",") if part.strip()]
    if not have or not all(bounds):
        return None
    return all(_holds(have, match[1], match[2]) for match in bounds if match is not None)


def _holds(have: Version, sign: str, text: str) -> bool:
    wanted = release(text)
    width = max(len(have), len(wanted))
    left, right = (v + (0,) * (width - len(v)) for v in (have, wanted))
    return {
        ">=": left >= right,
        "<=": left <= right,
        ">": left > right,
        "<": left < right,
        "!=": left != right,
        "==": have[: len(wanted)] == wanted if text.endswith(".*") else left == right,
        "~=": left >= right and have[: len(wanted) - 1] == wanted[:-1],
    }[sign]
