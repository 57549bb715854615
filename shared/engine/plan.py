"""What goes from the scheduler to a runner and back: the whole of a step, as values."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isfinite
from typing import Literal, Protocol

from firstlight.shared.blocks import BLOCK_TOKENS, Buffer
from firstlight.shared.engine.kv.manager import Moves
from firstlight.shared.engine.sampler import Sampled
from firstlight.shared.errors import ConfigError, FirstlightError
from firstlight.shared.sampling import Draw
from firstlight.shared.types import FinishReason, HintCount, Priority, TokenLogprobs

_SPARE_SHARE = 1.5
"""Of the time that a step's decodes take, what is added to them may take at least."""
_SPARE_SHARE_CROWDED = 3.0
"""The same once decodes alone take longer than a step may: no gap is short any more, and who waits
for a first token waits longest."""


@dataclass(frozen=True, slots=True)
class Slas:
    """Seconds to the first id that each priority class is promised.

    They order a class (who is due first), and are what waiting is measured by (`engine.queue`), and
    how long those who decode may rest (`engine.rests`).
    """

    critical_s: float = 0.5
    interactive_s: float = 1.0
    batch_s: float = 8.0
    best_effort_s: float = 30.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` unless they are above 0 and none is below that of a higher class."""
        least_s = 0.0
        for one in Priority:
            name, value_s = f"{one.name.lower()}_s", self.of(one)
            if not (value_s > 0 and least_s <= value_s and isfinite(value_s)):
                raise ConfigError(
                    f"slas.{name} is {value_s}, not above 0 and at least {least_s}, "
                    "what the class above is promised"
                )
            least_s = value_s

    def of(self, priority: int) -> float:
        """Of one class."""
        return (self.critical_s, self.interactive_s, self.batch_s, self.best_effort_s)[priority]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of one engine. Everything in it is bounded by one of these."""

    blocks: int = 1024
    """KV blocks of 16 tokens in the pool."""
    host_blocks: int = 256
    """Blocks of the host tier, which gets what the pool evicts and other nodes send; 0: none."""
    copy_bytes_per_s: float | None = None
    """Of copies between the two tiers, one way: says whether a sequence that loses its place is
    copied to the host tier or computed again. Null: a core measures it when it loads its model; an
    engine that is told nothing computes again."""
    context_max: int = 8192
    """Tokens of one sequence, prompt and answer; a core cuts it to what its model can hold."""
    sequences_max: int = 16
    """Sequences that hold KV at the same time."""
    waiting_max: int = 64
    """Sequences that wait beyond those; more are refused."""
    step_tokens_max: int = 512
    prefill_chunk: int = 256
    """Most prompt tokens in a step, all sequences together."""
    step_max_ms: float = 70.0
    """What decoding sequences share a step with, prefill or drafts, is cut so that the step takes
    this, or two and a half times what they take alone if that is more (four times once they alone
    take longer than this): it bounds the gap of others, and prefill goes on."""
    step_alone_max_ms: float = 250.0
    """The same while nobody decodes; it bounds how long a cancel can take."""
    pinned_share: float = 0.25
    """Of the pool's blocks, how many may be pinned, handovers included."""
    handovers_max: int = 16
    """Prefixes that are kept for other nodes to fetch; beyond it the oldest is let go."""
    handover_s: float = 30.0
    """How long one is kept, unless it is released."""
    hint_ids_max: int = 7
    """Most drafted ids of one sequence in a step."""
    credit_timeout_s: float = 30.0
    slas: Slas = Slas()
    ageing_slas: float = 8.0
    """A wait of this many times its class's SLA lifts a sequence to the class above."""
    preemptions_max: int = 8
    """So often a sequence may lose its place to more important ones that want to run; after that
    it loses it only to a lack of blocks."""
    speculation: Literal["auto", "always", "off"] = "auto"

    def __post_init__(self) -> None:
        """Raise `ConfigError` for limits that contradict each other."""
        for name in ("blocks", "context_max", "sequences_max", "prefill_chunk"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, not at least 1")
        for name in (
            "step_max_ms",
            "step_alone_max_ms",
            "credit_timeout_s",
            "ageing_slas",
            "copy_bytes_per_s",
            "handover_s",
        ):
            value = getattr(self, name)
            if not (value is None or value > 0):
                raise ConfigError(f"{name} is {value}, not above 0")
        for name in (
            "waiting_max",
            "hint_ids_max",
            "host_blocks",
            "preemptions_max",
            "handovers_max",
        ):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, not at least 0")
        if not 0 <= self.pinned_share <= 1:
            raise ConfigError(f"pinned_share is {self.pinned_share}, not between 0 and 1")
        if self.step_tokens_max <= self.sequences_max:
            raise ConfigError(
                f"step_tokens_max is {self.step_tokens_max}, not above sequences_max "
                f"({self.sequences_max}): every running sequence takes a token a step"
            )

    def spare_ms(self, decode_ms: float) -> float:
        """What may be added to a step whose decodes take so long alone."""
        share = _SPARE_SHARE if decode_ms < self.step_max_ms else _SPARE_SHARE_CROWDED
        return max(self.step_max_ms - decode_ms, share * decode_ms)

    def fitted(self, context_max: int) -> "EngineConfig":
        """The same for a model of this context: no more than it, or than the blocks hold."""
        room = self.blocks * BLOCK_TOKENS
        return replace(self, context_max=min(self.context_max, context_max, room))


@dataclass(frozen=True, slots=True)
class SequencePlan:
    """What one sequence runs in a step."""

    request: str
    start: int
    """Absolute position of the first row."""
    ids: tuple[int, ...]
    """One a row: known ids, then drafted ones."""
    drafted: int
    """How many of `ids`, at the end, are drafted."""
    table: tuple[int, ...]
    """Block numbers that hold positions 0 to start + len(ids) − 1."""
    draws: tuple[Draw, ...]
    """One a row at the end of `ids` whose logits are wanted: none, or 1 + drafted."""

    @property
    def ran(self) -> "Ran":
        """How much this is, without what it is."""
        return Ran(self.request, len(self.ids) - self.drafted, self.drafted, bool(self.draws))


@dataclass(frozen=True, slots=True)
class Ran:
    """How much of one sequence a step ran. Told to people; nothing decides by it."""

    request: str
    tokens: int
    """Known ids, of the prompt or committed."""
    drafted: int
    samples: bool
    """Whether it has all that is known now, and commits."""

    @property
    def decodes(self) -> bool:
        """Whether it went on from its latest id alone; anything else is prefill."""
        return self.samples and self.tokens == 1


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step: rows of several sequences."""

    sequences: tuple[SequencePlan, ...]

    @property
    def rows(self) -> int:
        """Rows of the whole step."""
        return sum(len(sequence.ids) for sequence in self.sequences)


@dataclass(frozen=True, slots=True)
class StepRows:
    """What a runner made of a plan."""

    sampled: tuple[tuple[Sampled, ...], ...]
    """A tuple a sequence of the plan, with one entry a draw."""
    ms: float
    """How long it took."""


class Runner(Protocol):
    """Runs plans: on a model, or as if. Owns the memory of the pool and of the host tier."""

    @property
    def block_bytes(self) -> int:
        """Size of a block's KV as bytes."""
        ...

    @property
    def vocab(self) -> int:
        """Ids are below this."""
        ...

    def run(self, plan: StepPlan) -> StepRows:
        """Write KV of all rows, then sample where a draw asks for it."""
        ...

    def move(self, moves: Moves) -> None:
        """Copy blocks to the host tier, then others from it."""
        ...

    def read_block(self, block: int) -> bytes:
        """The KV in a block of the pool."""
        ...

    def read_slot(self, slot: int) -> bytes:
        """The KV in a slot of the host tier."""
        ...

    def write_slot(self, slot: int, payload: Buffer) -> None:
        """Put the KV of a block, as `read_block` gave it, into a slot of the host tier."""
        ...

    def scrub(self, blocks: Sequence[int]) -> None:
        """Clear blocks whose content is not to be trusted: what is not finite must not stay."""
        ...


@dataclass(frozen=True, slots=True)
class Handover:
    """A prefix that was computed for another node to fetch."""

    request: str
    epoch: int
    hashes: tuple[bytes, ...]
    """Of its full blocks, from the first on."""
    until_s: float
    """It is pinned until then on the clock of the steps, or until it is released."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step did to one sequence."""

    request: str
    epoch: int
    position: int
    """Absolute position of the first id."""
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int | None = None
    """On the first outcome of an epoch, as the two below."""
    queue_ms: float | None = None
    started_s: float | None = None
    """The `now` of its first step."""
    verified: tuple[tuple[str, HintCount], ...] = ()
    """By source; `offered` is left 0, since only the mailbox knows what was offered."""
    finish: FinishReason | None = None
    handover: Handover | None = None
    """What a sequence that was only to be prefilled ends with."""


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """What an engine did so far, and what is pinned now. Told to people; nothing decides by it."""

    preemptions: int = 0
    offloads: int = 0
    """Preemptions that copied to the host tier; the others compute again."""
    pins: int = 0
    """Prefixes pinned by name."""
    handovers: int = 0
    """Prefixes pinned for another node."""
    handovers_dropped: int = 0
    """Those that were let go before they were released."""
    pinned_blocks: int = 0
    """Blocks that pins cover, whether they are here or not."""
    hint_ids_offered: int = 0
    hint_ids_dropped: int = 0
    """Those that had no chance of a row: no such place, too many, impossible, or superseded."""


class Turn(StrEnum):
    """What the scheduler did with a sequence, beside computing it."""

    ADMITTED = "admitted"
    """It has a place; `tokens` of it were cached."""
    FIRST_STEP = "first step"
    PREEMPTED = "preempted"
    """It lost its place; `tokens` are to be computed again, none if they went to the host tier."""
    STALLED = "stalled"
    """It stands at its credit: the client has not read on."""
    RESUMED = "resumed"


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """One turn of one sequence. Told to people; nothing decides by it."""

    request: str
    turn: Turn
    known: int
    """Prompt and committed ids at that time."""
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Prefix:
    """How much of a request's prefix is here."""

    hashes: tuple[bytes, ...]
    """Of all blocks that could be found rather than computed: one token is always computed."""
    here: int
    """Leading ones of them that this engine has."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """All that a step did."""

    outcomes: tuple[Outcome, ...] = ()
    failures: tuple[tuple[str, int, FirstlightError], ...] = ()
    """(request, epoch, why): these sequences are gone."""
    met: tuple[str, ...] = ()
    """Requests for which no more blocks need be loaded."""
    held: tuple[tuple[bytes, ...], ...] = ()
    """Chains of block hashes, from the first on, that are here as a whole now."""
    turns: tuple[TurnEvent, ...] = ()
    """In order; all at the step's `now`. At most a few a sequence."""
    plan: StepPlan = StepPlan(())
    """What was run."""
    rows: int = 0
    """0: nothing could be planned; wait for a command, or a little."""
    ms: float = 0.0
    ran: tuple[Ran, ...] = ()

    @property
    def prefill_tokens(self) -> int:
        """Tokens of prompts that were computed, those of preempted sequences again."""
        return sum(one.tokens for one in self.ran if not one.decodes)
