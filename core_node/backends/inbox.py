"""What reached a core since its engine's last step, and what of it may wait. Sans-IO.

    opens      `OPENS_WAITING_MAX`, one more is refused; a cancel takes one out again
    credits    the highest position a request, since credit is never taken back
    hints      `HINTS_WAITING_MAX`, the oldest gives way: a hint is worth less the older it is
    cancels    one a request
    expects    the latest a request
    lands      bounded by the caller, who counts what has not come back as landed
    reads      `READS_WAITING_MAX`, one more is refused

What is kept for each request is bounded by the requests that a core has. Not thread-safe: its owner
holds a lock around every call.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from firstlight.shared.blocks import Buffer
from firstlight.shared.drafting.prefilltimes import PrefillTimes, pairs
from firstlight.shared.errors import CapacityError
from firstlight.shared.types import Hint, Load, Request

OPENS_WAITING_MAX = 256
HINTS_WAITING_MAX = 4096
READS_WAITING_MAX = 16
SOURCES_MAX = 32
"""Sources of dropped hints that are counted each by itself; the others are counted together."""
OTHER_SOURCE = "other"

Found = list[bytes | None]
Read = tuple[Sequence[bytes], Callable[[Found], object]]
"""Hashes of blocks, and who is told their KV, on whatever thread."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A request that waits for the engine to take it."""

    request: Request
    epoch: int
    committed: tuple[int, ...]
    credit: int
    arrived_s: float

    @property
    def tokens(self) -> int:
        """Prompt and committed ids."""
        return len(self.request.prompt) + len(self.committed)


class Inbox:
    """Filled between two steps and then taken as a whole; its owner begins a new one."""

    def __init__(self) -> None:
        self.opens: dict[str, Opened] = {}
        self.credits: dict[str, int] = {}
        """Handle → position up to which commits are allowed."""
        self.hints: deque[Hint] = deque()
        self.hint_ids_dropped: Counter[str] = Counter()
        """By source, of the hints that gave way."""
        self.cancels: set[str] = set()
        self.flush = False
        """Forget what is cached."""
        self.expects: dict[str, tuple[int, float]] = {}
        """Handle → (blocks, seconds to wait for them); 0 blocks: no more of them come."""
        self.lands: list[tuple[bytes, Buffer]] = []
        self.reads: list[Read] = []

    def __bool__(self) -> bool:
        """Whether there is anything in it."""
        return bool(
            self.opens
            or self.credits
            or self.hints
            or self.cancels
            or self.flush
            or self.expects
            or self.lands
            or self.reads
        )

    def open(self, item: Opened) -> None:
        """Take a request in. Raises `CapacityError`."""
        waiting = len(self.opens)
        if waiting >= OPENS_WAITING_MAX:
            raise CapacityError(
                f"{waiting} requests wait for the next step, the most that may", retry_after_s=1.0
            )
        self.opens[item.request.id] = item

    def hint(self, hint: Hint) -> None:
        """Keep a hint; beyond the limit the oldest gives way, and its ids are counted."""
        if len(self.hints) >= HINTS_WAITING_MAX:
            oldest, dropped = self.hints.popleft(), self.hint_ids_dropped
            known = oldest.source in dropped or len(dropped) < SOURCES_MAX
            dropped[oldest.source if known else OTHER_SOURCE] += len(oldest.ids)
        self.hints.append(hint)

    def credit(self, handle: str, position: int) -> None:
        """Allow commits up to `position`, or what was allowed if that is more."""
        self.credits[handle] = max(self.credits.get(handle, 0), position)

    def cancel(self, handle: str) -> bool:
        """Stop a request. False if it had only been opened here: then nothing is left of it."""
        self.credits.pop(handle, None)
        if self.opens.pop(handle, None) is not None:
            return False
        self.cancels.add(handle)
        return True

    def expect(self, handle: str, blocks: int, hold_s: float) -> None:
        """The first `blocks` blocks of a request will land; it waits up to `hold_s` for them."""
        self.expects[handle] = (blocks, hold_s)

    def no_more(self, handle: str) -> None:
        """Nothing else will land for a request; what was expected since the last step may have."""
        blocks, _ = self.expects.get(handle, (0, 0.0))
        self.expects[handle] = (blocks, 0.0)

    def land(self, block_hash: bytes, payload: Buffer) -> None:
        """A block's KV from elsewhere."""
        self.lands.append((block_hash, payload))

    def read(self, hashes: Sequence[bytes], tell: Callable[[Found], object]) -> None:
        """Somebody wants the KV of blocks. Raises `CapacityError`."""
        if len(self.reads) >= READS_WAITING_MAX:
            raise CapacityError(f"{READS_WAITING_MAX} reads wait for the next step")
        self.reads.append((hashes, tell))

    def counted_in(self, load: Load) -> Load:
        """A load with the requests that wait here among those that are queued."""
        if not self.opens:
            return load
        tokens = [item.tokens for item in self.opens.values()]
        rates = PrefillTimes(load.prefill_token_ms, load.prefill_pair_ms)
        return replace(
            load,
            queued=load.queued + len(tokens),
            queued_prefill_tokens=load.queued_prefill_tokens + sum(tokens),
            queued_prefill_ms=load.queued_prefill_ms
            + sum(rates.ms(count, pairs(count, 0)) for count in tokens),
        )
