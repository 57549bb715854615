"""The core's end of the links: frames in, frames out.

One link an edge process. Its reader turns entries into calls of the backend, its writer sends one
frame a step with everything that waits for that edge, and at least every 250 ms how the core fares.
What an edge gets wrong fails its request, or at most its link, never the process.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import grpc
import grpc.aio
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from firstlight.core_node.admission import check_open
from firstlight.core_node.assignments import Assignment, Assignments
from firstlight.core_node.backends.backend import Backend, Batch
from firstlight.core_node.history import CoreHistory
from firstlight.core_node.mailbox import HINT_IDS_MAX, SOURCE_CHARS_MAX
from firstlight.core_node.meter import Meter
from firstlight.core_node.outbox import WAITING_BYTES_MAX, Frame, Outbox
from firstlight.shared import rpc
from firstlight.shared.errors import CapacityError, FirstlightError, PeerError, RequestError
from firstlight.shared.proto import core_pb2, core_pb2_grpc
from firstlight.shared.proto.convert import (
    from_hint,
    from_open,
    to_commits,
    to_done,
    to_failed,
    to_load,
    to_node,
)
from firstlight.shared.stream import CHAIN_BYTES, CREDIT_TOKENS
from firstlight.shared.types import Done, Failed, Load, Mark, NodeInfo, Role

log = logging.getLogger(__name__)

LOAD_S = 0.25
"""A frame with the load goes out at least this often."""
LINKS_MAX = 256
LAST_WRITE_S = 0.5
"""How long a write under way may take when its link ends."""
REQUEST_ECHO_MAX = 128
"""A malformed request's id is echoed up to here."""
FLUSH_S = 2.0
"""How long the last failures may take to leave."""

Context = grpc.aio.ServicerContext[core_pb2.EdgeFrame, core_pb2.CoreFrame]


@dataclass(slots=True)
class _Link:
    number: int
    edge: str
    outbox: Outbox
    opens_counted: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    writing: bool = False
    closing: bool = False

    @property
    def empty(self) -> bool:
        """Whether all that this link was told has left."""
        return not self.outbox and not self.writing


