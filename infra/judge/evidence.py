"""A run's histories as a judge sees them: processes, and what each said of each stream.

Lines of one process are in order; between processes nothing is ordered but by time, which is
compared only where a window of seconds is meant.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from firstlight.infra.judge.run_file import ENDING, RunFile, read_run
from firstlight.shared.errors import ConfigError
from firstlight.shared.history import LINE_BYTES_MAX, Line, What, decode
from firstlight.shared.history_file import SUFFIX

FILES_MAX = 10_000
ENDS = frozenset({What.ENDED, What.CANCELLED})


@dataclass(frozen=True, slots=True)
class Said:
    """A line, and where it stands."""

    line: Line
    file: str
    place: int
    """Line number in the file, from 1."""
    t: float
    """On the run's axis."""

    def fact(self, name: str) -> str:
        """A fact as text; empty if it is not told."""
        value = self.line.facts.get(name)
        return "" if value is None else str(value)

    def number(self, name: str) -> int:
        """A fact that is a whole number; 0 if it is not told."""
        value = self.line.facts.get(name)
        return value if isinstance(value, int) else 0

    @property
    def offset(self) -> int:
        """The line's offset; 0 if it has none."""
        return self.line.offset or 0

    @property
    def epoch(self) -> int:
        """The line's epoch; 0 if it has none."""
        return self.line.epoch or 0


@dataclass(frozen=True, slots=True)
class Telling:
    """All that one process said of one stream; of a core, of one epoch of it."""

    process: "Process"
    stream: str
    said: tuple[Said, ...]

    def of(self, *whats: What) -> list[Said]:
        """What was said of these kinds."""
        return [one for one in self.said if one.line.what in whats]


@dataclass(frozen=True)
class Process:
    """One process of a node, from its first line to its last."""

    file: str
    node: str
    role: str
    said: tuple[Said, ...]
    unreadable: int = 0
    """Lines that are no lines, but for half a line at the end of a process that was killed."""

    @property
    def began(self) -> Said:
        """Its first line."""
        return self.said[0]

    @property
    def last(self) -> Said:
        """Its last line."""
        return self.said[-1]

    @property
    def stopped(self) -> bool:
        """Whether it ended by itself, and said so."""
        return self.last.line.what is What.STOPPED

    @cached_property
    def missing(self) -> int:
        """Lines that it noted and that are not here, as far as its own count tells."""
        return self.last.line.number - len(self.said)

    @property
    def whole(self) -> bool:
        """Whether nothing is missing between its first line and its last."""
        return self.missing == 0 and self.unreadable == 0

    @cached_property
    def tellings(self) -> tuple[Telling, ...]:
        """By stream, in the order in which they appear; of a core by stream and epoch."""
        found: dict[tuple[str, int], list[Said]] = defaultdict(list)
        for one in self.said:
            if one.line.stream:
                epoch = one.epoch if self.role == "core" else 0
                found[one.line.stream, epoch].append(one)
        return tuple(Telling(self, key[0], tuple(said)) for key, said in found.items())


@dataclass(frozen=True)
class Evidence:
    """All histories of a run."""

    processes: tuple[Process, ...]
    run: RunFile = field(default_factory=RunFile)
    missing: tuple[str, ...] = ()
    """What makes the evidence incomplete, in words."""

    def of_role(self, role: str) -> Iterator[Process]:
        """Processes of one role."""
        return (process for process in self.processes if process.role == role)

    @cached_property
    def edge_tellings(self) -> tuple[Telling, ...]:
        """What edges said of streams that they accepted."""
        return tuple(
            telling
            for process in self.of_role("edge")
            for telling in process.tellings
            if telling.of(What.ACCEPTED)
        )

    @cached_property
    def core_tellings(self) -> dict[tuple[str, int], list[Telling]]:
        """What cores said of assignments that they took, by stream and epoch."""
        found: dict[tuple[str, int], list[Telling]] = defaultdict(list)
        for process in self.of_role("core"):
            for telling in process.tellings:
                if opened := telling.of(What.OPENED):
                    found[telling.stream, opened[0].epoch].append(telling)
        return dict(found)

    def explained(self, process: Process) -> bool:
        """Whether a fault of the run accounts for this process' end."""
        still_frozen = self.run.struck(process.node, {"freeze"}, since=float("inf"))
        return still_frozen or self.run.struck(process.node, ENDING, since=process.began.t)


