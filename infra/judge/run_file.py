"""`run.json`, beside a run's histories: its seed, the command that repeats it, and its faults.

Whoever runs a scenario writes it as it goes, whole at each change, so that a run that was killed
has left what it had done until then. The times are those of `shared.clock.monotonic_s`, as in the
histories.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from firstlight.shared.clock import monotonic_s, unix_s
from firstlight.shared.errors import ConfigError
from firstlight.shared.history_file import boot

NAME = "run.json"
FAULTS_MAX = 10_000
BYTES_MAX = 16 << 20
RECOVERY_S = 30.0
"""How soon after a fault something succeeds again, unless the fault says otherwise."""

ENDING = frozenset({"kill", "restart", "region", "memory"})
"""Kinds of faults that a process ends of."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was done to a mesh."""

    t: float
    kind: str
    """As `kill`, `freeze`, `partition`; what no set above has explains nothing."""
    targets: tuple[str, ...]
    """Nodes that it struck: of a partition both ends, of a region all that stand there."""
    until: float | None = None
    """When it was taken back; None: never, or it has no duration."""
    within_s: float = RECOVERY_S
    """If requests are accepted so soon after it is over, one of them must have succeeded."""

    @property
    def over(self) -> float:
        """When nothing of it was left to do; of one that lasts to the end, when it began."""
        return self.t if self.until is None or self.until == float("inf") else self.until

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.kind} of {', '.join(self.targets)}" if self.targets else self.kind


@dataclass(frozen=True, slots=True)
class RunFile:
    """What is known of a run."""

    seed: int | None = None
    command: str = ""
    boot: str = ""
    t: float = 0.0
    unix: float = 0.0
    nodes: tuple[str, ...] = ()
    """All that should have left a history."""
    faults: tuple[Fault, ...] = ()
    ended: bool = False
    """The run came to its end, and its nodes were told to stop."""

    def struck(
        self, node: str, kinds: Collection[str], since: float, until: float = float("inf")
    ) -> bool:
        """Whether such a fault struck this node between these times, or lasted into them."""
        return any(
            fault.kind in kinds
            and node in fault.targets
            and fault.t <= until
            and (fault.until or fault.t) >= since
            for fault in self.faults
        )


@dataclass(slots=True)
class RunRecord:
    """Writes `run.json`. For whoever runs a scenario."""

    directory: Path
    run: RunFile = field(default_factory=RunFile)

    @staticmethod
    def begin(
        directory: Path, *, seed: int | None, command: str, nodes: Sequence[str] = ()
    ) -> "RunRecord":
        """A run begins; its nodes write their histories into `directory` too."""
        directory.mkdir(parents=True, exist_ok=True)
        run = RunFile(seed, command, boot(), monotonic_s(), unix_s(), tuple(nodes))
        record = RunRecord(directory, run)
        record.write()
        return record

    def fault(
        self, kind: str, *targets: str, within_s: float = RECOVERY_S, lasting: bool = False
    ) -> int:
        """A fault is done now, before it takes effect; returns its number, for `over`."""
        if len(self.run.faults) >= FAULTS_MAX:
            raise ConfigError(f"{FAULTS_MAX} faults, the most that a run may have")
        until = float("inf") if lasting else None
        fault = Fault(monotonic_s(), kind, targets, until, within_s)
        self.run = replace(self.run, faults=(*self.run.faults, fault))
        self.write()
        return len(self.run.faults) - 1

    def over(self, number: int) -> None:
        """A lasting fault was taken back."""
        faults = list(self.run.faults)
        faults[number] = replace(faults[number], until=monotonic_s())
        self.run = replace(self.run, faults=tuple(faults))
        self.write()

    def failed(self, number: int) -> None:
        """It could not be done: it struck nobody, and excuses nothing."""
        faults = list(self.run.faults)
        faults[number] = replace(faults[number], targets=(), until=monotonic_s())
        self.run = replace(self.run, faults=tuple(faults))
        self.write()

    def end(self) -> None:
        """All was done, and the nodes were told to stop."""
        self.run = replace(self.run, ended=True)
        self.write()

    def write(self) -> None:
        """Put the file there, at once and whole."""
        path = self.directory / NAME
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self.run), indent=1) + "\n", encoding="utf-8")
        partial.replace(path)


def read_run(directory: Path) -> RunFile | None:
    """What `RunRecord` wrote; None if there is no such file. Raises `ConfigError` for another."""
    path = directory / NAME
    try:
        if path.stat().st_size > BYTES_MAX:
            raise ConfigError(f"{path}: larger than {BYTES_MAX} bytes")
        fields = json.loads(path.read_text(encoding="utf-8"))
        given = fields.pop("faults", ())
        faults = tuple(Fault(**{**one, "targets": tuple(one["targets"])}) for one in given)
        nodes = tuple(map(str, fields.pop("nodes", ())))
        return RunFile(**fields, faults=faults, nodes=nodes)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} is no record of a run: {error}") from None
