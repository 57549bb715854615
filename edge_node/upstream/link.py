"""The edge's end of one link: a stream to one core that carries every request of the pair.

The shell around `shared.stream`: it packs what the requests of one loop turn have to say into one
frame, and hands what the core says to the receiver of each request. It decides nothing but whether
the link is alive. A link is used once; `upstream.pool` makes the next one.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from firstlight.edge_node.upstream.warmth import LinksConfig, Warmth
from firstlight.edge_node.view import MeshMemory
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import DiedError, FirstlightError, PeerError
from firstlight.shared.estimate import RttEstimate
from firstlight.shared.history import What
from firstlight.shared.history_file import History
from firstlight.shared.liveness import Account, Liveness, Lost
from firstlight.shared.proto import core_pb2, core_pb2_grpc
from firstlight.shared.proto.convert import (
    from_commits,
    from_done,
    from_failed,
    from_load,
    from_node,
    to_hint,
    to_open,
)
from firstlight.shared.routing.cost import RTT_PRIOR_MS, CoreState
from firstlight.shared.types import Commit, Done, Failed, Hint, Load, NodeInfo, Request

if TYPE_CHECKING:
    Call = grpc.aio.StreamStreamCall[core_pb2.EdgeFrame, core_pb2.CoreFrame]

log = logging.getLogger(__name__)

PING_INTERVAL_S = 0.18
"""Less than the 200 ms, and the round trip, of silence after which Linux takes a connection for
idle and lets its window fall."""
CONNECT_TIMEOUT_S = 5.0
AGE_SAME_S = 1.0
"""A load that is younger is as good as one of now."""
WRITE_BROKE = "Internal error from Core"
"""gRPC's words, as its Python end writes them, for a call whose connection is gone."""
UNCOUNTED_MAX = 256
FRAME_BYTES_MAX = 1 << 20
"""A frame this large takes no more opens, far below what a core would refuse."""
PADDING_FRAME_BYTES = 16 << 10
"""Padding goes out in frames of this size, and stops when anything else is to be said."""
WHOLE_BYTES_MAX = 64 << 10
WHOLE_ENDINGS_MAX = 64
"""A frame below both holds all that waited at the core: it cuts at 1 MiB, as it estimates it, and
at 256 endings of a kind."""
HINTS_WAITING_MAX = 256
"""Hints of one frame not yet written; more are dropped, which is never an error."""


class Receiver(Protocol):
    """Who a request's entries go to. Called on the loop, in the order of the frames."""

    def committed(self, commit: Commit) -> None:
        """Ids, in order within an epoch."""

    def failed(self, failed: Failed) -> None:
        """The core gave this epoch up."""

    def done(self, done: Done) -> None:
        """Statistics, if they arrive."""

    def lost(self, core: str, error: FirstlightError) -> None:
        """The link is gone, and with it all that ran on it."""


