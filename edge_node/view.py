"""The mesh as this edge last heard of it, from load balancers and from its own links.

Views of several load balancers are merged per node by the highest (incarnation, seq). A node is
dropped when it says that it leaves, or when nobody has heard of it for a lease *and* a load
balancer that has been up for a while says so by its silence. If all load balancers are gone, or
just restarted and know nobody yet, the last view serves for ever; what a link hears stays fresh.
"""

from dataclasses import dataclass

from firstlight.shared.types import Load, MeshView, NodeInfo, Report, Role

LEASE_S = 5.0
LB_FRESH_S = 2.0
"""A load balancer that has sent nothing for this long is taken to be gone."""
LB_SETTLED_S = 10.0
"""A load balancer younger than this may not have heard of every node yet."""
NODES_MAX = 4096
LBS_MAX = 64


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node as last heard."""

    info: NodeInfo
    load: Load
    age_s: float
    """Since `load` was true, by whomever it was heard."""


@dataclass(slots=True)
class _Entry:
    report: Report
    heard_at: float
    """When the node last spoke, to anyone."""
    load: Load
    load_at: float


@dataclass(slots=True)
class _Lb:
    seq: int
    since: float
    last_at: float


class MeshMemory:
    """What `EdgeControl` and the links tell, for routing to read. Reading changes nothing."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._lbs: dict[str, _Lb] = {}

    def merge(self, view: MeshView, now: float) -> tuple[str, ...]:
        """Take a view; returns the names of nodes that are new, changed or gone by it."""
        self._note_lb(view, now)
        changed = [
            report.info.node
            for report, age_s in view.reports
            if self._merge_report(report, now - max(0.0, age_s))
        ]
        gone = [name for name, entry in self._entries.items() if self._is_gone(entry, now)]
        for name in gone:
            del self._entries[name]
        return (*changed, *(name for name in gone if name not in changed))

    def heard(self, node: str, load: Load, now: float) -> None:
        """A link got a frame of this core: the node lives, and this is its load."""
        entry = self._entries.get(node)
        if entry is not None:
            entry.heard_at = entry.load_at = now
            entry.load = load

    def welcomed(self, info: NodeInfo, now: float) -> None:
        """A link was opened to this node, which says what it is now."""
        entry = self._entries.get(info.node)
        if entry is None or entry.report.info.incarnation != info.incarnation:
            self._put(Report(info, seq=0), now)

    def reports(self, now: float) -> tuple[Report, ...]:
        """The last word of every node that may live, by name."""
        return tuple(
            entry.report
            for _, entry in sorted(self._entries.items())
            if not entry.report.leaving and not self._is_gone(entry, now)
        )

    def cores(self, now: float) -> tuple[SeenNode, ...]:
        """Cores that may live, by name."""
        return tuple(
            SeenNode(entry.report.info, entry.load, max(0.0, now - entry.load_at))
            for _, entry in sorted(self._entries.items())
            if entry.report.info.role is Role.CORE
            and not entry.report.leaving
            and not self._is_gone(entry, now)
        )

    def sketch(self, node: str) -> bytes:
        """Which prefixes a core says that it holds; see `shared.routing.sketch`."""
        entry = self._entries.get(node)
        return b"" if entry is None else entry.report.sketch

    def view_age_s(self, now: float) -> float | None:
        """Since the last view of any load balancer; None if there never was one."""
        last_at = max((lb.last_at for lb in self._lbs.values()), default=None)
        return None if last_at is None else now - last_at

    def _note_lb(self, view: MeshView, now: float) -> None:
        known = self._lbs.get(view.lb)
        if known is None or view.seq < known.seq or now - known.last_at > LB_FRESH_S:
            # New, restarted, or cut off from us: what it does not list it may not know yet.
            self._lbs[view.lb] = _Lb(view.seq, now, now)
            while len(self._lbs) > LBS_MAX:
                del self._lbs[min(self._lbs, key=lambda name: self._lbs[name].last_at)]
        else:
            known.seq, known.last_at = view.seq, now

    def _merge_report(self, report: Report, said_at: float) -> bool:
        known = self._entries.get(report.info.node)
        order = (report.info.incarnation, report.seq)
        if known is not None and said_at - known.heard_at > LEASE_S:
            known = None  # its lease was over: a word of today beats one of yesterday
        if known is None:
            # A word of leaving is kept too, against an older report that comes late.
            return self._put(report, said_at) and not report.leaving
        before = known.report
        if order < (before.info.incarnation, before.seq):
            return False
        if report.info.incarnation > before.info.incarnation:
            return self._put(report, said_at)
        known.report = report
        known.heard_at = max(known.heard_at, said_at)
        if said_at > known.load_at:
            known.load, known.load_at = report.load, said_at
        return before.info != report.info or before.leaving != report.leaving

    def _put(self, report: Report, said_at: float) -> bool:
        if report.info.node not in self._entries and len(self._entries) >= NODES_MAX:
            return False
        self._entries[report.info.node] = _Entry(report, said_at, report.load, said_at)
        return True

    def _is_gone(self, entry: _Entry, now: float) -> bool:
        if now - entry.heard_at <= LEASE_S:
            return False
        return entry.report.leaving or any(
            now - lb.last_at <= LB_FRESH_S and lb.last_at - lb.since >= LB_SETTLED_S
            for lb in self._lbs.values()
        )
