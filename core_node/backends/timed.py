"""A core without a model: everything is real but the arithmetic, and steps take their time.

Scheduler, KV, mailbox and links are those of every core, over `shared.engine.timed`, which answers
with a function of the ids so far and says how long a step takes. Here that time passes. Ids that
are text by themselves are chosen among, so that a person sees each of them come.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b

from firstlight.core_node.admission import Offer
from firstlight.core_node.config import ModelSection
from firstlight.core_node.drafting import Foretold
from firstlight.core_node.loaded import Loaded, as_it_is, warm
from firstlight.shared.blocks import Buffer, kv_namespace
from firstlight.shared.clock import monotonic_s, sleep_s
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.kv.manager import Moves
from firstlight.shared.engine.plan import EngineConfig, Runner, StepPlan, StepRows
from firstlight.shared.engine.steptable import TABLES, StepTable
from firstlight.shared.engine.timed import TimedRunner
from firstlight.shared.engine.timed_ids import whole_texts
from firstlight.shared.model_files import default_model_path
from firstlight.shared.text.tokenizer import load_tokenizer

FOLLOWS_S = 0.005
"""A step that is begun so soon after the one before is taken to follow it at once."""


class PacedRunner:
    """`plan.Runner` that waits, off the interpreter's lock, until the time of a step is over.

    What tables say was measured from step to step, with all that an engine does between two of
    them; so a step that follows another begins when that one was due, and a wait that is too long
    is not its own time. A step whose ids take longer than its time to make is late, and says how
    long it really took.
    """

    def __init__(
        self,
        timed: Runner,
        *,
        now_s: Callable[[], float] = monotonic_s,
        wait_s: Callable[[float], None] = sleep_s,
    ) -> None:
        self._timed, self._now_s, self._wait_s = timed, now_s, wait_s
        self._ended_s = 0.0
        """When the latest step was due, or over if it was late."""
        self._delay_s = 0.0

    @property
    def vocab(self) -> int:
        """As of the runner."""
        return self._timed.vocab

    @property
    def block_bytes(self) -> int:
        """As of the runner."""
        return self._timed.block_bytes

    def run(self, plan: StepPlan) -> StepRows:
        """The rows, once their time is over."""
        began_s = self._now_s()
        if began_s - self._ended_s < FOLLOWS_S:
            began_s = self._ended_s
        rows = self._timed.run(plan)
        began_s, self._delay_s = began_s + self._delay_s, 0.0
        due_s = began_s + rows.ms / 1000
        made_s = self._now_s()
        if made_s < due_s:
            self._wait_s(due_s - made_s)
        self._ended_s = max(due_s, made_s)
        return StepRows(rows.sampled, (self._ended_s - began_s) * 1000)

    def delay(self, seconds: float) -> None:
        """The next step begins so much later: it waits for somebody who drafts beside it."""
        self._delay_s += seconds

    def move(self, moves: Moves) -> None:
        """As the runner does; the next step pays for it."""
        self._timed.move(moves)

    def read_block(self, block: int) -> bytes:
        """As of the runner."""
        return self._timed.read_block(block)

    def read_slot(self, slot: int) -> bytes:
        """As of the runner."""
        return self._timed.read_slot(slot)

    def write_slot(self, slot: int, payload: Buffer) -> None:
        """As of the runner."""
        self._timed.write_slot(slot, payload)

    def scrub(self, blocks: Sequence[int]) -> None:
        """As of the runner."""
        self._timed.scrub(blocks)


def load_timed(
    section: ModelSection, wanted: EngineConfig, around: Callable[[Runner], Runner] = as_it_is
) -> Loaded:
    """An engine over the table that `section.timed` names, `around` its runner.

    Raises `ConfigError`.

    No weights are read: of the model there is its vocabulary, and the context is what is wanted.
    """
    path = section.path or default_model_path()
    tokenizer, table = load_tokenizer(path), _table(section)
    limits = wanted.fitted(wanted.context_max)
    answer_ids = whole_texts(tokenizer.vocab, tokenizer.token_bytes)
    runner = TimedRunner(
        table,
        blocks=limits.blocks,
        host_blocks=limits.host_blocks,
        vocab=tokenizer.vocab,
        answer_ids=answer_ids,
    )
    if limits.copy_bytes_per_s is None and table.block_copy_ms:
        bytes_per_s = runner.block_bytes / table.block_copy_ms * 1000
        limits = replace(limits, copy_bytes_per_s=bytes_per_s)
    paced = PacedRunner(runner)
    engine = Engine(around(paced), limits)
    offer = Offer(
        models=(section.name or path.resolve().stem,),
        tokenizer_hash=tokenizer.hash,
        vocab=tokenizer.vocab,
        context_max=limits.context_max,
    )
    warm(engine, offer)
    numerics_class = blake2b(f"timed {tokenizer.hash}".encode(), digest_size=8).hexdigest()
    layout = f"digests in {runner.block_bytes} bytes"
    return Loaded(
        engine=engine,
        offer=offer,
        hint_ids_max=limits.hint_ids_max,
        numerics_class=numerics_class,
        namespace=kv_namespace("timed", layout, numerics_class),
        prepare=lambda: None,
        foretold=Foretold(answer_ids, paced.delay),
    )


def _table(section: ModelSection) -> StepTable:
    assert section.timed is not None
    return section.timed if isinstance(section.timed, StepTable) else TABLES[section.timed]
