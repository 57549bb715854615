"""How a core fails when a laboratory asks it to: an engine that hangs, a core that will not answer.

Both stand around what does the work, and only if the core's settings have a door for faults.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence

from firstlight.core_node.admission import Offer
from firstlight.core_node.backends.backend import Backend, Broken, Deliver
from firstlight.core_node.step_log import StepRecord
from firstlight.shared.blocks import BlockCounts, Buffer
from firstlight.shared.clock import sleep_s
from firstlight.shared.engine.kv.manager import Moves
from firstlight.shared.engine.plan import Runner, StepPlan, StepRows
from firstlight.shared.errors import CapacityError
from firstlight.shared.faults import Failing
from firstlight.shared.types import Hint, Load, Mark, Request

LOOK_S = 0.01
"""How often an engine that hangs looks whether it still shall."""
RETRY_AFTER_S = 1.0


class HangingRunner:
    """`plan.Runner` whose steps do not end while the core shall hang."""

    def __init__(
        self, runner: Runner, state: Failing, *, wait_s: Callable[[float], None] = sleep_s
    ) -> None:
        self._runner, self._state, self._wait_s = runner, state, wait_s

    @property
    def vocab(self) -> int:
        """As of the runner."""
        return self._runner.vocab

    @property
    def block_bytes(self) -> int:
        """As of the runner."""
        return self._runner.block_bytes

    def run(self, plan: StepPlan) -> StepRows:
        """The rows, once the core need not hang."""
        while self._state.hang:
            self._wait_s(LOOK_S)
        return self._runner.run(plan)

    def move(self, moves: Moves) -> None:
        """As the runner does."""
        self._runner.move(moves)

    def read_block(self, block: int) -> bytes:
        """As of the runner."""
        return self._runner.read_block(block)

    def read_slot(self, slot: int) -> bytes:
        """As of the runner."""
        return self._runner.read_slot(slot)

    def write_slot(self, slot: int, payload: Buffer) -> None:
        """As of the runner."""
        self._runner.write_slot(slot, payload)

    def scrub(self, blocks: Sequence[int]) -> None:
        """As of the runner."""
        self._runner.scrub(blocks)


class FailingBackend:
    """`Backend` that refuses what is opened, or takes it and forgets it, while it shall."""

    def __init__(self, backend: Backend, state: Failing) -> None:
        self._backend, self._state = backend, state
        self.offer: Offer = backend.offer
        self._forgotten: set[str] = set()
        """Handles that it took and never told anybody of, until they are cancelled: at most as
        many as the links have assignments."""

    def start(self, loop: AbstractEventLoop, deliver: Deliver, broken: Broken) -> None:
        """As the backend does."""
        self._backend.start(loop, deliver, broken)

    def open(self, request: Request, epoch: int, committed: tuple[int, ...], credit: int) -> None:
        """As the backend does, unless the core shall fail. Raises `CapacityError`."""
        if self._state.refuse:
            raise CapacityError("this core was told to refuse", retry_after_s=RETRY_AFTER_S)
        if self._state.silent:
            self._forgotten.add(request.id)
            return
        self._backend.open(request, epoch, committed, credit)

    def hint(self, hint: Hint) -> None:
        """As the backend does."""
        self._backend.hint(hint)

    def credit(self, handle: str, position: int) -> None:
        """As the backend does."""
        if handle not in self._forgotten:
            self._backend.credit(handle, position)

    def cancel(self, handle: str) -> bool:
        """As the backend does; of what was forgotten nothing is left."""
        if handle in self._forgotten:
            self._forgotten.discard(handle)
            return False
        return self._backend.cancel(handle)

    def marks(self, handle: str) -> tuple[Mark, ...]:
        """As of the backend."""
        return self._backend.marks(handle)

    def flush_cache(self) -> None:
        """As the backend does."""
        self._backend.flush_cache()

    def load(self) -> Load:
        """As of the backend: a silent core looks idle."""
        return self._backend.load()

    def blocks(self) -> BlockCounts:
        """As of the backend."""
        return self._backend.blocks()

    def host_blocks(self) -> BlockCounts:
        """As of the backend."""
        return self._backend.host_blocks()

    def steps(self) -> tuple[StepRecord, ...]:
        """As of the backend."""
        return self._backend.steps()

    def stop(self) -> None:
        """As the backend does."""
        self._backend.stop()
