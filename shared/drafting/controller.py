"""How far to trust each source of drafts: which of its ids are worth a row in a step.

Every source has a prior (for the one model that an engine runs) that all requests teach, and each
request keeps an average of its own that starts from it. A source whose average does not pay by the
step-time table is switched off for that request, with hysteresis; then only one request in
`PROBE_EVERY` still tries it, so that a source that became good is found out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firstlight.shared.drafting.steptimes import StepTimes

PROBE_EVERY = 16
PRIOR = 0.5
_PRIOR_WEIGHT = 1 / 128
_WEIGHT = 1 / 8
_MARGIN = 0.1
_SOURCES_MAX = 32
_OTHER = "other"


@dataclass(slots=True)
class _Trust:
    """What one request thinks of one source."""

    average: float
    on: bool = True


@dataclass(slots=True)
class _Asker:
    probe: bool
    trusts: dict[str, _Trust]


class Controller:
    """Acceptance by source and request."""

    def __init__(self, priors: Mapping[str, float] | None = None) -> None:
        self._priors = dict(priors or {})
        self._askers: dict[str, _Asker] = {}
        self._seen = 0

    def prior(self, source: str) -> float:
        """Acceptance that a new request expects of a source."""
        return self._priors.get(source, PRIOR)

    def acceptance(self, request: str, source: str) -> float:
        """Probability that an id of `source` is right, given that those before it were."""
        return self._trust(request, source).average

    def survival(self, request: str, sources: Sequence[str]) -> tuple[float, ...]:
        """Probability of each id of a candidate that it and all before it are right."""
        odds, chain = [], 1.0
        for source in sources:
            chain *= self.acceptance(request, source)
            odds.append(chain)
        return tuple(odds)

    def permits(
        self, request: str, source: str, times: StepTimes, *, rows: int, sequences: int, most: int
    ) -> bool:
        """Whether ids of `source` may have rows for this request, in a step of `rows` without them.

        On until clearly below break-even, off until clearly above it.
        """
        trust = self._trust(request, source)
        bent = trust.average * (1 + _MARGIN if trust.on else 1 - _MARGIN)
        trust.on = pays(min(bent, 1.0), times, rows=rows, sequences=sequences, most=most)
        return trust.on

    def probes(self, request: str) -> bool:
        """Whether this request is the one in `PROBE_EVERY` that tries sources that are off."""
        return self._asker(request).probe

    def observe(self, request: str, source: str, matched: bool) -> None:
        """An id of `source` was verified, and all before it were right."""
        name = self._name(source)
        trust = self._trust(request, name)
        trust.average += _WEIGHT * (matched - trust.average)
        prior = self.prior(name)
        self._priors[name] = prior + _PRIOR_WEIGHT * (matched - prior)

    def forget(self, request: str) -> None:
        """The request ended."""
        self._askers.pop(request, None)

    def _asker(self, request: str) -> _Asker:
        asker = self._askers.get(request)
        if asker is None:
            asker = self._askers[request] = _Asker(self._seen % PROBE_EVERY == 0, {})
            self._seen += 1
        return asker

    def _trust(self, request: str, source: str) -> _Trust:
        name, trusts = self._name(source), self._asker(request).trusts
        if name not in trusts:
            trusts[name] = _Trust(self.prior(name))
        return trusts[name]

    def _name(self, source: str) -> str:
        if source in self._priors:
            return source
        if len(self._priors) >= _SOURCES_MAX:
            source = _OTHER
        self._priors.setdefault(source, PRIOR)
        return source


def pays(acceptance: float, times: StepTimes, *, rows: int, sequences: int, most: int) -> bool:
    """Whether some number of extra rows, up to `most`, raises the ids a ms of a step.

    A step of `rows` rows yields `sequences` ids; k rows of one draft add a + a² + … + aᵏ.
    """
    expected, chain = float(sequences), 1.0
    plain = expected / times.ms(rows)
    for extra in range(1, most + 1):
        chain *= acceptance
        expected += chain
        if expected / times.ms(rows + extra) > plain:
            return True
    return False


def worth_drafting(
    acceptance: float,
    times: StepTimes,
    *,
    sequences: int,
    odds: Sequence[float],
    token_ms: float,
    most: int,
) -> tuple[int, int]:
    """(behind how many ids of a candidate, how many) to draft for each of `sequences`.

    The step waits for the drafter: `token_ms` an id, one sequence after the other. With k ids
    behind the first b of a candidate, whose ids have these `odds`, it yields in ids a ms

        sequences · (1 + Σ odds[:b] + o · (a + a² + … + aᵏ)) / (step_ms + sequences · k · token_ms)

    where o are the odds that those b are right. The best b and k, b + k up to `most`; what is left
    of the candidate gives way. No id at all is one possibility.
    """
    alone_ms = [times.ms(sequences * (1 + rows)) for rows in range(most + 1)]
    best, chosen = 0.0, (0, 0)
    for behind in range(min(len(odds), most), -1, -1):
        chain = odds[behind - 1] if behind else 1.0
        expected = 1.0 + sum(odds[:behind])
        for count in range(most - behind + 1):
            rate = expected / (alone_ms[behind + count] + sequences * count * token_ms)
            if rate > best:
                best, chosen = rate, (behind, count)
            chain *= acceptance
            expected += chain
    return chosen