def read_evidence(directories: Sequence[Path]) -> Evidence:
    """All histories below these directories. Raises `ConfigError` if one is not there, or all are
    empty."""
    for directory in directories:
        if not directory.exists():
            raise ConfigError(f"{directory}: no such folder")
    runs = [run for run in map(read_run, directories) if run is not None]
    run = runs[0] if runs else RunFile()
    files = sorted(
        {
            path
            for directory in directories
            for path in ([directory] if directory.is_file() else directory.glob(f"*{SUFFIX}"))
        }
    )
    if not files or len(files) > FILES_MAX:
        where = ", ".join(map(str, directories))
        raise ConfigError(
            f"{where}: {len(files)} histories (*{SUFFIX}), from 1 to {FILES_MAX} expected"
        )
    axis = _Axis(run)
    processes = tuple(process for path in files for process in _read(path, axis))
    evidence = Evidence(processes, run)
    return Evidence(processes, run, tuple(_incomplete(evidence)))


def _incomplete(evidence: Evidence) -> Iterator[str]:
    names = {process.node for process in evidence.processes}
    for node in evidence.run.nodes:
        if node not in names:
            yield f"{node} left no history"
    for process in evidence.processes:
        if not process.whole:
            lost = max(process.missing, process.unreadable)
            yield f"{process.file}: {lost} lines are missing or cannot be read"
        open_end = not process.stopped and not evidence.explained(process)
        if open_end and not evidence.run.ended:
            yield f"{process.file}: {process.node} still runs, or was killed by no fault of the run"


class _Axis:
    """Brings the clocks of processes together: machines that were started apart, by the date."""

    def __init__(self, run: RunFile) -> None:
        self._boot, self._offset = run.boot, run.unix - run.t

    def shift(self, began: Line) -> float:
        """What to add to a process' times. The first process' clock is the run's, if none is."""
        unix, boot = began.facts.get("unix"), str(began.facts.get("boot", ""))
        offset = (unix if isinstance(unix, int | float) else began.t) - began.t
        if not self._boot:
            self._boot, self._offset = boot, offset
        return 0.0 if boot == self._boot else offset - self._offset


def _read(path: Path, axis: _Axis) -> Iterator[Process]:
    """The processes that wrote into one file, one after the other."""
    said: list[Said] = []
    unreadable, shift = 0, 0.0
    with path.open("rb") as file:
        place = 0
        while text := file.readline(LINE_BYTES_MAX + 1):
            place += 1
            if not text.endswith(b"\n") and len(text) <= LINE_BYTES_MAX:
                break  # the last thing that a killed process wrote
            try:
                line = decode(text)
            except ConfigError:
                unreadable += 1
                continue
            if line.what is What.BEGAN:
                if said:
                    yield _process(path, said, unreadable)
                said, unreadable, shift = [], 0, axis.shift(line)
            said.append(Said(line, path.name, place, line.t + shift))
    if said:
        yield _process(path, said, unreadable)
    elif unreadable:
        raise ConfigError(f"{path}: no line of it is one of a history")


def _process(path: Path, said: list[Said], unreadable: int) -> Process:
    began = said[0]
    if began.line.what is not What.BEGAN:
        raise ConfigError(f"{path}: its first line is {began.line.what}, not {What.BEGAN}")
    node, role = began.fact("node"), began.fact("role")
    return Process(path.name, node, role, tuple(said), unreadable)
