"""The engine on its own thread, for tests: a runner that can be held back, and all that it told."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from doubles import VOCAB, PagedRunner, config

from firstlight.core_node.admission import Offer
from firstlight.core_node.backends.backend import Batch
from firstlight.core_node.backends.native import NativeBackend
from firstlight.core_node.drafting import DraftingSection
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.plan import StepPlan, StepRows
from firstlight.shared.errors import ErrorKind
from firstlight.shared.stream import TokenStream

OFFER = Offer(("m",), "t", VOCAB, 256)
CREDIT = 10_000


class GatedRunner(PagedRunner):
    """A `PagedRunner` whose steps a test can hold back, and make fail."""

    def __init__(self, blocks: int = 32) -> None:
        super().__init__(blocks)
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.error: BaseException | None = None

    def run(self, plan: StepPlan) -> StepRows:
        self.entered.set()
        assert self.open.wait(10), "the test forgot to open the gate"
        if self.error is not None:
            raise self.error
        return super().run(plan)


@dataclass
class Bench:
    """A backend, and all that it delivered."""

    backend: NativeBackend
    engine: Engine
    runner: GatedRunner
    batches: list[Batch] = field(default_factory=list)
    broken: list[BaseException] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)

    def start(self) -> None:
        self.backend.start(asyncio.get_running_loop(), self._deliver, self.broken.append)

    def _deliver(self, batch: Batch) -> None:
        self.threads.add(threading.current_thread().name)
        self.batches.append(batch)

    def ids(self, handle: str) -> list[int]:
        """What was committed, checked for gaps and for its chain."""
        ids: list[int] = []
        for commit in (c for batch in self.batches for c in batch.commits if c.request == handle):
            assert commit.position == 3 + len(ids)
            ids.extend(commit.ids)
            assert commit.chain == TokenStream((1, 2, 3), ids).chain
        return ids

    def done(self, handle: str) -> list[object]:
        return [d.hints for batch in self.batches for d in batch.done if d.request == handle]

    def marks(self, handle: str) -> dict[str, str]:
        """What was told of an ended one: detail by mark, in order."""
        ended = [(d.request, d.marks) for batch in self.batches for d in batch.done]
        ended += [(f.handle, f.marks) for batch in self.batches for f in batch.failures]
        [marks] = [marks for name, marks in ended if name == handle]
        assert [mark.ms for mark in marks] == sorted(mark.ms for mark in marks)
        return {mark.what: mark.detail for mark in marks}

    def failures(self) -> dict[str, ErrorKind]:
        return {f.handle: f.error.kind for batch in self.batches for f in batch.failures}

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.002)


def build(*, ngram: bool = False, **changes: object) -> Bench:
    runner = GatedRunner()
    limits = config(**changes)
    engine = Engine(runner, limits)
    backend = NativeBackend(
        engine, OFFER, hint_ids_max=limits.hint_ids_max, drafting=DraftingSection(ngram=ngram)
    )
    return Bench(backend, engine, runner)
