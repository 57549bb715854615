"""`firstlight lab run`: a scenario from its file to its verdict."""

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from rich.console import Console

from firstlight.infra.bench.machine import heading
from firstlight.infra.judge.command import lines as verdict_lines
from firstlight.infra.judge.evidence import read_evidence
from firstlight.infra.judge.invariants import judge
from firstlight.infra.judge.run_file import RunRecord, read_run
from firstlight.infra.judge.verdict import Verdict
from firstlight.infra.lab.lab import Lab, start_lab
from firstlight.infra.mesh import new_run, remove_stale_runs
from firstlight.infra.scenario.conduct import Conductor
from firstlight.infra.scenario.conducted import Conducted
from firstlight.infra.scenario.report import Report
from firstlight.infra.scenario.scenario import Scenario
from firstlight.infra.scenario.scenario_file import find_scenario, load_scenario
from firstlight.shared.clock import monotonic_s
from firstlight.shared.config import state_dir
from firstlight.shared.errors import ConfigError
from firstlight.shared.history_file import SUFFIX

KEPT_MAX = 1000
"""Runs of one scenario and seed whose histories lie in one folder."""


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    scenario: str
    seed: int | None = None
    as_json: bool = False
    histories: Path | None = None
    relay: bool = False


def run_scenario(options: Options) -> int:
    """The command; exit code 0 if everything was done and kept. Raises `FirstlightError`."""
    path = find_scenario(options.scenario)
    scenario = load_scenario(path)
    seed = scenario.seed if options.seed is None else options.seed
    console = Console(highlight=False, soft_wrap=True, stderr=options.as_json)
    told = heading()
    console.print(f"{told}\n{scenario.title}", markup=False)
    begun_s = monotonic_s()
    with _own_directory() as own:
        histories = _histories(options, scenario, own)
        found, verdict = _conduct(options, scenario, seed, own, histories, console)
        report = Report(told, scenario, seed, monotonic_s() - begun_s, found, verdict)
        _show(report, histories, console)
        if verdict is not None and verdict.exit_code and options.histories is None:
            assert histories is not None
            console.print(keep(histories, Path.cwd(), f"{path.stem}-{seed}"), markup=False)
    if options.as_json:
        print(json.dumps(report.object()))
    return 0 if report.held else 1


@contextmanager
def _own_directory() -> Iterator[Path]:
    """A place for as long as the run; that of a run that was killed is removed by the next."""
    state = state_dir().absolute() / "scenarios"
    remove_stale_runs(state)
    directory, lock = new_run(state)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        lock.close()


def _histories(options: Options, scenario: Scenario, own: Path) -> Path | None:
    """Where nodes note what happens: what was asked for, or a place for as long as the run."""
    if options.histories is None:
        return own / "histories" if scenario.histories else None
    check_free(options.histories)
    return options.histories.absolute()


def check_free(directory: Path) -> None:
    """Make it; raise `ConfigError` if that cannot be, or if it has histories of other processes."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        others = any(directory.glob(f"*{SUFFIX}")) or read_run(directory) is not None
    except OSError as error:
        raise ConfigError(f"{directory}: {error.strerror}") from None
    if others:
        raise ConfigError(f"{directory}: holds another run already")


def keep(histories: Path, where: Path, name: str) -> str:
    """Copy histories to a folder that no other run has; returns what to say of it."""
    for number in range(1, KEPT_MAX + 1):
        kept = where / f"{name}{'' if number == 1 else f'-{number}'}.histories"
        try:
            shutil.copytree(histories, kept)
        except FileExistsError:
            continue
        except OSError as error:
            return f"the histories cannot be kept in {kept}: {error.strerror or error}"
        return f"the histories are kept in {kept}"
    return f"the histories are not kept: {where} has those of {KEPT_MAX} such runs"


def _conduct(
    options: Options,
    scenario: Scenario,
    seed: int,
    own: Path,
    histories: Path | None,
    console: Console,
) -> tuple[Conducted, Verdict | None]:
    """Start the laboratory, run all, end it, judge."""

    def say(line: str) -> None:
        console.print(line, markup=False, style="dim")

    file = own / "topology.yaml"
    topology = scenario.topology.model_copy(update={"seed": seed})
    document = topology.model_dump(mode="json", exclude_unset=True, by_alias=True)
    file.write_text(yaml.safe_dump(document | {"seed": seed}), encoding="utf-8")
    record: RunRecord | None = None
    with start_lab(file, state_dir(), say, relay=options.relay, histories=histories) as lab:
        if histories is not None:
            record = _record(histories, lab, scenario, seed)
        conductor = Conductor(scenario, lab, record, seed, say)
        found = conductor.run(histories)
    if record is not None:
        record.end()
    verdict = None if histories is None else judge(read_evidence([histories]))
    return found, verdict


def _record(histories: Path, lab: Lab, scenario: Scenario, seed: int) -> RunRecord:
    places = sorted({load.at for phase in scenario.phases for load in phase.load})
    command = shlex.join(["firstlight", *sys.argv[1:]])
    return RunRecord.begin(
        histories, seed=seed, command=command, nodes=[*lab.mesh.plan.names, *places]
    )


def _show(report: Report, histories: Path | None, console: Console) -> None:
    for line in (*report.table(), *report.lines()):
        console.print(line, markup=False)
    if report.verdict is not None and histories is not None:
        run = read_run(histories)
        assert run is not None
        for line in verdict_lines(report.verdict, run):
            console.print(line, markup=False)
