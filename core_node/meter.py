"""Counts what the core does. Decisions return reasons; this shell turns them into metrics.

All of it is counted once a step, when the step's frames are out, and at most once for each
sequence in it; never for each token. A commit of several tokens is one observation of the
inter-token latency, the time since the commit before, as vLLM counts an output with several
tokens: dividing it would invent waits that nobody saw.
"""

from collections import Counter
from dataclasses import dataclass

from firstlight.core_node.backends.backend import ABORTED, Batch
from firstlight.shared import telemetry
from firstlight.shared.errors import FirstlightError
from firstlight.shared.types import Commit, Done, Load, Role

SOURCES = frozenset({"edge-ngram", "edge-model", "edge-oracle", "core-ngram", "core-oracle"})
"""Sources with a label of their own; edges may name others."""
ENGINE = "0"
"""vLLM numbers the engines of a process; a core has one."""
FOLLOWED_MAX = 4096
"""More requests than a core takes at a time; beyond it the oldest is followed no further."""


@dataclass(slots=True)
class _Answer:
    """Times of an answer that has begun, on the engine's clock."""

    arrived_s: float
    first_s: float
    latest_s: float


class Meter:
    """The metrics of one model; label lookups are made once, where the labels are known."""

    def __init__(self, model: str) -> None:
        self._labels = labels = (model, ENGINE)
        self._running = telemetry.REQUESTS_RUNNING.labels(*labels)
        self._waiting = telemetry.REQUESTS_WAITING.labels(*labels)
        self._kv_usage = telemetry.KV_USAGE.labels(*labels)
        self._prefix_queries = telemetry.PREFIX_QUERIES.labels(*labels)
        self._prefix_hits = telemetry.PREFIX_HITS.labels(*labels)
        self._prompt = telemetry.PROMPT_TOKENS.labels(*labels)
        self._generated = telemetry.GENERATION_TOKENS.labels(*labels)
        self._preemptions = telemetry.PREEMPTIONS.labels(*labels)
        self._step_tokens = telemetry.STEP_TOKENS.labels(*labels)
        self._step_seconds = telemetry.STEP_SECONDS.labels(model)
        self._queue_seconds = telemetry.QUEUE_SECONDS.labels(*labels)
        self._prefill_seconds = telemetry.PREFILL_SECONDS.labels(*labels)
        self._decode_seconds = telemetry.DECODE_SECONDS.labels(*labels)
        self._ttft_seconds = telemetry.ENGINE_TTFT_SECONDS.labels(*labels)
        self._itl_seconds = telemetry.ITL_SECONDS.labels(*labels)
        self._e2e_seconds = telemetry.ENGINE_E2E_SECONDS.labels(*labels)
        self._drafts = telemetry.DRAFTS.labels(*labels)
        self._drafted = telemetry.DRAFT_TOKENS.labels(*labels)
        self._accepted = telemetry.ACCEPTED_TOKENS.labels(*labels)
        self._answers: dict[str, _Answer] = {}

    def load(self, load: Load) -> None:
        """What the core says of itself now."""
        self._running.set(load.running)
        self._waiting.set(load.queued)
        self._kv_usage.set(load.kv_used_share)

    def refused(self, error: FirstlightError) -> None:
        """A request was refused or failed."""
        telemetry.REQUESTS_REFUSED.labels(str(Role.CORE), str(error.kind)).inc()

    def frame(self, direction: str, size_bytes: int) -> None:
        """A frame went over a link."""
        telemetry.LINK_FRAMES.labels(direction).inc()
        telemetry.LINK_BYTES.labels(direction).inc(size_bytes)

    def links(self, count: int) -> None:
        """How many edges are linked."""
        telemetry.LINKS.set(count)

    def lost(self, reason: str) -> None:
        """A link ended."""
        telemetry.LINK_LOSSES.labels(reason).inc()

    def batch(self, batch: Batch) -> None:
        """What a step brought."""
        generated = sum(len(commit.ids) for commit in batch.commits)
        if batch.rows:
            self._step_tokens.observe(batch.prefill_tokens + generated)
            self._step_seconds.observe(batch.ms / 1000)
        self._generated.inc(generated)
        self._preemptions.inc(batch.preemptions)
        for commit in batch.commits:
            self._commit(commit, batch.ended_s)
        if batch.drafts:
            self._drafts_of(batch)
        for done in batch.done:
            self._hints(done)
        for source, ids in batch.hint_ids_dropped:
            telemetry.HINT_TOKENS.labels(_label(source), "dropped").inc(ids)
        for handle, how in batch.endings:
            self._ended(handle, how)
        for failure in batch.failures:
            self._answers.pop(failure.handle, None)

    def _commit(self, commit: Commit, now: float) -> None:
        if commit.queue_ms is None or commit.prefill_ms is None:
            answer = self._answers.get(commit.request)
            if answer is not None:
                self._itl_seconds.observe(now - answer.latest_s)
                answer.latest_s = now
            return
        ttft_s = (commit.queue_ms + commit.prefill_ms) / 1000
        self._queue_seconds.observe(commit.queue_ms / 1000)
        self._prefill_seconds.observe(commit.prefill_ms / 1000)
        self._ttft_seconds.observe(ttft_s)
        self._prompt.inc(commit.position)  # all before the first id that is new
        self._prefix_queries.inc(commit.position)
        self._prefix_hits.inc(commit.cached_tokens or 0)
        self._answers[commit.request] = _Answer(now - ttft_s, now, now)
        if len(self._answers) > FOLLOWED_MAX:
            del self._answers[next(iter(self._answers))]

    def _ended(self, handle: str, how: str) -> None:
        telemetry.ENGINE_SUCCESS.labels(*self._labels, how).inc()
        answer = self._answers.pop(handle, None)
        if answer is not None and how != ABORTED:
            self._decode_seconds.observe(answer.latest_s - answer.first_s)
            self._e2e_seconds.observe(answer.latest_s - answer.arrived_s)

    def _drafts_of(self, batch: Batch) -> None:
        self._drafts.inc(len(batch.drafts))
        self._drafted.inc(sum(drafted for drafted, _ in batch.drafts))
        self._accepted.inc(sum(accepted for _, accepted in batch.drafts))
        # What agrees is a leading part of a draft: everything after the first that differs is void.
        places = Counter(place for _, accepted in batch.drafts for place in range(accepted))
        for place, count in places.items():
            telemetry.ACCEPTED_TOKENS_PER_POS.labels(*self._labels, str(place)).inc(count)

    def _hints(self, done: Done) -> None:
        for source, count in done.hints:
            for fate in ("offered", "verified", "accepted"):
                telemetry.HINT_TOKENS.labels(_label(source), fate).inc(getattr(count, fate))


def _label(source: str) -> str:
    return source if source in SOURCES else "other"
