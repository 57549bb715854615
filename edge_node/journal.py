"""The journal: ids of running streams in Redis, so that a client need not keep them.

It runs beside the streams, never in their way: every `write_s` it looks at how far each has come,
and writes what is new in one batch. What cannot be written within `timeout_s` is tried again with
the next batch, whole, since it is not known what arrived; after a failure Redis is left alone for a
while. Only ids are written, never a prompt or text, under names that only edges can make.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from firstlight.edge_node import meter
from firstlight.edge_node.answer import Ask, Progress
from firstlight.edge_node.journal_page import Page, Written
from firstlight.edge_node.resume import RESUMED_IDS_MAX, Seals
from firstlight.shared import redis_client
from firstlight.shared.breaker import Breaker
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import CapacityError, NotFoundError, PeerError
from firstlight.shared.redis_client import Client, Command, RedisConfig

BATCH_STREAMS_MAX = 256
BATCH_IDS_MAX = 32_768
"""Of one batch; the others come with the next one, a `write_s` later."""
PAGE_BYTES_MAX = 32 * RESUMED_IDS_MAX
"""Of a page that is read; what is larger is not read, and cannot be gone on with from here."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """Where running streams are written down; without a Redis, nowhere."""

    redis: RedisConfig = field(default_factory=RedisConfig)
    keep_s: int = 900
    """How long a stream is kept after it was last written to."""
    write_s: float = 0.2
    """How often; what a client has beyond that is computed again."""
    timeout_s: float = 0.05
    """Of one batch, and of a client that wants to go on from here."""
    streams_max: int = 4096
    """Streams written down at a time; those beyond are not."""

    def __post_init__(self) -> None:
        """Check."""
        if self.keep_s < 1 or self.streams_max < 0:
            raise ValueError("keep_s from 1 and streams_max from 0 expected")
        if self.write_s < 0.01 or self.timeout_s <= 0:
            raise ValueError("write_s from 0.01 and timeout_s above 0 expected")


class Journaled(Protocol):
    """A session, as the journal sees it."""

    @property
    def ask(self) -> Ask:
        """What was asked."""
        ...

    @property
    def streams(self) -> tuple[str, ...]:
        """An id a choice."""
        ...

    @property
    def busy(self) -> bool:
        """Whether anybody tells any of it."""
        ...

    def progress(self, index: int, start: int = 0) -> Progress:
        """Ids from the `start`-th on."""
        ...


@dataclass(slots=True)
class _Followed:
    session: Journaled
    index: int
    page: Page
    saved: int = 0
    """Ids that are written."""
    size_bytes: int | None = None
    """Of the page as we left it; None: not known, so that it must be written whole."""


@dataclass(frozen=True, slots=True)
class _Write:
    followed: _Followed
    record: bytes
    count: int
    whole: bool


class Journal:
    """Writes and reads pages. One an edge process; `run` it beside the fronts."""

    def __init__(self, config: JournalConfig, client: Client, seals: Seals) -> None:
        self._config, self._client, self._seals = config, client, seals
        self._breaker = Breaker(monotonic_s())
        self._new: list[Journaled] = []
        self._followed: OrderedDict[str, _Followed] = OrderedDict()
        """By the page's name; those that wait longest for a write first."""

    @property
    def following(self) -> int:
        """Streams that are written down, or will be."""
        return len(self._followed) + sum(len(session.streams) for session in self._new)

    def follow(self, session: Journaled) -> None:
        """Write down how its choices go on, until nobody tells them any more."""
        if len(self._new) < self._config.streams_max:
            self._new.append(session)
        else:
            meter.journaled("no_room")

    async def run(self) -> None:
        """Write, until cancelled; then once more, for the streams that are cut off now."""
        try:
            while True:
                await asyncio.sleep(self._config.write_s)
                await self.write()
        finally:
            await self.write()

    async def write(self) -> None:
        """One batch."""
        self._take_new()
        allowed = self._breaker.allows(monotonic_s())
        writes = self._batch() if allowed else []
        if writes:
            await self._send(writes)
        lost = {write.followed.page.name for write in writes if write.followed.size_bytes is None}
        for name, one in list(self._followed.items()):
            # Nobody tells it: done, if all is written, or if what it still lacks cannot be.
            hopeless = not allowed or name in lost
            left = len(one.session.progress(one.index, one.saved).ids)
            if not left or one.saved + left > RESUMED_IDS_MAX:
                hopeless = True
            if hopeless and not one.session.busy:
                del self._followed[name]

    def _take_new(self) -> None:
        """Names are made here: a stream does not wait for that."""
        new, self._new = self._new, []
        for session in new:
            for index, keys in enumerate(self._seals.pages(session.ask, session.streams)):
                page = keys[0]
                if page.name in self._followed:
                    continue
                if len(self._followed) < self._config.streams_max:
                    self._followed[page.name] = _Followed(session, index, page)
                else:
                    meter.journaled("no_room")

    def _batch(self) -> list[_Write]:
        writes: list[_Write] = []
        ids_left = BATCH_IDS_MAX
        for name, one in list(self._followed.items()):
            if len(writes) == BATCH_STREAMS_MAX or ids_left <= 0:
                break
            whole = one.size_bytes is None
            start = 0 if whole else one.saved
            progress = one.session.progress(one.index, start)
            ids = progress.ids
            if not ids or start + len(ids) > RESUMED_IDS_MAX:  # nothing new, or beyond all resuming
                continue
            ids_left -= len(ids)
            record = one.page.record(start, ids, progress.numerics_class)
            writes.append(_Write(one, record, start + len(ids), whole))
            self._followed.move_to_end(name)
        return writes

    async def _send(self, writes: Sequence[_Write]) -> None:
        commands: list[Command] = []
        for write in writes:
            name = write.followed.page.name
            if write.whole:
                commands.append(("SET", name, write.record, "EX", self._config.keep_s))
            else:
                commands.append(("APPEND", name, write.record))
                commands.append(("EXPIRE", name, self._config.keep_s))
        try:
            answers = iter(await self._ask(commands))
        except PeerError as error:
            self._note_failure(error)
            for write in writes:
                write.followed.size_bytes = None
            meter.journaled("failed", len(writes))
            return
        self._breaker.succeeded()
        for write in writes:
            told = next(answers)
            if not write.whole:
                next(answers)
            self._settle(write, told)

    def _settle(self, write: _Write, told: object) -> None:
        """Redis answered: was it what we left there, and is it now what we think?"""
        one, size_bytes = write.followed, len(write.record)
        if write.whole:
            kept = told == b"OK"
        else:
            size_bytes += one.size_bytes or 0
            kept = told == size_bytes  # another length: it was flushed, or somebody wrote there
        one.size_bytes = size_bytes if kept else None
        one.saved = write.count if kept else 0
        meter.journaled("written" if kept else "failed")

    async def read(self, ask: Ask, streams: Sequence[str]) -> list[Written]:
        """What is written of these streams of the request.

        Raises `CapacityError` if the journal cannot be asked, `NotFoundError` if any is not there
        or is damaged.
        """
        pages = self._seals.pages(ask, streams)
        raws = iter(await self._fetch([page.name for keys in pages for page in keys]))
        found: list[Written] = []
        for keys in pages:
            written = [page.read(raw) for page in keys if (raw := next(raws))]
            if not written or written[0] is None:
                meter.journaled("unknown")
                raise NotFoundError(
                    "the journal does not know this stream of this request: "
                    "send firstlight.resume.ids",
                    param="firstlight.resume.streams",
                    code="resume_unknown",
                )
            found.append(written[0])
        meter.journaled("found", len(found))
        return found

    async def _fetch(self, names: Sequence[str]) -> list[bytes]:
        try:
            if not self._breaker.allows(monotonic_s()):
                raise PeerError("it is left alone for a while")
            commands: list[Command] = [("GETRANGE", name, 0, PAGE_BYTES_MAX) for name in names]
            answers = await self._ask(commands)
        except PeerError as error:
            self._note_failure(error)
            meter.journaled("unavailable")
            raise CapacityError(
                "the journal of streams cannot be asked now: send firstlight.resume.ids",
                param="firstlight.resume.streams",
                code="journal_unavailable",
            ) from None
        self._breaker.succeeded()
        return [raw if isinstance(raw, bytes) else b"" for raw in answers]

    async def _ask(self, commands: Sequence[Command]) -> list[object]:
        return await redis_client.ask(self._client, commands, timeout_s=self._config.timeout_s)

    def _note_failure(self, error: PeerError) -> None:
        if self._breaker.failed(monotonic_s()):
            _log.warning("the journal cannot be reached: %s", error)
