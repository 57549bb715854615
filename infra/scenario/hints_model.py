"""What hints should bring: tokens a second of one stream at a core that is otherwise idle.

With round trip R, step V (of so many rows), d for a drafted token, each drafted id right with
probability a given that those before it were, and E(a, k) = 1 + a + … + aᵏ:

    plain                  1 / V
    turns                  max over k of E(a, k) / (R + k·d + V)         send k drafts, wait, repeat
    beside the core        max over k of E(a, k) / (V + k·d)             steps wait for the drafter
    hints, closed form     (N + 1 + L) / ((N + 1)·V + L·d + V),  if d < V, and never below plain

In the last one the edge must overtake a core that does not wait: n = R / (V − d) ids in a row must
be right before one is in time, which takes N = (1 − aⁿ) / ((1 − a)·aⁿ) ids that the core decodes
alone; then L = 1 / (1 − a) of them come at the drafter's own speed. Chen et al. 2023 (2302.01318)
give E; a remote draft's race with a core that does not wait is our own derivation.

`simulate` plays that race event by event, which the closed form only approximates: an edge that
drafts on and on, starts again when a commit disagrees with it, jumps when one is ahead of it; a
core that verifies in each step all ids in a row that are there, with a drafter beside it or not.
Left out are jitter, loss, prefill, and all work of the nodes but drafts and steps. Sans-IO.
"""

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, inf
from random import Random
from typing import Literal

from pydantic import BaseModel, ConfigDict

from firstlight.shared.engine.oracle import OracleConfig
from firstlight.shared.engine.steptable import TABLES, StepTable

DRAFTS_MAX = 64
"""Drafts a turn or step that are tried for the best number."""


def flat(step_ms: float) -> StepTable:
    """Steps that take as long for any number of rows."""
    return StepTable(points=((1, step_ms),))


def plain(table: StepTable) -> float:
    """Tokens a second without drafts."""
    return 1000 / table.ms(1)


def expected(acceptance: float, drafts: int) -> float:
    """E(a, k): ids that verifying k of them gives."""
    return sum(acceptance**place for place in range(drafts + 1))


def turns(table: StepTable, rtt_ms: float, edge: OracleConfig, most: int = DRAFTS_MAX) -> float:
    """Tokens a second of an edge and a core that take turns, with the best number of drafts."""
    return 1000 * max(
        expected(edge.acceptance, k) / (rtt_ms + k * edge.token_ms + table.ms(k + 1))
        for k in range(1, most + 1)
    )


def beside(table: StepTable, core: OracleConfig, most: int = DRAFTS_MAX) -> float:
    """Tokens a second with a drafter that each step waits for, with the best number of drafts."""
    return 1000 * max(
        expected(core.acceptance, k) / (k * core.token_ms + table.ms(k + 1))
        for k in range(most + 1)
    )


def hints_closed(step_ms: float, rtt_ms: float, edge: OracleConfig) -> float:
    """Tokens a second of a core that takes hints and never waits, where rows cost nothing."""
    a, d = edge.acceptance, edge.token_ms
    if d >= step_ms or a <= 0:
        return 1000 / step_ms
    if a >= 1:
        return 1000 / d
    survives: float = a ** (rtt_ms / (step_ms - d))
    alone = (1 - survives) / ((1 - a) * survives)
    run = 1 / (1 - a)
    return 1000 * max((alone + 1 + run) / ((alone + 1) * step_ms + run * d + step_ms), 1 / step_ms)


@dataclass(frozen=True, slots=True)
class _Sent:
    """An id on its way to the core."""

    arrives_ms: float
    position: int
    wrong_at: float
    """Where its chain went wrong, at or before it; ∞ if it has not."""


