"""What waits to be sent on one link: merged in place, bounded, cut into frames. Sans-IO.

The engine never waits for a link. While a write is under way, commits of the same request merge
into one, and when it is done all that waits goes out as one frame. More than a limit waiting means
that the link is lost.
"""

from dataclasses import dataclass, field, replace

from firstlight.shared.types import Commit, Done, Failed, TokenLogprobs

WAITING_BYTES_MAX = 8 << 20
FRAME_BYTES_MAX = 1 << 20
"""A frame stops taking commits beyond this; peers receive at most 8 MiB."""
FAILED_MAX = 4096
"""Failures and statistics that may wait; an edge that causes more without reading is lost."""

ENDINGS_MAX = 256
"""Of each kind in one frame; with its marks an ending can be of some 8 KiB."""


@dataclass(slots=True)
class Frame:
    """One frame's content, before it is bytes."""

    commits: list[Commit] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    pong: int | None = None


@dataclass(slots=True)
class _Waiting:
    """One request's commits; lists grow in place, so that merging costs what is new."""

    first: Commit
    ids: list[int]
    logprobs: list[TokenLogprobs]
    chain: bytes
    size_bytes: int

    def commit(self) -> Commit:
        return replace(
            self.first, ids=tuple(self.ids), logprobs=tuple(self.logprobs), chain=self.chain
        )


class Outbox:
    """Commits, statistics, failures and the latest pong of one link, in the order of requests."""

    def __init__(self, waiting_bytes_max: int = WAITING_BYTES_MAX) -> None:
        self._limit_bytes = waiting_bytes_max
        self._commits: dict[tuple[str, int], _Waiting] = {}
        self._done: list[Done] = []
        self._failed: list[Failed] = []
        self._pong: int | None = None
        self.waiting_bytes = 0
        """Estimated size of what waits on the wire."""

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._commits or self._done or self._failed or self._pong is not None)

    @property
    def overfull(self) -> bool:
        """Whether more waits than a link may leave unread."""
        return (
            self.waiting_bytes > self._limit_bytes
            or len(self._failed) > FAILED_MAX
            or len(self._done) > FAILED_MAX
        )

    def commit(self, commit: Commit) -> None:
        """Add ids; they follow what waits of the same request and epoch without a gap."""
        key, size_bytes = (commit.request, commit.epoch), _size_bytes(commit)
        waiting = self._commits.get(key)
        self.waiting_bytes += size_bytes
        if waiting is None:
            self._commits[key] = _Waiting(
                commit, list(commit.ids), list(commit.logprobs), commit.chain, size_bytes
            )
            return
        expected = waiting.first.position + len(waiting.ids)
        assert commit.position == expected, (commit.position, expected)
        waiting.ids.extend(commit.ids)
        waiting.logprobs.extend(commit.logprobs)
        waiting.chain = commit.chain
        waiting.size_bytes += size_bytes

    def done(self, done: Done) -> None:
        """Add a request's statistics."""
        self._done.append(done)

    def fail(self, failed: Failed) -> None:
        """Add a failure; commits before it still go first."""
        self._failed.append(failed)

    def pong(self, ping: int) -> None:
        """Answer a ping; only the latest one matters."""
        self._pong = ping

    def forget(self, request: str, epoch: int) -> None:
        """Drop what waits for a request that its edge has given up."""
        waiting = self._commits.pop((request, epoch), None)
        if waiting is not None:
            self.waiting_bytes -= waiting.size_bytes

    def take(self, bytes_max: int = FRAME_BYTES_MAX) -> Frame:
        """What goes into the next frame: at least one commit if one waits.

        Endings stay behind until all commits have gone, so that nothing follows an ending.
        """
        frame = Frame(pong=self._pong)
        self._pong = None
        size_bytes = 0
        while self._commits and (not frame.commits or size_bytes < bytes_max):
            key = next(iter(self._commits))
            waiting = self._commits.pop(key)
            size_bytes += waiting.size_bytes
            frame.commits.append(waiting.commit())
        self.waiting_bytes -= size_bytes
        if not self._commits:
            frame.done, self._done = self._done[:ENDINGS_MAX], self._done[ENDINGS_MAX:]
            frame.failed, self._failed = self._failed[:ENDINGS_MAX], self._failed[ENDINGS_MAX:]
        return frame


def _size_bytes(commit: Commit) -> int:
    """About what it takes as protobuf: a header, 3 bytes an id, 5 + 7·k a logprob entry."""
    logprobs = sum(9 + 7 * len(item.top) for item in commit.logprobs)
    return 64 + len(commit.request) + 3 * len(commit.ids) + logprobs
