"""What a step's rows mean for the sequence that they belong to. Sans-IO.

The first row follows ids that are certain; each one after it follows a drafted id, and counts only
if that id is the one that the row before it chose. So rows are read in order, up to the first that
ends the answer, failed, or disagrees with the draft: an answer that ends never meets what would
have come behind its end.
"""

from collections import Counter
from dataclasses import dataclass

from firstlight.shared.engine.plan import Outcome
from firstlight.shared.engine.sampler import Sampled
from firstlight.shared.engine.scheduler import Work
from firstlight.shared.stream import ending
from firstlight.shared.types import FinishReason, HintCount


@dataclass(frozen=True, slots=True)
class Verdict:
    """The rows that count, and what the last of them brought."""

    reached: tuple[Sampled, ...]
    matches: tuple[tuple[str, bool], ...] = ()
    """(source, whether it was right) of each drafted id that came to be compared."""
    finish: FinishReason | None = None
    error: str = ""
    """Why there is no id to commit; then nothing else of it counts."""
    spoiled: bool = False
    """A row behind those that count failed: its KV is not to be trusted."""

    @property
    def ids(self) -> tuple[int, ...]:
        """What is committed."""
        return tuple(one.id for one in self.reached)


def judge(work: Work, sampled: tuple[Sampled, ...]) -> Verdict:
    """Read the rows of one sequence; there is one a drafted id and one more."""
    request, generated = work.sequence.request, work.sequence.generated
    matches: list[tuple[str, bool]] = []
    for place, one in enumerate(sampled):
        reached = sampled[: place + 1]
        if one.error:
            return Verdict(reached, tuple(matches), error=one.error)
        if place < len(work.drafted):
            matches.append((work.sources[place], work.drafted[place] == one.id))
        finish = ending(
            one.id,
            generated=generated + place + 1,
            max_tokens=request.max_tokens,
            eos_ids=request.eos_ids,
        )
        if finish or (place < len(work.drafted) and not matches[-1][1]):
            spoiled = any(row.error for row in sampled[place + 1 :])
            return Verdict(reached, tuple(matches), finish, spoiled=spoiled)
    return Verdict(sampled, tuple(matches))


def outcome(work: Work, verdict: Verdict) -> Outcome:
    """What is told of it; the first outcome of a sequence says also how it came to its place.

    Call it before the sequence takes the ids.
    """
    sequence, started_s = work.sequence, work.sequence.first_step_s
    assert started_s is not None
    fresh, sequence.reported = not sequence.reported, True
    accepted = Counter(source for source, matched in verdict.matches if matched)
    return Outcome(
        request=sequence.id,
        epoch=sequence.epoch,
        position=sequence.known,
        ids=verdict.ids,
        logprobs=tuple(one.logprobs for one in verdict.reached if one.logprobs is not None),
        cached_tokens=sequence.cached_tokens if fresh else None,
        queue_ms=(started_s - sequence.arrived_s) * 1000 if fresh else None,
        started_s=started_s if fresh else None,
        verified=tuple(
            (source, HintCount(verified=count, accepted=accepted[source]))
            for source, count in sorted(Counter(work.sources).items())
        ),
        finish=verdict.finish,
    )
