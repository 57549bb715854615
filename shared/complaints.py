"""What is worth a line in the log, and what was said already. Sans-IO.

A node that speaks nonsense does so four times a second. It is named once, and again after a minute
if it goes on.
"""

from collections import OrderedDict

AGAIN_S = 60.0
KEPT_MAX = 1024
"""Beyond that the oldest complaint is forgotten, and may be made once more."""


class Complaints:
    """Of one process, about others."""

    def __init__(self, again_s: float = AGAIN_S) -> None:
        self._again_s = again_s
        self._made: OrderedDict[tuple[str, str], float] = OrderedDict()

    def new(self, node: str, what: str, now: float) -> bool:
        """Whether to say `what` of a node; if so, it counts as said."""
        made_at = self._made.get((node, what))
        if made_at is not None and now - made_at < self._again_s:
            return False
        self._made[node, what] = now
        self._made.move_to_end((node, what))
        while len(self._made) > KEPT_MAX:
            self._made.popitem(last=False)
        return True
