"""Counts what the core does. Decisions return reasons; this shell turns them into metrics."""

from firstlight.core_node.backends.backend import Batch
from firstlight.shared import telemetry
from firstlight.shared.errors import FirstlightError
from firstlight.shared.types import Commit, Done, Load, Role

SOURCES = frozenset({"edge-ngram", "edge-model", "core-ngram"})
"""Sources with a label of their own; edges may name others."""


class Meter:
    """The metrics of one model; label lookups are made once."""

    def __init__(self, model: str) -> None:
        self._running = telemetry.REQUESTS_RUNNING.labels(model)
        self._waiting = telemetry.REQUESTS_WAITING.labels(model)
        self._kv_usage = telemetry.KV_USAGE.labels(model)
        self._prefix_queries = telemetry.PREFIX_QUERIES.labels(model)
        self._prefix_hits = telemetry.PREFIX_HITS.labels(model)
        self._generated = telemetry.GENERATION_TOKENS.labels(model)
        self._step_tokens = telemetry.STEP_TOKENS.labels(model)
        self._step_seconds = telemetry.STEP_SECONDS.labels(model)
        self._queue_seconds = telemetry.QUEUE_SECONDS.labels(model)
        self._prefill_seconds = telemetry.PREFILL_SECONDS.labels(model)
        self._drafted = telemetry.DRAFT_TOKENS.labels(model)
        self._accepted = telemetry.ACCEPTED_TOKENS.labels(model)

    def load(self, load: Load) -> None:
        """What the core says of itself now."""
        self._running.set(load.running)
        self._waiting.set(load.queued)
        self._kv_usage.set(load.kv_used_share)

    def opened(self, tokens: int) -> None:
        """A request was accepted with this many prompt and committed ids."""
        self._prefix_queries.inc(tokens)

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
        if batch.rows:
            self._step_tokens.observe(batch.rows)
            self._step_seconds.observe(batch.ms / 1000)
        for commit in batch.commits:
            self._commit(commit)
        for done in batch.done:
            self._hints(done)

    def _commit(self, commit: Commit) -> None:
        self._generated.inc(len(commit.ids))
        if commit.cached_tokens is not None:
            self._prefix_hits.inc(commit.cached_tokens)
        if commit.queue_ms is not None:
            self._queue_seconds.observe(commit.queue_ms / 1000)
        if commit.prefill_ms is not None:
            self._prefill_seconds.observe(commit.prefill_ms / 1000)

    def _hints(self, done: Done) -> None:
        for source, count in done.hints:
            label = source if source in SOURCES else "other"
            self._drafted.inc(count.verified)
            self._accepted.inc(count.accepted)
            for fate in ("offered", "verified", "accepted"):
                telemetry.HINT_TOKENS.labels(label, fate).inc(getattr(count, fate))
