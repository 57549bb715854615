"""Views on their way to nodes: each is made and packed once, for all nodes of a kind.

A stream has no queue: when its turn comes it gets the newest view. If it has missed one, or is new,
that is a view of everything.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from firstlight.global_lb.board import Board
from firstlight.global_lb.membership import Lease
from firstlight.shared.proto import control_pb2
from firstlight.shared.proto.convert_mesh import to_report, to_view
from firstlight.shared.types import MeshView, Report


class Feed:
    """The views for nodes of one kind. `advance` makes the next."""

    def __init__(self, board: Board, *, brief: bool) -> None:
        """`brief`: only who is there, not what prefixes he has."""
        self.board = board
        self._brief = brief
        self._known: Mapping[str, Lease] = {}
        self._head = MeshView("", 0)
        self._latest = self._whole = b""
        self._packed: dict[str, tuple[Report, control_pb2.Report]] = {}
        self._now = 0.0
        self._next: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def next(self) -> "asyncio.Future[None]":
        """Done when there is a newer view. Shared: wait for it with `asyncio.wait` only."""
        return self._next

    def advance(self, head: MeshView, known: Mapping[str, Lease], now: float) -> None:
        """Make the next view: `head` with entries of what the board names."""
        self._head, self._known, self._now = head, known, now
        self._latest, self._whole = self._pack(self.board.next(known)), b""
        for node in self._packed.keys() - known.keys():
            del self._packed[node]
        told, self._next = self._next, asyncio.get_running_loop().create_future()
        told.set_result(None)

    def after(self, seq: int) -> tuple[int, bytes]:
        """(its number, the view) for a stream that has had view `seq`; 0: none yet."""
        if seq == self._head.seq - 1 and seq > 0:
            return self._head.seq, self._latest
        if not self._whole:
            self._whole = self._pack(self.board.whole(self._known))
        return self._head.seq, self._whole

    def _pack(self, leases: tuple[Lease, ...]) -> bytes:
        view = to_view(self._head)
        for lease in leases:
            entry = view.entries.add(age_s=max(0.0, self._now - lease.heard_at))
            entry.report.CopyFrom(self._wire(lease.report))
        packed: bytes = view.SerializeToString()
        return packed

    def _wire(self, report: Report) -> control_pb2.Report:
        """The report, without what concerns load balancers alone."""
        node = report.info.node
        kept = self._packed.get(node)
        if kept is not None and kept[0] is report:
            return kept[1]
        told = replace(report, rtt_ms=(), demand=None, following=None)
        wire = to_report(replace(told, sketch=b"") if self._brief else told)
        self._packed[node] = (report, wire)
        return wire
