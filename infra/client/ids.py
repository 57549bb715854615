"""The token ids of one choice as a stream tells them, and how many of them have their text here.

Sans-IO. Chunks say `{offset, ids}`: these ids come on top of those before, and the text so far is
exactly that of the first `offset`. Ids beyond it are held back text; whoever goes on with the
stream is told them again, after an opening that says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from firstlight.shared.errors import PeerError

IDS_MAX = 1 << 20
"""Of one choice. No context is that long."""


@dataclass(slots=True)
class IdsTold:
    """What was told so far."""

    ids: list[int] = field(default_factory=list)
    offset: int = 0

    def feed(self, told: Mapping[str, object]) -> list[int]:
        """Take one chunk's `firstlight` object; returns its ids. Raises `PeerError`."""
        if "cap" in told:
            self.rewind()
        ids = told.get("ids", [])
        if not isinstance(ids, list) or not all(type(i) is int for i in ids):
            raise PeerError(f"ids should be a list of integers, got {ids!r:.80}")
        known = len(self.ids) + len(ids)
        if known > IDS_MAX:
            raise PeerError(f"{known} ids of one choice, at most {IDS_MAX} can be")
        offset = told.get("offset", self.offset)
        if type(offset) is not int or not self.offset <= offset <= known:
            raise PeerError(
                f"offset should be from {self.offset} to {known} here, got {offset!r:.80}"
            )
        self.offset = offset
        self.ids.extend(ids)
        return ids

    def rewind(self) -> None:
        """Forget ids whose text is not here: they come again."""
        del self.ids[self.offset :]