@dataclass
class _Edge:
    """Drafts on and on; a commit takes `way_ms` to it, an id as long to the core."""

    drafter: OracleConfig
    way_ms: float
    lead_max: int
    rng: Random
    sent: deque[_Sent] = field(default_factory=deque)
    commits: deque[tuple[float, int]] = field(default_factory=deque)
    """(when it is here, positions below it are committed)."""
    committed: int = 0
    next: int = 0
    wrong_at: float = inf
    due_ms: float = 0.0

    def __post_init__(self) -> None:
        """The first id is begun with the request."""
        self.due_ms = self.drafter.token_ms

    def advance(self, until_ms: float) -> None:
        """Whatever happens here until then."""
        while True:
            heard_ms = self.commits[0][0] if self.commits else inf
            drafted_ms = inf if self._stands else self.due_ms
            if min(heard_ms, drafted_ms) > until_ms:
                return
            if heard_ms <= drafted_ms:
                self._hear(*self.commits.popleft())
            else:
                self._draft()

    @property
    def _stands(self) -> bool:
        return self.next - self.committed >= self.lead_max

    def _draft(self) -> None:
        if self.wrong_at == inf and self.rng.random() >= self.drafter.acceptance:
            self.wrong_at = self.next
        self.sent.append(_Sent(self.due_ms + self.way_ms, self.next, self.wrong_at))
        self.next += 1
        self.due_ms += self.drafter.token_ms

    def _hear(self, now_ms: float, committed: int) -> None:
        stood, self.committed = self._stands, committed
        if self.wrong_at < committed or self.next < committed:
            self.next, self.wrong_at = committed, inf
            stood = True
        if stood:
            self.due_ms = now_ms + self.drafter.token_ms


class HintsModel(BaseModel):
    """One stream: what is drafted for it, and where."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: Literal["h100-8b", "h100-70b", "smollm2-cpu"] | StepTable | float
    """Its steps by rows: a table, as `model.timed` of a core, or ms whatever the rows."""
    rtt_ms: float = 0.0
    """Between edge and core."""
    edge: OracleConfig | None = None
    """What drafts at the edge."""
    core: OracleConfig | None = None
    """What drafts beside the core; behind what the edge has foretold, and the step waits for it."""
    hint_ids_max: int = 7
    """As of the core's engine: most drafted ids in a step."""
    lead_beyond: int = 16
    """The edge stands so many ids beyond those that it drafts in a round trip."""
    overhead_ms: float = 0.0
    """Of each step, beside what the table says."""

    @property
    def table(self) -> StepTable:
        """How long steps take."""
        if isinstance(self.step, StepTable):
            return self.step
        return TABLES[self.step] if isinstance(self.step, str) else flat(self.step)

    def simulate(self, tokens: int = 20_000, seed: int = 1) -> float:
        """Tokens a second over an answer of so many."""
        rng, table = Random(seed), self.table
        edge = self._edge(rng)
        held: dict[int, _Sent] = {}
        now_ms, position = 0.0, 0
        while position < tokens:
            if edge is not None:
                edge.advance(now_ms - edge.way_ms)
                while edge.sent and edge.sent[0].arrives_ms <= now_ms:
                    sent = edge.sent.popleft()
                    held[sent.position] = sent
            remote, right = self._candidate(held, position)
            more = self._worth(remote) if self.core is not None else 0
            if self.core is not None:
                now_ms += more * self.core.token_ms
                if right == remote:
                    right += _run(self.core.acceptance, more, rng)
            now_ms += table.ms(1 + remote + more) + self.overhead_ms
            for passed in range(position, position + right + 1):
                held.pop(passed, None)
            position += right + 1
            if edge is not None:
                edge.commits.append((now_ms + edge.way_ms, position))
        return 1000 * position / now_ms

    def _edge(self, rng: Random) -> _Edge | None:
        if self.edge is None:
            return None
        lead_max = ceil(self.rtt_ms / self.edge.token_ms) + self.lead_beyond
        return _Edge(self.edge, self.rtt_ms / 2, lead_max, rng)

    def _candidate(self, held: dict[int, _Sent], position: int) -> tuple[int, int]:
        """(ids in a row from the edge that fit, how many of them are right)."""
        rows = right = 0
        while rows < self.hint_ids_max and (sent := held.get(position + rows)) is not None:
            if sent.wrong_at < position:
                break
            rows += 1
            right += sent.wrong_at == inf
        return rows, right

    def _worth(self, remote: int) -> int:
        """How many ids the drafter beside the core adds to so many from the edge."""
        assert self.core is not None
        edge, core = self.edge or self.core, self.core
        sure, odds = expected(edge.acceptance, remote), edge.acceptance**remote

        def rate(more: int) -> float:
            gained = odds * (expected(core.acceptance, more) - 1)
            return (sure + gained) / (self.table.ms(1 + remote + more) + more * core.token_ms)

        return max(range(self.hint_ids_max - remote + 1), key=rate)


def _run(acceptance: float, most: int, rng: Random) -> int:
    """How many ids in a row are right, of `most`."""
    run = 0
    while run < most and rng.random() < acceptance:
        run += 1
    return run


@lru_cache(maxsize=256)
def tokens_per_s(model: HintsModel) -> float:
    """Of `model`, as simulated over a long answer."""
    return model.simulate()