class CoreLink:
    """One life of the stream to one core."""

    def __init__(
        self,
        info: NodeInfo,
        channel: grpc.aio.Channel,
        memory: MeshMemory,
        history: History | None = None,
        config: LinksConfig | None = None,
        rtt_prior_ms: float = RTT_PRIOR_MS,
    ) -> None:
        """`rtt_prior_ms`: what the round trip should be, until it is measured."""
        self.info = info
        """What the load balancer said of the core, then what the core said itself."""
        self.load = Load()
        self.load_at_s = monotonic_s()
        self.rtt = RttEstimate(rtt_prior_ms)
        self.up = False
        self.on_change: Callable[[], None] = lambda: None
        """Hears when the link comes up, or is up no more."""
        self.welcomed = False
        """Whether this life of the link ever came up."""
        self.lost: Lost | None = None
        """What it was failed for, if the core was found out to be lost."""
        self._channel = channel
        self._memory = memory
        self._history = history
        self._state: CoreState | None = None
        """As last heard; None when something has changed since."""
        self._receivers: dict[str, Receiver] = {}
        self._opens_sent = 0
        self._prompt_tokens: deque[int] = deque(maxlen=UNCOUNTED_MAX)
        self._ended_since_load = 0
        self._out = core_pb2.EdgeFrame()
        self._full: list[core_pb2.EdgeFrame] = []
        """Frames that took no more opens, to be sent before `_out`."""
        self._out_ready = asyncio.Event()
        self._pings: dict[int, float] = {}
        self._ping_id = 0
        self._warmth = Warmth(config or LinksConfig(), monotonic_s())
        self._padded: tuple[int, float] | None = None
        """The ping that ends a piece of padding, and when the piece began."""
        self._liveness = Liveness(monotonic_s())
        self._account = Account()
        self._failure: asyncio.Future[FirstlightError] = asyncio.get_running_loop().create_future()

    @property
    def suspect(self) -> bool:
        """Whether the core seems to have lost requests of ours."""
        return self._account.suspect

    def state(self, now: float) -> CoreState:
        """The core as a decision sees it: made when something is heard, and not for each one."""
        age_s = now - self.load_at_s
        if self._state is None or age_s > AGE_SAME_S:
            self._state = self._stated(max(0.0, age_s))
        return self._state

    def _stated(self, age_s: float) -> CoreState:
        uncounted = max(0, self._opens_sent - self.load.opens_counted)
        recent = list(self._prompt_tokens)[-uncounted:] if uncounted else ()
        return CoreState(
            core=self.info.node,
            region=self.info.region,
            load=self.load,
            rtt_ms=self.rtt.ms,
            age_s=age_s,
            unseen_opens=uncounted - self._ended_since_load,
            unseen_prompt_tokens=sum(recent),
            numerics_class=self.info.numerics_class,
            models=self.info.models,
            context_max=self.info.context_max,
            ejected=self._account.suspect or self._silent(age_s),
        )

    def _silent(self, age_s: float) -> bool:
        """Whether neither we nor any load balancer heard of the core lately. One that hears it is
        enough: a core that only they do not hear serves us."""
        now = self.load_at_s + age_s
        return age_s > AGE_SAME_S and self._memory.suspect(self.info.node, now)

    def open(
        self,
        request: Request,
        epoch: int,
        committed: Sequence[int],
        receiver: Receiver,
        *,
        budget_s: float,
    ) -> None:
        """Assign `request`, with `budget_s` left, as `epoch`; the answers go to `receiver`."""
        self._receivers[request.id] = receiver
        self._account.opened(request.id)
        self._opens_sent += 1
        self._prompt_tokens.append(len(request.prompt) + len(committed))
        self._state = None
        if self._out.ByteSize() > FRAME_BYTES_MAX:
            self._full.append(self._out)
            self._out = core_pb2.EdgeFrame()
        self._out.opens.append(to_open(replace(request, budget_s=budget_s), epoch, committed))
        self._out_ready.set()

    def hint(self, hint: Hint) -> None:
        """Offer ids. Dropped if the link is behind."""
        if len(self._out.hints) < HINTS_WAITING_MAX:
            self._out.hints.append(to_hint(hint))
            self._out_ready.set()

    def credit(self, request: str, position: int) -> None:
        """Let the core commit up to an absolute position."""
        self._out.credits.add(request=request, position=position)
        self._out_ready.set()

    def cancel(self, request: str, epoch: int) -> None:
        """Stop at once and free the blocks. The statistics still come."""
        if request in self._receivers:
            self._account.ended(request)
            self._ended_since_load += 1
            self._state = None
            self._out.cancels.add(request=request, epoch=epoch)
            self._out_ready.set()

    def forget(self, request: str) -> None:
        """Nobody wants to hear of the request any more."""
        self._receivers.pop(request, None)
        self._account.ended(request)

    def check(self, now: float) -> None:
        """Fail the link if the core is lost by the rules of `shared.liveness`."""
        if self.up and (verdict := self._liveness.check(now) or self._account.check()):
            self.lost = verdict.lost
            self.fail(PeerError(f"core {self.info.node}: {verdict.reason}"))

    def fail(self, error: FirstlightError) -> None:
        """End this life of the link."""
        if not self._failure.done():
            self._failure.set_result(error)

    async def run(self) -> FirstlightError:
        """Serve until the link breaks; tells every receiver, and returns why."""
        call = core_pb2_grpc.CoreStub(self._channel).Link(wait_for_ready=False)
        tasks = [
            asyncio.create_task(self._read(call)),
            asyncio.create_task(self._write(call)),
            asyncio.create_task(self._ping()),
        ]
        try:
            ended: list[asyncio.Future[Any]] = [self._failure, *tasks]
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and not self._failure.done():
                    self.fail(self._cause(task.exception()))
            return self._failure.result()
        finally:
            self.up = False
            self.on_change()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            call.cancel()
            self._tell_lost()

    def _cause(self, exception: BaseException | None) -> FirstlightError:
        if isinstance(exception, FirstlightError):
            return exception
        if isinstance(exception, grpc.aio.AioRpcError):
            detail = exception.details() or exception.code().name
            # A core that ends a link says why by another status; these are the transport's, and of
            # our own end of it, if a write found the connection gone before its status was read.
            broken = exception.code() is grpc.StatusCode.UNAVAILABLE or detail == WRITE_BROKE
            error = DiedError if broken else PeerError
            return error(f"core {self.info.node} broke off: {detail}")
        if isinstance(exception, TimeoutError):
            return PeerError(f"core {self.info.node}: no welcome within {CONNECT_TIMEOUT_S:g} s")
        if exception is not None:
            raise exception
        return PeerError(f"core {self.info.node} closed the link")

    def _tell_lost(self) -> None:
        error = (
            self._failure.result()
            if self._failure.done()
            else PeerError(f"link to core {self.info.node} was closed")
        )
        receivers, self._receivers = self._receivers, {}
        for receiver in receivers.values():
            try:
                receiver.lost(self.info.node, error)
            except Exception:  # a bug with one request; the others must still hear of it
                log.exception("a request could not be told that its core is lost")

    async def _write(self, call: "Call") -> None:
        while True:
            await self._out_ready.wait()
            self._out_ready.clear()
            frames, self._full = [*self._full, self._out], []
            self._out = core_pb2.EdgeFrame()
            for frame in frames:
                if frame.ByteSize():
                    await call.write(frame)
            if not self._out_ready.is_set():
                await self._pad(call)

    async def _ping(self) -> None:
        while True:
            self._ping_id += 1
            self._pings[self._ping_id] = monotonic_s()
            self._pings.pop(self._ping_id - 64, None)
            self._out.ping.id = self._ping_id
            self._out_ready.set()
            await asyncio.sleep(PING_INTERVAL_S)

    async def _pad(self, call: "Call") -> None:
        """Send the padding that is due, until something else waits; its last frame is answered."""
        began_s = monotonic_s()
        due = self._warmth.due(self.rtt.ms, began_s) if self.rtt.measured else 0
        if not due:
            return
        left = due
        while left and not self._out_ready.is_set():
            size = min(left, PADDING_FRAME_BYTES)
            left -= size
            ping = core_pb2.Ping(padding=bytes(size))
            if not left:
                self._ping_id += 1
                ping.id = self._ping_id
                self._padded = (ping.id, began_s)
            await call.write(core_pb2.EdgeFrame(ping=ping))
        self._warmth.sent(due - left, monotonic_s())

    async def _read(self, call: "Call") -> None:
        async with asyncio.timeout(CONNECT_TIMEOUT_S) as connecting:
            frame = await call.read()
            connecting.reschedule(None)
            if isinstance(frame, core_pb2.CoreFrame) and not frame.HasField("welcome"):
                raise PeerError(f"core {self.info.node}: its first frame is no welcome")
            while isinstance(frame, core_pb2.CoreFrame):
                self._take(frame, monotonic_s())
                frame = await call.read()
        raise PeerError(f"core {self.info.node} closed the link")

    def _take(self, frame: core_pb2.CoreFrame, now: float) -> None:
        if frame.HasField("welcome"):
            self._welcome(from_node(frame.welcome.info), now)
        for commits in frame.commits:
            if receiver := self._receivers.get(commits.request):
                receiver.committed(from_commits(commits))
            elif self._history is not None:
                request, epoch, core = commits.request, commits.epoch, self.info.node
                self._history.note(What.FENCED, request, epoch=epoch, facts={"core": core})
        ended = self._ended_since_load
        if frame.failed:  # where they go next is decided by what the core says now
            self._heard(frame, now, ended)
        else:  # the text that the frame brings does not wait for this
            asyncio.get_running_loop().call_soon(self._heard, frame, now, ended)
        for done in frame.done:
            if receiver := self._receivers.get(done.request):
                receiver.done(from_done(done))
        for failed in frame.failed:
            if receiver := self._receivers.get(failed.request):
                receiver.failed(from_failed(failed))

    def _heard(self, frame: core_pb2.CoreFrame, now: float, ended: int) -> None:
        """What the frame says of the core itself; `ended`: requests cancelled before it came, all
        of which its load is taken to know of."""
        if frame.HasField("pong"):
            self._ponged(frame.pong, now)
        try:
            load = from_load(frame.load) if frame.HasField("load") else None
        except PeerError as error:
            self.fail(error)
            return
        self._liveness.frame(load, now)
        if load is not None:
            self.load, self.load_at_s = load, now
            self._memory.heard(self.info.node, load, now)
            if not frame.failed:  # what it brings is not taken in yet
                self._account.frame(load, now, whole=_whole(frame))
            self._ended_since_load = max(0, self._ended_since_load - ended)
        self._state = self._stated(max(0.0, now - self.load_at_s))

    def _ponged(self, ping: int, now: float) -> None:
        """The round trip of a ping, or of padding, which says nothing of the distance."""
        if (sent_s := self._pings.pop(ping, None)) is not None:
            self.rtt.observe((now - sent_s) * 1e3, now)
        if self._padded is not None and ping >= self._padded[0]:
            took_ms, self._padded = (now - self._padded[1]) * 1e3, None
            self._warmth.answered(took_ms, self.rtt.ms, now)
            self._out_ready.set()  # what is due next need not wait for a ping

    def _welcome(self, info: NodeInfo, now: float) -> None:
        if info.node != self.info.node:
            raise PeerError(f"{self.info.address} is core {info.node}, expected {self.info.node}")
        self.info, self._state = info, None
        self.up = self.welcomed = True
        self.on_change()
        self._memory.welcomed(info, now)


def _whole(frame: core_pb2.CoreFrame) -> bool:
    """Whether nothing can have been left at the core for the next frame."""
    endings = max(len(frame.done), len(frame.failed))
    return endings < WHOLE_ENDINGS_MAX and frame.ByteSize() < WHOLE_BYTES_MAX
