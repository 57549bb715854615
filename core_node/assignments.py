"""Which link owns which request, and under what epoch. Sans-IO.

Requests are named by the edge's certificate and the edge's own id, so no edge can reach another's;
and only the link that opened a request may cancel, credit or hint it. Each assignment gets a handle
that is never used twice: what still arrives for a cancelled one is recognised by it.
"""

from dataclasses import dataclass

from firstlight.shared.errors import StaleError


@dataclass(frozen=True, slots=True)
class Assignment:
    """One request on this core, from its `Open` to its end."""

    handle: str
    edge: str
    link: int
    request: str
    epoch: int


class Assignments:
    """All requests that have been opened and have not ended."""

    def __init__(self) -> None:
        self._by_handle: dict[str, Assignment] = {}
        self._by_request: dict[tuple[str, str], Assignment] = {}
        self._cancelled: dict[str, Assignment] = {}
        self._made = 0

    def __len__(self) -> int:
        """How many run or wait; cancelled ones do not count."""
        return len(self._by_handle)

    def open(
        self, edge: str, link: int, request: str, epoch: int
    ) -> tuple[Assignment, Assignment | None]:
        """(the new assignment, the one that it replaces).

        A higher epoch or a new link replaces what runs; otherwise raises `StaleError`.
        """
        old = self._by_request.get((edge, request))
        if old is not None and old.link == link and epoch <= old.epoch:
            raise StaleError(
                f"request {request} runs in epoch {old.epoch}, but was opened as {epoch}"
            )
        if old is not None:
            self.end(old.handle)
        self._made += 1
        new = Assignment(f"{link}.{self._made}", edge, link, request, epoch)
        self._by_handle[new.handle] = new
        self._by_request[edge, request] = new
        return new, old

    def of(self, handle: str) -> Assignment | None:
        """The assignment behind a handle; None once it has ended."""
        return self._by_handle.get(handle)

    def owned(self, edge: str, link: int, request: str) -> Assignment | None:
        """The assignment of `request` if this very link holds it."""
        found = self._by_request.get((edge, request))
        return found if found is not None and found.link == link else None

    def end(self, handle: str) -> None:
        """Forget an assignment; harmless if it has ended."""
        ended = self._by_handle.pop(handle, None)
        if ended is not None:
            del self._by_request[ended.edge, ended.request]

    def cancel(self, handle: str) -> None:
        """End an assignment whose statistics are still to come."""
        self._cancelled[handle] = self._by_handle[handle]
        self.end(handle)

    def settle(self, handle: str) -> Assignment | None:
        """End the assignment, running or cancelled, whose statistics have come."""
        found = self._by_handle.get(handle) or self._cancelled.pop(handle, None)
        self.end(handle)
        return found

    def leave(self, link: int) -> tuple[Assignment, ...]:
        """Forget a link; returns what it still held."""
        held = tuple(item for item in self._by_handle.values() if item.link == link)
        for item in held:
            self.end(item.handle)
        for item in [item for item in self._cancelled.values() if item.link == link]:
            del self._cancelled[item.handle]
        return held

    def all(self) -> tuple[Assignment, ...]:
        """Everything that runs or waits."""
        return tuple(self._by_handle.values())
