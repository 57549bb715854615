"""A bar on a terminal while a run goes on; nothing where nobody looks."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from firstlight.infra.bench.load.run import Run


class Watcher:
    """Shows runs on standard error, if that is a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}"),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None, state="")

    def begin(self, name: str) -> None:
        """What comes next is called so."""
        self._progress.reset(self._task, description=escape(name), total=None, state="")

    def show(self, run: Run) -> None:
        """How far this run is."""
        missed = sum(record.miss is not None for record in run.records)
        cpu = f", CPU {run.cpu_shares[-1]:.0%}" if run.cpu_shares else ""
        state = f"{run.outstanding} out, {missed} missed{cpu}"
        done = len(run.records) - run.outstanding
        self._progress.update(self._task, total=run.planned, completed=done, state=state)

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the bar away."""
        self._progress.stop()
