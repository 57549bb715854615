"""The only factories of test values: requests, a runner without a model, an engine over it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import pack, unpack

import numpy as np

from firstlight.shared.blocks import BLOCK_TOKENS, Buffer
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.kv.manager import Moves
from firstlight.shared.engine.plan import EngineConfig, SequencePlan, StepPlan, StepResult, StepRows
from firstlight.shared.engine.sampler import sample_rows
from firstlight.shared.engine.sequence import Sequence as EngineSequence
from firstlight.shared.errors import FirstlightError
from firstlight.shared.sampling import Floats
from firstlight.shared.types import FinishReason, Priority, Request, Sampling

VOCAB = 128
_TABLE = (np.random.default_rng(7).normal(size=(256, VOCAB)) * 2).astype(np.float32)


def request(
    name: str = "r",
    prompt: Sequence[int] = (1, 2, 3),
    *,
    max_tokens: int = 8,
    sampling: Sampling | None = None,
    seed: int = 1,
    eos_ids: frozenset[int] = frozenset(),
    priority: Priority = Priority.INTERACTIVE,
    budget_s: float = 600.0,
    salt: bytes = b"salt",
) -> Request:
    return Request(
        id=name,
        model="m",
        tokenizer_hash="t",
        salt=salt,
        prompt=tuple(prompt),
        sampling=sampling or Sampling(),
        seed=seed,
        choice=0,
        max_tokens=max_tokens,
        eos_ids=eos_ids,
        priority=priority,
        budget_s=budget_s,
    )


def sequence(one: Request, *, now: float = 0.0, credit: int = 10_000) -> EngineSequence:
    return EngineSequence(one, epoch=1, committed=(), credit=credit, now=now)


def logits_after(ids: Sequence[int]) -> Floats:
    """Logits as a pure function of all ids before a position."""
    digest = blake2b(pack(f"<{len(ids)}I", *ids), digest_size=8).digest()
    first, second = unpack("<II", digest)
    return _TABLE[first % len(_TABLE)] + np.roll(_TABLE[second % len(_TABLE)], first % VOCAB)


@dataclass
class PagedRunner:
    """Keeps ids in a paged pool as a model keeps KV, and reads its context back from there.

    So a wrong slot, a block shared too early or a stale row changes the text.
    """

    blocks: int
    vocab: int = VOCAB
    poison: frozenset[int] = frozenset()
    """Logits after one of these ids are NaN."""
    broken: bool = False
    """The next step raises."""
    ms_fixed: float = 20.0
    ms_per_row: float = 1.0
    rows: list[int] = field(default_factory=list)
    plans: list[StepPlan] = field(default_factory=list)
    scrubbed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots = np.full(self.blocks * BLOCK_TOKENS, -1, dtype=np.int64)
        self.host: dict[int, bytes] = {}
        self.moved: list[Moves] = []

    def run(self, plan: StepPlan) -> StepRows:
        self.rows.append(plan.rows)
        self.plans.append(plan)
        if self.broken:
            self.broken = False
            raise RuntimeError("the device is gone")
        for one in plan.sequences:
            places = [self._slot(one, one.start + row) for row in range(len(one.ids))]
            self.slots[places] = one.ids
        sampled = []
        for one in plan.sequences:
            end = one.start + len(one.ids)
            context = [int(self.slots[self._slot(one, place)]) for place in range(end)]
            assert min(context) >= 0, context
            rows = [self._logits(context[: end - back]) for back in range(len(one.draws))][::-1]
            found = sample_rows(np.array(rows, dtype=np.float32), one.draws) if rows else []
            sampled.append(tuple(found))
        return StepRows(tuple(sampled), self.ms_fixed + self.ms_per_row * plan.rows)

    def scrub(self, blocks: Sequence[int]) -> None:
        self.scrubbed += blocks

    @property
    def block_bytes(self) -> int:
        return BLOCK_TOKENS * self.slots.itemsize

    def move(self, moves: Moves) -> None:
        self.moved.append(moves)
        for block, slot in moves.saves:
            start = block * BLOCK_TOKENS  # a block that is not full may be saved, but not read
            self.host[slot] = self.slots[start : start + BLOCK_TOKENS].tobytes()
        for slot, block in moves.fills:
            start = block * BLOCK_TOKENS
            self.slots[start : start + BLOCK_TOKENS] = np.frombuffer(self.host[slot], np.int64)

    def read_block(self, block: int) -> bytes:
        held = self.slots[block * BLOCK_TOKENS : (block + 1) * BLOCK_TOKENS]
        assert held.min() >= 0, held
        return held.tobytes()

    def read_slot(self, slot: int) -> bytes:
        return self.host[slot]

    def write_slot(self, slot: int, payload: Buffer) -> None:
        self.host[slot] = bytes(payload)

    def _logits(self, context: Sequence[int]) -> Floats:
        row = logits_after(context)
        if context[-1] in self.poison:
            row[:] = np.nan
        return row

    def _slot(self, one: SequencePlan, position: int) -> int:
        return one.table[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS


def config(**changes: object) -> EngineConfig:
    limits: dict[str, object] = {
        "blocks": 32,
        "context_max": 256,
        "sequences_max": 4,
        "waiting_max": 8,
        "step_tokens_max": 40,
        "prefill_chunk": 24,
        "host_blocks": 0,
        "copy_bytes_per_s": 4e9,
    }
    return EngineConfig(**{**limits, **changes})  # type: ignore[arg-type]


def block_of(ids: Sequence[int]) -> bytes:
    """What `PagedRunner` keeps of a block with these ids."""
    assert len(ids) == BLOCK_TOKENS
    return np.array(ids, dtype=np.int64).tobytes()


def engine(runner: PagedRunner | None = None, **changes: object) -> tuple[Engine, PagedRunner]:
    limits = config(**changes)
    runner = runner or PagedRunner(limits.blocks)
    return Engine(runner, limits), runner


@dataclass
class Answers:
    """What an engine said so far, by request; checks that positions have no gap."""

    ids: dict[str, list[int]] = field(default_factory=dict)
    finish: dict[str, FinishReason] = field(default_factory=dict)
    errors: dict[str, FirstlightError] = field(default_factory=dict)
    steps: int = 0
    last: StepResult = field(default_factory=StepResult)

    def step(self, engine: Engine, now: float) -> int:
        result = self.last = engine.step(now)
        self.steps += 1
        for outcome in result.outcomes:
            assert outcome.request not in self.finish, outcome
            self.ids.setdefault(outcome.request, []).extend(outcome.ids)
            if outcome.finish:
                self.finish[outcome.request] = outcome.finish
        for name, _, error in result.failures:
            self.errors[name] = error
        return result.rows

    def drain(self, engine: Engine, *, now: float = 0.0, steps_max: int = 2000) -> "Answers":
        for _ in range(steps_max):
            if not engine.has_work:
                return self
            self.step(engine, now)
            now += 0.02
        raise AssertionError(f"not done after {steps_max} steps")


def alone(one: Request, committed: tuple[int, ...] = ()) -> list[int]:
    """The ids of an answer that nothing disturbs."""
    solo, _ = engine(blocks=64, context_max=1024, speculation="off")
    solo.add(one, epoch=1, committed=committed, credit=100_000, now=0.0)
    return Answers().drain(solo).ids.get(one.id, [])
