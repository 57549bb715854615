"""What the core's side of the links needs from whatever computes: the seam below `server`.

Calls come from the event loop and never block. Requests are named by a handle that the server
makes, one an assignment and never used twice, so results of a cancelled assignment cannot be taken
for those of its successor. Results arrive on the event loop, one `Batch` a step.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from firstlight.core_node.admission import Offer
from firstlight.core_node.step_log import StepRecord
from firstlight.shared.blocks import BlockCounts
from firstlight.shared.engine.plan import Prefix
from firstlight.shared.errors import FirstlightError
from firstlight.shared.types import Commit, Done, Hint, Load, Mark, Request

ABORTED = "abort"
"""How a request ended that its edge cancelled: the client left, or a stop string was met there."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One assignment that will get no more commits, and why."""

    handle: str
    error: FirstlightError
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """All that one step brought. `request` of commits and done is the handle."""

    commits: tuple[Commit, ...] = ()
    done: tuple[Done, ...] = ()
    failures: tuple[Failure, ...] = ()
    rows: int = 0
    """Tokens that the step computed."""
    ms: float = 0.0
    """How long it took."""
    ended_s: float = 0.0
    """When its results were there, on this core's clock."""
    prefill_tokens: int = 0
    """Of the rows, tokens of prompts."""
    drafts: tuple[tuple[int, int], ...] = ()
    """(drafted ids, how many of them agreed) of each sequence that had some."""
    preemptions: int = 0
    endings: tuple[tuple[str, str], ...] = ()
    """Of those that are done, by handle: a `FinishReason`, or `ABORTED`."""
    wanted: tuple[tuple[str, Prefix], ...] = ()
    """Requests that were just taken, by handle, and a prefix that is not here as a whole."""
    met: tuple[str, ...] = ()
    """Handles for which no more blocks need be loaded."""
    held: tuple[tuple[bytes, ...], ...] = ()
    """Chains of block hashes that are here as a whole now."""
    flushed: bool = False
    """All that was cached is forgotten, before anything else that this batch says."""
    landed_bytes: int = 0
    """Of blocks given to `land`, how much was taken in."""
    hint_ids_dropped: tuple[tuple[str, int], ...] = ()
    """By source, ids of hints that gave way to later ones before the mailbox saw them."""

    def __bool__(self) -> bool:
        """Whether it says anything but how much a step was, and how long it took."""
        return bool(
            self.commits
            or self.done
            or self.failures
            or self.wanted
            or self.met
            or self.held
            or self.flushed
            or self.landed_bytes
            or self.hint_ids_dropped
        )


Deliver = Callable[[Batch], None]
Broken = Callable[[BaseException], None]


class Backend(Protocol):
    """Computes answers. `request.id` and `hint.request` hold the handle."""

    offer: Offer

    def start(self, loop: AbstractEventLoop, deliver: Deliver, broken: Broken) -> None:
        """Begin to compute; `deliver` and `broken` are called on `loop`.

        `broken` is called at most once: the backend has failed as a whole and computes no more.
        """
        ...

    def open(self, request: Request, epoch: int, committed: tuple[int, ...], credit: int) -> None:
        """Queue a checked request. Raises `CapacityError`; later failures come in a batch."""
        ...

    def hint(self, hint: Hint) -> None:
        """Offer ids for verification; dropped if they are of no use."""
        ...

    def credit(self, handle: str, position: int) -> None:
        """Allow commits up to an absolute position."""
        ...

    def cancel(self, handle: str) -> bool:
        """Stop and free the blocks before the next step; idempotent.

        Returns whether a `Done` with its statistics will still be delivered.
        """
        ...

    def marks(self, handle: str) -> tuple[Mark, ...]:
        """What happened to an assignment so far; nothing of one that has ended."""
        ...

    def flush_cache(self) -> None:
        """Forget cached prefixes that no sequence uses."""
        ...

    def load(self) -> Load:
        """How busy it is now, everything opened so far included."""
        ...

    def blocks(self) -> BlockCounts:
        """The KV pool after the latest step."""
        ...

    def host_blocks(self) -> BlockCounts:
        """The host tier below it, as then."""
        ...

    def steps(self) -> tuple[StepRecord, ...]:
        """What the latest steps did."""
        ...

    def stop(self) -> None:
        """End computing, and wait for it (at most one step)."""
        ...
