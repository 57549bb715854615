"""`firstlight doctor`: looks at this machine and a node's settings, and says what to do.

Every check has a thread and a time of its own, so that one that hangs (a dead network drive, a
name server) costs its own answer only; a check that breaks is a finding with its error.
"""

import json
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from firstlight.infra.checks import (
    balancers,
    certificates,
    clocks,
    engine,
    machine,
    packages,
    ports,
    secrets,
)
from firstlight.infra.checks.finding import Check, Finding, Level, bad, unseen
from firstlight.infra.checks.subject import Subject, plain, sections, settings_of
from firstlight.shared.clock import monotonic_s
from firstlight.shared.config import state_dir
from firstlight.shared.errors import ConfigError
from firstlight.shared.types import Role

Look = Callable[[], list[Finding]]

CHECKS = (
    Check("packages", packages.look),
    Check("torch", engine.look_torch, engine.TORCH_S),
    Check("model", engine.look_model, engine.MODEL_S),
    Check("ports", ports.look),
    Check("open files", machine.look_files),
    Check("udp buffers", machine.look_udp),
    Check("tcp after idle", machine.look_tcp),
    Check("memory", machine.look_memory),
    Check("disks", machine.look_disks),
    Check("certificates", certificates.look),
    Check("keys", secrets.look),
    Check("clocks", clocks.look_own),
    Check("load balancers", balancers.look_named),
)
PEERS_MAX = 16
"""Other machines that are asked, one thread each; more are named, and not asked."""
_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.BAD: "bold red"}


def run_doctor(config: Path | None, role: Role | None, *, as_json: bool) -> int:
    """The command; returns 0 unless something is broken."""
    if config is not None and role is None:
        raise ConfigError("--config is given without --role: whose settings are they?")
    subject, findings = subject_of(config, role)
    with _patience():
        findings += examine(subject, checks_for(subject))
    if as_json:
        print(json.dumps(summary(findings), ensure_ascii=False), flush=True)
    else:
        console = Console(highlight=False)
        console.print(table(findings))
        console.print(verdict(findings), style="bold")
    return 1 if any(finding.level is Level.BAD for finding in findings) else 0


def _patience() -> AbstractContextManager[object]:
    """Something moves on a terminal while torch loads; standard output stays as it is."""
    console = Console(stderr=True)
    return console.status("looking, a few seconds") if console.is_terminal else nullcontext()


def subject_of(config: Path | None, role: Role | None) -> tuple[Subject, list[Finding]]:
    """What to examine. Settings that cannot be loaded are a finding, and defaults stand in."""
    state = state_dir()
    if role is None:
        return Subject(tuple((each, plain(each)) for each in Role), state, meant=False), []
    try:
        return Subject(((role, settings_of(role, config)),), state), []
    except ConfigError as error:
        said = "; ".join(error.message.splitlines())
        do = f"correct it; firstlight {role} --print-config shows every key"
        return Subject(((role, plain(role)),), state), [bad("configuration", said, do)]


def checks_for(subject: Subject) -> list[Check]:
    """The checks of this machine, and one more for each other machine that the settings name."""
    found = list(CHECKS)
    asked = dict(_peers(subject))
    for name in list(asked)[:PEERS_MAX]:
        found.append(Check(name, partial(_ask, asked[name])))
    for name in list(asked)[PEERS_MAX:]:
        why = f"only {PEERS_MAX} other machines are asked"
        found.append(Check(name, partial(_ask, partial(_tell, unseen(name, why)))))
    return found


def _ask(look: Look, subject: Subject) -> list[Finding]:
    """A check that knows what it looks at."""
    del subject
    return look()


def _tell(finding: Finding) -> list[Finding]:
    return [finding]


def _peers(subject: Subject) -> Iterator[tuple[str, Look]]:
    for address, ca in balancers.addresses(subject):
        yield f"load balancer {address}", partial(balancers.look_at, address, ca)
    for url in clocks.balancer_urls(subject):
        yield f"clock of {url}", partial(clocks.compare, url)
    yield from _servers(subject)


def _servers(subject: Subject) -> Iterator[tuple[str, Look]]:
    """Every Redis that a section names. Where the client is not installed, no section can."""
    try:
        from firstlight.infra.checks import kept
        from firstlight.shared.redis_client import RedisConfig
    except ImportError:
        return
    for role, settings in subject.nodes:
        for name, value in sections(settings):
            if isinstance(value, RedisConfig) and value.url is not None:
                yield f"{role} {name}", partial(kept.look_at, f"{role} {name}", value)


def examine(subject: Subject, checks: Sequence[Check]) -> list[Finding]:
    """What all checks find, in their order; each is given up when its time is over."""
    answers: queue.SimpleQueue[tuple[int, list[Finding]]] = queue.SimpleQueue()
    begun = monotonic_s()
    for number, check in enumerate(checks):
        threading.Thread(target=_run, args=(number, check, subject, answers), daemon=True).start()
    found: dict[int, list[Finding]] = {}
    while waiting := [n for n in range(len(checks)) if n not in found]:
        late = min(waiting, key=lambda n: checks[n].limit_s)
        try:
            number, findings = answers.get(
                timeout=max(0.0, begun + checks[late].limit_s - monotonic_s())
            )
            found.setdefault(number, findings)
        except queue.Empty:
            why = f"it took more than {checks[late].limit_s:.0f} s"
            found[late] = [unseen(checks[late].name, why, "try again; if it stays, look there")]
    return [finding for number in sorted(found) for finding in found[number]]


def _run(
    number: int,
    check: Check,
    subject: Subject,
    answers: "queue.SimpleQueue[tuple[int, list[Finding]]]",
) -> None:
    try:
        findings = check.look(subject)
    except Exception as error:  # of one check: the others still count
        seen = f"this check broke: {type(error).__name__}: {error}"
        findings = [bad(check.name, seen, "report it, with this line")]
    answers.put((number, findings))


def verdict(findings: Sequence[Finding]) -> str:
    """The last line for people."""
    broken = [one.name for one in findings if one.level is Level.BAD]
    if broken:
        return f"\nBroken: {', '.join(broken)}."
    warned = sum(one.level is Level.WARN for one in findings)
    return f"\nNothing is broken{f', {warned} to look at' if warned else ''}."


def summary(findings: Sequence[Finding]) -> dict[str, object]:
    """One object for programs."""
    counts = {str(level): sum(one.level is level for one in findings) for level in Level}
    return {
        "ok": not counts["bad"],
        "counts": counts,
        "findings": [asdict(finding) for finding in findings],
    }


def table(findings: Sequence[Finding]) -> Table:
    """For people: what is to be done stands below what was seen."""
    made = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for column in ("level", "name", "seen"):
        made.add_column(column, no_wrap=column != "seen", overflow="fold")
    for one in findings:
        seen = f"{one.seen}\n→ {one.do}" if one.do else one.seen
        made.add_row(Text(one.level, _STYLES[one.level]), Text(one.name), Text(seen))
    return made
