"""The clients of one place: on a thread that stands in its namespace, with a loop of its own."""

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from firstlight.infra.chat import Question
from firstlight.infra.lab.lab import Lab
from firstlight.infra.lab.plan import KEY
from firstlight.infra.scenario.figures import Row
from firstlight.infra.scenario.loads import Mesh, Watch, put
from firstlight.infra.scenario.scenario import LoadSpec
from firstlight.shared.errors import FirstlightError
from firstlight.shared.history_file import History
from firstlight.shared.lifecycle import loop_factory

Asking = tuple[LoadSpec, Sequence[Question]]


class Crowd:
    """All loads of a phase at one place. `start` it, then `end` it."""

    def __init__(
        self,
        lab: Lab,
        place: str,
        asked: Sequence[Asking],
        history: History | None,
        watch: Watch,
    ) -> None:
        self._lab, self._place, self._asked = lab, place, asked
        self._history, self._watch = history, watch
        self._mesh = Mesh(
            urls={edge.node: edge.url for edge in lab.mesh.plan.edges},
            ca_file=Path(lab.mesh.ca_file),
            key=KEY,
        )
        self._thread = threading.Thread(target=self._run, name=f"at {place}", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self.rows: dict[str, Row] = {}
        """Of loads that were put, whole or as far as they came."""
        self.problems: list[str] = []

    @property
    def alive(self) -> bool:
        """Whether any of it is still out."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin all loads at once."""
        self._thread.start()

    def end(self, join_s: float) -> None:
        """Cut short what is still out."""
        loop, task = self._loop, self._task
        if self.alive and loop is not None and task is not None:
            with suppress(RuntimeError):  # its loop was closed just now: it has ended by itself
                loop.call_soon_threadsafe(task.cancel)
        self._thread.join(join_s)
        if self.alive:
            self.problems.append(f"clients at {self._place} do not stop")

    def _run(self) -> None:
        try:
            with (
                self._lab.inside(self._place),
                asyncio.Runner(loop_factory=loop_factory()) as runner,
            ):
                self._loop = runner.get_loop()
                runner.run(self._put_all())
        except asyncio.CancelledError:
            pass  # cut short; the rows say so
        except Exception as error:  # a bug of ours must not end in a run that looks whole
            self.problems.append(f"clients at {self._place}: {type(error).__name__}: {error}")

    async def _put_all(self) -> None:
        self._task = asyncio.current_task()
        await asyncio.gather(*(self._put(spec, questions) for spec, questions in self._asked))

    async def _put(self, spec: LoadSpec, questions: Sequence[Question]) -> None:
        row = self.rows[spec.name] = Row()
        try:
            await put(spec, questions, self._mesh, self._history, self._watch, row)
        except FirstlightError as error:
            self.problems.append(f"{spec.name}: {error.message}")
