"""What a judge says: which promise was broken, where, and how to see it again."""

from dataclasses import dataclass

from firstlight.infra.judge.evidence import Process, Said

HELD, VIOLATED, INCOMPLETE = 0, 1, 2
"""Exit codes."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One promise broken once."""

    invariant: str
    what: str
    node: str
    said: Said
    """The line that shows it."""

    @property
    def where(self) -> str:
        """File, line, stream, epoch and offset, as far as there are such."""
        line = self.said.line
        parts = [f"{self.said.file} line {self.said.place}"]
        parts += [f"stream {line.stream}"] if line.stream else []
        parts += [f"epoch {line.epoch}"] if line.epoch is not None else []
        parts += [f"offset {line.offset}"] if line.offset is not None else []
        return ", ".join(parts)


def violation(invariant: str, what: str, process: Process, said: Said) -> Violation:
    """A violation that a line of `process` shows."""
    return Violation(invariant, what, process.node, said)


@dataclass(frozen=True, slots=True)
class Verdict:
    """About a whole run."""

    violations: tuple[Violation, ...]
    """The first one first."""
    missing: tuple[str, ...]
    held: tuple[str, ...]
    """Invariants that nothing spoke against."""
    streams: int
    processes: int

    @property
    def exit_code(self) -> int:
        """What the command ends with."""
        if self.violations:
            return VIOLATED
        return INCOMPLETE if self.missing else HELD
