"""What a core writes into its history: made only when one is kept, and only on the event loop.

It follows assignments by handle, from their `Open` to their one end: a commit that comes after the
end was never told to an edge, and is not written down.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from firstlight.core_node.assignments import Assignment
from firstlight.core_node.backends.backend import Backend, Batch
from firstlight.shared.blocks import BLOCK_TOKENS, BlockCounts, block_hashes, root_hash
from firstlight.shared.errors import FirstlightError
from firstlight.shared.history import Blame, Fact, What, salt_key
from firstlight.shared.history_file import History
from firstlight.shared.stream import TokenStream
from firstlight.shared.types import Commit, Request


@dataclass(slots=True)
class _Open:
    stream: str
    epoch: int
    prompt_tokens: int
    offset: int


class CoreHistory:
    """The lines of a core."""

    def __init__(self, history: History, numerics_class: str) -> None:
        self._history, self._class = history, numerics_class
        self._open: dict[str, _Open] = {}

    def opened(self, of: Assignment, request: Request, committed: Sequence[int]) -> None:
        """An assignment was taken; `request` is as its edge sent it."""
        prompt = request.prompt
        root = root_hash(tokenizer_hash=request.tokenizer_hash, salt=request.salt)
        first = block_hashes(root, prompt[:BLOCK_TOKENS])
        self._open[of.handle] = _Open(of.request, of.epoch, len(prompt), len(committed))
        self._history.note(
            What.OPENED,
            of.request,
            epoch=of.epoch,
            offset=len(committed),
            hash=TokenStream(prompt, committed).chain,
            facts={
                "edge": of.edge,
                "salt": salt_key(request.salt),
                "block": first[0].hex() if first else None,
                "numerics_class": self._class,
            },
        )

    def refused(self, stream: str, epoch: int, error: FirstlightError) -> None:
        """An `Open` was not taken."""
        self._history.note(What.REFUSED, stream, epoch=epoch, facts=Blame.of(error).facts)

    def deliver(self, batch: Batch) -> None:
        """What a step brought, before it is told to edges."""
        for commit in batch.commits:
            self._commit(commit)
        how = dict(batch.endings)
        for done in batch.done:
            self._end(done.request, What.ENDED, finish=how.get(done.request, ""))
        for failure in batch.failures:
            self.failed(failure.handle, failure.error)

    def failed(self, handle: str, error: FirstlightError) -> None:
        """An assignment ends with an error."""
        self._end(handle, What.ENDED, **Blame.of(error).facts)

    def cancelled(self, handle: str, why: str) -> None:
        """Nobody wants it any more: its edge said so, or is gone."""
        self._end(handle, What.CANCELLED, why=why)

    def fenced(self, handle: str) -> None:
        """A newer assignment of the same request took its place."""
        self._end(handle, What.FENCED)

    def drained(self, left: int) -> None:
        """Nothing new was taken any more; so many were failed at the limit."""
        self._history.note(What.DRAINED, facts={"left": left})

    def _commit(self, commit: Commit) -> None:
        one = self._open.get(commit.request)
        if one is not None:
            one.offset = commit.position + len(commit.ids) - one.prompt_tokens
            facts: dict[str, Fact] = {"count": len(commit.ids)}
            if commit.cached_tokens is not None:
                facts["cached_tokens"] = commit.cached_tokens
            self._history.note(
                What.COMMITTED,
                one.stream,
                epoch=one.epoch,
                offset=one.offset,
                hash=commit.chain,
                facts=facts,
            )

    def _end(self, handle: str, what: What, **facts: Fact) -> None:
        one = self._open.pop(handle, None)
        if one is not None:
            self._history.note(what, one.stream, epoch=one.epoch, offset=one.offset, facts=facts)


class Server(Protocol):
    """Of the links' server, what figures are made of."""

    @property
    def waiting_bytes(self) -> int:
        """What waits for edges to read it."""
        ...


def core_figures(
    backend: Backend, server: Server, disk_blocks: Callable[[], BlockCounts] = BlockCounts
) -> dict[str, Fact]:
    """How full a core is: its pool, the tiers below it, its queues."""
    load = backend.load()
    return {
        **_blocks("", backend.blocks()),
        **_blocks("host_", backend.host_blocks()),
        "disk_cached": disk_blocks().cached,
        "running": load.running,
        "queued": load.queued,
        "sequences_max": load.sequences_max,
        "waiting_bytes": server.waiting_bytes,
    }


def _blocks(tier: str, counts: BlockCounts) -> dict[str, Fact]:
    return {
        f"{tier}free": counts.free,
        f"{tier}used": counts.used,
        f"{tier}cached": counts.cached,
        f"{tier}total": counts.total,
    }
