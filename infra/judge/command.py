"""`firstlight judge`: read a run's histories, say whether it kept its promises."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from firstlight.infra.judge.evidence import read_evidence
from firstlight.infra.judge.invariants import INVARIANTS, judge
from firstlight.infra.judge.run_file import RunFile
from firstlight.infra.judge.verdict import HELD, VIOLATED, Verdict, Violation

MISSING_SHOWN_MAX = 10


def run_judge(directories: Sequence[Path], *, as_json: bool) -> int:
    """The command; returns the exit code. Raises `ConfigError` for what is no history."""
    evidence = read_evidence(directories)
    verdict = judge(evidence)
    if as_json:
        print(json.dumps(_object(verdict, evidence.run)))
    else:
        print("\n".join(lines(verdict, evidence.run)))
    return verdict.exit_code


def lines(verdict: Verdict, run: RunFile) -> list[str]:
    """What people read: the first violation, where it is, and how to see it again."""
    says = {one.name: one.says for one in INVARIANTS}
    about = f"{verdict.streams} streams, {verdict.processes} processes, {len(run.faults)} faults"
    shown: list[str] = []
    if verdict.violations:
        first = verdict.violations[0]
        shown += [
            f"violated: {first.invariant} ({says[first.invariant]}) at {first.node}",
            f"  what   {first.what}",
            f"  where  {first.where}",
            f"  run    {_seed(run)}; {about}",
            f"  again  {run.command or 'no run.json says how'}",
        ]
        rest = {one.invariant for one in verdict.violations}
        if len(verdict.violations) > 1:
            more = len(verdict.violations) - 1
            shown.append(f"  more   {more} violations in all of {', '.join(sorted(rest))}")
    elif verdict.missing:
        shown.append(f"incomplete: nothing speaks against the run, but not all is known; {about}")
    else:
        shown.append(f"held: {', '.join(verdict.held)}; {_seed(run)}; {about}")
    shown += [f"  missing  {what}" for what in verdict.missing[:MISSING_SHOWN_MAX]]
    if (more := len(verdict.missing) - MISSING_SHOWN_MAX) > 0:
        shown.append(f"  missing  … and {more} more")
    return shown


def _seed(run: RunFile) -> str:
    return "no seed" if run.seed is None else f"seed {run.seed}"


def _object(verdict: Verdict, run: RunFile) -> dict[str, Any]:
    return {
        "verdict": {HELD: "held", VIOLATED: "violated"}.get(verdict.exit_code, "incomplete"),
        "violations": [_violation(one) for one in verdict.violations],
        "missing": list(verdict.missing),
        "held": list(verdict.held),
        "streams": verdict.streams,
        "processes": verdict.processes,
        "faults": len(run.faults),
        "seed": run.seed,
        "command": run.command,
    }


def _violation(one: Violation) -> dict[str, Any]:
    line = one.said.line
    return {
        "invariant": one.invariant,
        "what": one.what,
        "node": one.node,
        "file": one.said.file,
        "line": one.said.place,
        "t": one.said.t,
        "stream": line.stream,
        "epoch": line.epoch,
        "offset": line.offset,
    }
