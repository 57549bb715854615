"""The mesh as this edge last heard of it, from load balancers and from its own links. Sans-IO.

Views of several load balancers are merged per node by the highest (incarnation, seq); a view names
some nodes only, and says nothing of the others. A node is dropped when it says that it leaves, or
when nobody has heard of it for a lease *and* a load balancer that has been up for a while says so
by its silence. If all load balancers are gone, or just restarted and know nobody yet, the last view
serves for ever; what a link hears stays fresh.

Where work goes is told by each of them, and the one with the lowest name that is heard is followed.
A node is suspect if every one that is heard says so: one that hears it is enough.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from firstlight.shared.claims import implausible, supersedes
from firstlight.shared.routing.spill import Row, Table
from firstlight.shared.types import Following, Load, MeshView, NodeInfo, Report, Role

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


@dataclass(frozen=True, slots=True)
class Merged:
    """What a view brought."""

    changed: tuple[str, ...] = ()
    """Nodes that are new, another process, or gone by it."""
    ignored: tuple[tuple[str, str, str], ...] = ()
    """(node, kind of fault, words) of what no decision is made with."""


@dataclass(slots=True)
class _Entry:
    report: Report
    heard_at: float
    """When the node last spoke, to anyone."""
    load: Load
    load_at: float


@dataclass(slots=True)
class _Lb:
    incarnation: int
    seq: int
    since: float
    last_at: float
    suspects: frozenset[str] = frozenset()
    table: Table = field(default_factory=dict)


class MeshMemory:
    """What `EdgeControl` and the links tell, for routing to read. Reading changes nothing."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._infos: dict[str, NodeInfo] | None = None
        """Of all cores, by name; None: to be gathered anew."""
        self._lbs: dict[str, _Lb] = {}

    def merge(self, view: MeshView, now: float) -> Merged:
        """Take a view; what it brought."""
        ignored = [(node, "malformed", why) for node, why in view.ignored]
        late = self._note_lb(view, now)
        if late:
            ignored.append((view.lb, "order", late))
        changed = []
        for report, age_s in view.reports:
            wrong = implausible(report)
            if wrong and not report.leaving:
                ignored.append((report.info.node, "absurd", wrong))
                self._renew(report, now - max(0.0, age_s))
            elif self._merge_report(report, now - max(0.0, age_s)):
                changed.append(report.info.node)
        gone = [
            name
            for name, entry in self._entries.items()
            if now - entry.heard_at > LEASE_S and self._is_gone(entry, now)
        ]
        for name in gone:
            del self._entries[name]
            self._infos = None
        changed += [name for name in gone if name not in changed]
        return Merged(tuple(changed), tuple(ignored))

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

    def core_infos(self) -> Mapping[str, NodeInfo]:
        """Cores that live as of the last view, by name. Asked ten times a second, and the same
        until something changes."""
        if self._infos is None:
            self._infos = {
                name: entry.report.info
                for name, entry in sorted(self._entries.items())
                if entry.report.info.role is Role.CORE and not entry.report.leaving
            }
        return self._infos

    def sketch(self, node: str) -> bytes:
        """Which prefixes a core says that it holds; see `shared.routing.sketch`."""
        entry = self._entries.get(node)
        return b"" if entry is None else entry.report.sketch

    def suspect(self, node: str, now: float) -> bool:
        """Whether no load balancer that is heard has heard the node lately."""
        fresh = [lb for lb in self._lbs.values() if now - lb.last_at <= LB_FRESH_S]
        return bool(fresh) and all(node in lb.suspects for lb in fresh)

    def following(self, origin: str, now: float) -> Following | None:
        """By whom and by which row the work of `origin` is spread.

        If no load balancer is heard any more, by the one that was heard last.
        """
        telling = [(name, lb) for name, lb in self._lbs.items() if origin in lb.table]
        fresh = [(name, lb) for name, lb in telling if now - lb.last_at <= LB_FRESH_S]
        if fresh:
            name, followed = min(fresh, key=lambda one: one[0])
        elif telling:
            name, followed = max(telling, key=lambda one: (one[1].last_at, one[0]))
        else:
            return None
        return Following(name, followed.table[origin])

    def row(self, origin: str, now: float) -> Row | None:
        """The row of `origin`, if anyone has told one."""
        followed = self.following(origin, now)
        return None if followed is None else followed.row

    def view_age_s(self, now: float) -> float | None:
        """Since the last view of any load balancer; None if there never was one."""
        last_at = max((lb.last_at for lb in self._lbs.values()), default=None)
        return None if last_at is None else now - last_at

    def _note_lb(self, view: MeshView, now: float) -> str:
        """Remember what a load balancer says of itself; why not, if the view is not its newest."""
        known = self._lbs.get(view.lb)
        cut_off = known is None or now - known.last_at > LB_FRESH_S
        if known is not None and not cut_off:
            if view.incarnation < known.incarnation:
                return "two load balancers go by this name, or a view of the one before came late"
            if view.incarnation == known.incarnation and view.seq < known.seq:
                return f"view {view.seq} came after {known.seq}"
        if known is None or cut_off or view.incarnation > known.incarnation:
            # New, restarted, or cut off from us: what it does not list it may not know yet.
            known = self._lbs[view.lb] = _Lb(view.incarnation, view.seq, now, now)
            while len(self._lbs) > LBS_MAX:
                del self._lbs[min(self._lbs, key=lambda name: self._lbs[name].last_at)]
        known.seq, known.last_at = view.seq, now
        known.suspects, known.table = view.suspects, view.table
        return ""

    def _merge_report(self, report: Report, said_at: float) -> bool:
        known = self._entries.get(report.info.node)
        if known is not None and said_at - known.heard_at > LEASE_S:
            known = None  # its lease was over: a word of today beats one of yesterday
        if known is None:
            # A word of leaving is kept too, against an older report that comes late.
            return self._put(report, said_at) and not report.leaving
        before = known.report
        if before.info is not report.info and before.info != report.info:
            return supersedes(report, before) and self._put(report, said_at)
        if report.seq < before.seq:
            return False
        known.report = report
        known.heard_at = max(known.heard_at, said_at)
        if said_at > known.load_at:
            known.load, known.load_at = report.load, said_at
        if before.leaving == report.leaving:
            return False
        self._infos = None
        return True

    def _renew(self, report: Report, said_at: float) -> None:
        """The node lives, but of what it says nothing can be used."""
        known = self._entries.get(report.info.node)
        if known is not None and known.report.info == report.info:
            known.heard_at = max(known.heard_at, said_at)

    def _put(self, report: Report, said_at: float) -> bool:
        if report.info.node not in self._entries and len(self._entries) >= NODES_MAX:
            return False
        self._infos = None
        self._entries[report.info.node] = _Entry(report, said_at, report.load, said_at)
        return True

    def _is_gone(self, entry: _Entry, now: float) -> bool:
        if now - entry.heard_at <= LEASE_S:
            return False
        return entry.report.leaving or any(
            now - lb.last_at <= LB_FRESH_S and lb.last_at - lb.since >= LB_SETTLED_S
            for lb in self._lbs.values()
        )
