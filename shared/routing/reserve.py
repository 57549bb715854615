"""What has been decided and not yet sent: visible to the next decision, and given back in any case.

Between a choice and its `Open` the link knows nothing of it. A lease counts it in between; whoever
took it gives it back in `finally`, when the link counts it itself, or nothing came of it.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Lease:
    """One request's place at a core. Giving it back twice does nothing."""

    core: str
    prompt_tokens: int
    _of: "Reservations"

    def give_back(self) -> None:
        """The place is free again, or counted by the link."""
        self._of._leases.pop(id(self), None)


@dataclass(slots=True)
class Reservations:
    """Leases that are out; as many as there are decisions under way."""

    _leases: dict[int, Lease] = field(default_factory=dict)

    def reserve(self, core: str, prompt_tokens: int) -> Lease:
        """Take a place."""
        lease = Lease(core, prompt_tokens, self)
        self._leases[id(lease)] = lease
        return lease

    def by_core(self) -> dict[str, tuple[int, int]]:
        """(requests, prompt tokens) by core; cores without any are not in it."""
        taken: dict[str, tuple[int, int]] = {}
        for lease in self._leases.values():
            requests, tokens = taken.get(lease.core, (0, 0))
            taken[lease.core] = requests + 1, tokens + lease.prompt_tokens
        return taken