class LinkServer:
    """Serves `firstlight.v1.Core` over one backend."""

    def __init__(
        self,
        backend: Backend,
        info: NodeInfo,
        meter: Meter,
        *,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
        history: CoreHistory | None = None,
    ) -> None:
        self._backend = backend
        self._history = history
        self.info = info
        """What links are told; the address is known once the port is bound."""
        self._meter = meter
        self._waiting_bytes_max = waiting_bytes_max
        self._links: dict[int, _Link] = {}
        self._links_made = 0
        self._assignments = Assignments()
        self._changed = asyncio.Event()
        self._open_error: FirstlightError | None = None
        self._told_to_drain = False

    @property
    def draining(self) -> bool:
        """Whether new requests are to be sent elsewhere."""
        return self._open_error is not None or self._told_to_drain

    def tell_drain(self, drain: bool) -> None:
        """An operator wants this core drained, or no longer.

        It goes on: edges go elsewhere while there is another core, and else are served.
        """
        self._told_to_drain = drain
        for link in self._links.values():
            self._wake(link)

    def load(self) -> Load:
        """What the core says of itself, to links and to load balancers."""
        return replace(self._backend.load(), draining=self.draining)

    @property
    def waiting_bytes(self) -> int:
        """What waits for edges to read it."""
        return sum(link.outbox.waiting_bytes for link in self._links.values())

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service."""
        core_pb2_grpc.add_CoreServicer_to_server(self, server)

    # What the backend brings, called on the event loop.

    def deliver(self, batch: Batch) -> None:
        """Give each link its part of a step, as one frame or merged into what it has not read."""
        if self._history is not None:
            self._history.deliver(batch)
        touched: set[int] = set()
        for commit in batch.commits:
            if (to := self._assignments.of(commit.request)) is not None:
                self._links[to.link].outbox.commit(replace(commit, request=to.request))
                touched.add(to.link)
        for done in batch.done:
            if (to := self._assignments.settle(done.request)) is not None:
                self._tell(to, done)
                touched.add(to.link)
        for failure in batch.failures:
            if (to := self._assignments.of(failure.handle)) is not None:
                self._fail(to, failure.error, failure.marks)
                touched.add(to.link)
        for number in touched:
            self._wake(self._links[number])
        asyncio.get_running_loop().call_soon(self._count, batch)  # once the frames are out

    def _count(self, batch: Batch) -> None:
        self._meter.batch(batch)
        self._meter.load(self.load())

    def fail_all(self, error: FirstlightError) -> None:
        """Fail everything that runs or waits, and refuse what still comes."""
        self._open_error = error
        for assignment in self._assignments.all():
            marks = self._backend.marks(assignment.handle)
            self._backend.cancel(assignment.handle)
            self._fail(assignment, error, marks)
        for link in self._links.values():
            self._wake(link)

    async def drain(self, limit_s: float) -> int:
        """Refuse new requests and finish what runs; returns how many were failed at the limit."""
        self._open_error = CapacityError(f"core {self.info.node} is draining", retry_after_s=1.0)
        for link in self._links.values():
            self._wake(link)
        await self._wait_until(lambda: not self._assignments, limit_s)
        left = len(self._assignments)
        if self._history is not None:
            self._history.drained(left)
        if left:
            self.fail_all(PeerError(f"core {self.info.node} stops"))
        await self.flush()
        return left

    async def flush(self) -> None:
        """Wait until the links have sent what waits, for a bounded time."""
        await self._wait_until(lambda: all(link.empty for link in self._links.values()), FLUSH_S)

    # The service.

    async def Link(
        self, request_iterator: AsyncIterator[core_pb2.EdgeFrame], context: Context
    ) -> None:
        """One edge's link, until either side ends it."""
        peer = await rpc.require_role(context, {Role.EDGE})
        if len(self._links) >= LINKS_MAX:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{LINKS_MAX} links, the most that may be"
            )
        link = self._join(peer.node)
        read = asyncio.create_task(self._read(link, request_iterator), name="link-read")
        write = asyncio.create_task(self._write(link, context), name="link-write")
        lost = asyncio.create_task(link.lost.wait(), name="link-lost")
        ended: Ended = ("closed", None)
        try:
            await asyncio.wait((read, write, lost), return_when=asyncio.FIRST_COMPLETED)
            ended = _why(link, read, write)
        finally:
            lost.cancel()
            self._leave(link, ended[0])
            await _finish(link, read, write)
        if ended[1] is not None:
            await _abort(context, *ended[1])

    async def _read(self, link: _Link, frames: AsyncIterator[core_pb2.EdgeFrame]) -> None:
        async for frame in frames:
            self._take(link, frame)
            self._meter.frame("in", frame.ByteSize())

    async def _write(self, link: _Link, context: Context) -> None:
        welcome = core_pb2.Welcome(info=to_node(self.info))
        await context.write(core_pb2.CoreFrame(welcome=welcome, load=self._load_of(link)))
        while not link.closing:
            try:
                async with asyncio.timeout(LOAD_S):
                    await link.wake.wait()
            except TimeoutError:
                pass
            link.wake.clear()
            frame = self._encode(link, link.outbox.take())
            link.writing = True
            await context.write(frame)
            link.writing = False
            self._meter.frame("out", frame.ByteSize())
            self._changed.set()
            if link.outbox:
                link.wake.set()

    def _encode(self, link: _Link, frame: Frame) -> core_pb2.CoreFrame:
        return core_pb2.CoreFrame(
            commits=[to_commits(commit) for commit in frame.commits],
            done=[to_done(done) for done in frame.done],
            failed=[to_failed(failed) for failed in frame.failed],
            load=self._load_of(link),
            pong=frame.pong,
        )

    def _load_of(self, link: _Link) -> core_pb2.Load:
        return to_load(replace(self.load(), opens_counted=link.opens_counted))

    # What an edge says.

    def _take(self, link: _Link, frame: core_pb2.EdgeFrame) -> None:
        for opened in frame.opens:
            self._open(link, opened)
        for cancel in frame.cancels:
            self._cancel(link, cancel)
        for credit in frame.credits:
            if (mine := self._owned(link, credit.request)) is not None:
                self._backend.credit(mine.handle, credit.position)
        for hint in frame.hints:
            self._hint(link, hint)
        if frame.ping.id:
            link.outbox.pong(frame.ping.id)
            self._wake(link)

    def _open(self, link: _Link, message: core_pb2.Open) -> None:
        link.opens_counted += 1
        try:
            if self._open_error is not None:
                raise self._open_error
            try:
                request, epoch, committed = from_open(message)
            except PeerError as error:
                raise RequestError(error.message) from None
            check_open(request, epoch, committed, self._backend.offer)
            new, old = self._assignments.open(link.edge, link.number, request.id, epoch)
            if old is not None:
                self._drop(old)
            credit = len(request.prompt) + CREDIT_TOKENS
            try:
                self._backend.open(replace(request, id=new.handle), epoch, committed, credit)
            except FirstlightError:
                self._end(new)
                raise
            if self._history is not None:
                self._history.opened(new, request, committed)
        except FirstlightError as error:
            self._refuse(link, message, error)

    def _refuse(self, link: _Link, message: core_pb2.Open, error: FirstlightError) -> None:
        self._meter.refused(error)
        if self._history is not None:
            self._history.refused(message.request[:REQUEST_ECHO_MAX], message.epoch, error)
        link.outbox.fail(_failed(message.request[:REQUEST_ECHO_MAX], message.epoch, error))
        self._wake(link)

    def _cancel(self, link: _Link, message: core_pb2.Cancel) -> None:
        mine = self._owned(link, message.request)
        if mine is None or message.epoch < mine.epoch:
            return
        link.outbox.forget(mine.request, mine.epoch)
        if self._history is not None:
            self._history.cancelled(mine.handle, "edge")
        if self._backend.cancel(mine.handle):
            self._assignments.cancel(mine.handle)
        else:
            self._assignments.end(mine.handle)
            self._tell(mine, Done(mine.handle, mine.epoch))
            self._wake(link)
        self._changed.set()

    def _hint(self, link: _Link, message: core_pb2.Hint) -> None:
        mine = self._owned(link, message.request)
        fits = len(message.chain) == CHAIN_BYTES and len(message.source) <= SOURCE_CHARS_MAX
        if mine is not None and fits:
            hint = from_hint(message)
            self._backend.hint(replace(hint, request=mine.handle, ids=hint.ids[:HINT_IDS_MAX]))

    def _owned(self, link: _Link, request: str) -> Assignment | None:
        return self._assignments.owned(link.edge, link.number, request)

    # Assignments and links come and go.

    def _tell(self, assignment: Assignment, done: Done) -> None:
        outbox = self._links[assignment.link].outbox
        outbox.done(replace(done, request=assignment.request, epoch=assignment.epoch))
        self._changed.set()

    def _fail(
        self, assignment: Assignment, error: FirstlightError, marks: tuple[Mark, ...]
    ) -> None:
        self._meter.refused(error)
        if self._history is not None:
            self._history.failed(assignment.handle, error)
        link = self._links[assignment.link]
        link.outbox.fail(_failed(assignment.request, assignment.epoch, error, marks))
        self._end(assignment)

    def _drop(self, assignment: Assignment) -> None:
        """Stop computing what nobody waits for any more."""
        self._backend.cancel(assignment.handle)
        if self._history is not None:
            self._history.fenced(assignment.handle)
        link = self._links.get(assignment.link)
        if link is not None:
            link.outbox.forget(assignment.request, assignment.epoch)

    def _end(self, assignment: Assignment) -> None:
        self._assignments.end(assignment.handle)
        self._changed.set()

    def _join(self, edge: str) -> _Link:
        self._links_made += 1
        link = _Link(self._links_made, edge, Outbox(self._waiting_bytes_max))
        self._links[link.number] = link
        self._meter.links(len(self._links))
        log.info("link %d from edge %s", link.number, edge)
        return link

    def _leave(self, link: _Link, reason: str) -> None:
        held = self._assignments.leave(link.number)
        for assignment in held:
            self._backend.cancel(assignment.handle)
            if self._history is not None:
                self._history.cancelled(assignment.handle, "link")
        del self._links[link.number]
        self._changed.set()
        self._meter.links(len(self._links))
        self._meter.lost(reason)
        log.info(
            "link %d from edge %s ended (%s); %d requests cancelled",
            link.number,
            link.edge,
            reason,
            len(held),
        )

    def _wake(self, link: _Link) -> None:
        if link.outbox.overfull:
            link.lost.set()
        link.wake.set()

    async def _wait_until(self, condition: Callable[[], bool], limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass


async def _finish(link: _Link, read: asyncio.Task[None], write: asyncio.Task[None]) -> None:
    """End a link's tasks. A write under way is let finish: gRPC cannot send a status beside it."""
    link.closing = True
    link.wake.set()
    read.cancel()
    for task in (read, write):  # gRPC may cancel us here, and then nobody else asks how they ended
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        if not write.done():
            await asyncio.wait([write], timeout=LAST_WRITE_S)
    finally:
        write.cancel()
    await asyncio.gather(read, write, return_exceptions=True)


async def _abort(context: Context, code: grpc.StatusCode, words: str) -> None:
    """End the call with a status; behind a write that is stuck, it is reset without one."""
    try:
        await context.abort(code, words)
    except grpc.aio.InternalError:
        log.info("the status %s could not be sent: the peer does not read", code.name)


Ended = tuple[str, tuple[grpc.StatusCode, str] | None]


def _why(link: _Link, read: asyncio.Task[None], write: asyncio.Task[None]) -> Ended:
    """(reason for the metric, status for the peer or None for a clean end)."""
    if link.lost.is_set():
        waiting = link.outbox.waiting_bytes
        text = f"edge {link.edge} does not read: {waiting} bytes wait"
        return "slow", (grpc.StatusCode.RESOURCE_EXHAUSTED, text)
    task = read if read.done() else write
    error = None if task.cancelled() else task.exception()
    if error is None:
        return "closed", None
    if task is write:
        return "broken", None
    if isinstance(error, DecodeError):
        log.warning("link %d from edge %s: %s", link.number, link.edge, error)
        words = "frame cannot be parsed as EdgeFrame"
        return "malformed", (grpc.StatusCode.INVALID_ARGUMENT, words)
    log.error("link %d from edge %s: a bug of ours", link.number, link.edge, exc_info=error)
    return "bug", (grpc.StatusCode.INTERNAL, f"the core failed on a frame: {type(error).__name__}")


def _failed(
    request: str, epoch: int, error: FirstlightError, marks: tuple[Mark, ...] = ()
) -> Failed:
    return Failed(
        request=request,
        epoch=epoch,
        kind=str(error.kind),
        message=error.message,
        retry_elsewhere=error.retry_elsewhere,
        retry_after_s=error.retry_after_s,
        marks=marks,
    )
