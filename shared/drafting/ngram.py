"""A drafter without a model: what followed the last time that the text looked like this.

It sits beside the core and at the edge alike. The index maps the `shortest` last ids to where they
stood before; a proposal extends those places backwards to find the longest match, and continues it.
"""

from collections.abc import Sequence

_PLACES_MAX = 8
"""Latest places kept an index entry."""


class NgramDrafter:
    """Longest-match drafter over a prompt and the ids committed to it; O(1) an id, bounded."""

    def __init__(
        self,
        ids: Sequence[int] = (),
        *,
        shortest: int = 2,
        longest: int = 16,
        ids_max: int = 16384,
    ) -> None:
        assert 1 <= shortest <= longest < ids_max // 2, (shortest, longest, ids_max)
        self._shortest, self._longest, self._ids_max = shortest, longest, ids_max
        self._ids: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}
        self.append(ids)

    def __len__(self) -> int:
        """Ids held: the latest `ids_max` at most."""
        return len(self._ids)

    def append(self, ids: Sequence[int]) -> None:
        """Index ids that are certain."""
        for token in ids:
            if len(self._ids) == self._ids_max:
                self._halve()
            self._ids.append(token)
            end = len(self._ids)
            if end >= self._shortest:
                places = self._places.setdefault(tuple(self._ids[-self._shortest :]), [])
                places.append(end)
                if len(places) > _PLACES_MAX:
                    del places[0]

    def propose(self, count: int, tail: Sequence[int] = ()) -> tuple[int, ...]:
        """Up to `count` ids after the indexed ones and `tail`, which are hoped for; () if none."""
        recent = [*self._ids[-self._longest :], *tail][-self._longest :]
        if count <= 0 or len(recent) < self._shortest:
            return ()
        best, length = 0, 0
        for place in reversed(self._places.get(tuple(recent[-self._shortest :]), ())):
            if place == len(self._ids) and not tail:
                continue  # the end itself
            matched = self._match(place, recent)
            if matched > length:
                best, length = place, matched
        return self._continue(best, tail, count) if length else ()

    def _match(self, place: int, recent: Sequence[int]) -> int:
        """How many ids before `place` equal the end of `recent`."""
        matched = 0
        while (
            matched < min(place, len(recent))
            and self._ids[place - 1 - matched] == recent[-1 - matched]
        ):
            matched += 1
        return matched

    def _continue(self, place: int, tail: Sequence[int], count: int) -> tuple[int, ...]:
        """What follows `place`; past the end, the proposal follows itself (a period)."""
        follow = [*self._ids[place : place + count], *tail][:count]
        period = len(self._ids) - place + len(tail)
        while len(follow) < count:
            follow.append(follow[len(follow) - period])
        return tuple(follow)

    def _halve(self) -> None:
        kept = self._ids[-(self._ids_max // 2) :]
        self._ids, self._places = [], {}
        self.append(kept)
