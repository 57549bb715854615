"""What a view names: news at once, and of the rest whoever was named longest ago. Sans-IO.

No news waits, and with 4 views a second every node is named at least every 2 s: often enough for
leases, and seldom enough that a large mesh costs an edge little, which hears loads on its own links
anyway. A view is a bag of newest words with their ages: who misses one has missed no more.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from itertools import islice
from math import ceil

from firstlight.global_lb.membership import Lease
from firstlight.shared.claims import order
from firstlight.shared.types import Role

NEWS_MAX = 1024
"""In one view; what is more comes with the next."""
VIEWS_FOR_ALL = 8
"""So many views name all nodes."""
REST_MIN = 64
"""In one view, if there are as many: a small mesh is told of everyone in each."""


class Board:
    """What nodes of some kind are told of nodes of `roles`."""

    def __init__(self, roles: Collection[Role], *, rest_min: int = REST_MIN) -> None:
        self._roles = frozenset(roles)
        self._rest_min = rest_min
        self._news: OrderedDict[str, None] = OrderedDict()
        self._named: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """Node → which word of it was told; those named longest ago first."""

    def news(self, node: str) -> None:
        """This node came, left or is another now."""
        self._news[node] = None

    @property
    def more(self) -> bool:
        """Whether there is news left that no view has named yet."""
        return bool(self._news)

    def whole(self, known: Mapping[str, Lease]) -> tuple[Lease, ...]:
        """All that there is to tell, for who was told nothing yet."""
        return tuple(lease for lease in known.values() if self._concerns(lease))

    def next(self, known: Mapping[str, Lease]) -> tuple[Lease, ...]:
        """What the next view names."""
        named = []
        for _ in range(min(NEWS_MAX, len(self._news))):
            node, _ = self._news.popitem(last=False)
            lease = known.get(node)
            if lease is not None and self._concerns(lease):
                named.append(lease)
                self._told(lease)
        fresh = {lease.report.info.node for lease in named}
        count = max(self._rest_min, ceil(len(self._named) / VIEWS_FOR_ALL))
        for node in list(islice(self._named, count)):
            lease = known.get(node)
            if node in fresh:
                break  # and so are all behind it
            if lease is None:
                del self._named[node]
            elif self._named[node] != order(lease.report):
                named.append(lease)
                self._told(lease)
            else:
                self._named.move_to_end(node)
        return tuple(named)

    def _told(self, lease: Lease) -> None:
        node = lease.report.info.node
        self._named[node] = order(lease.report)
        self._named.move_to_end(node)

    def _concerns(self, lease: Lease) -> bool:
        return lease.report.info.role in self._roles
