"""Whatever happens to an engine: each answer is what it is alone, and no block is lost."""

from collections.abc import Iterable
from random import Random

import pytest
from doubles import VOCAB, Answers, PagedRunner, alone, block_of, config, request
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from firstlight.core_node.mailbox import Mailbox
from firstlight.shared.blocks import block_hashes, root_hash
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.plan import Handover, StepResult
from firstlight.shared.errors import CapacityError, StaleError
from firstlight.shared.stream import TokenStream
from firstlight.shared.types import Hint, Priority, Request, Sampling

SAMPLINGS = (
    Sampling(temperature=0.0),
    Sampling(),
    Sampling(temperature=0.5, frequency_penalty=1.0, presence_penalty=0.3),
    Sampling(repetition_penalty=1.4, top_k=9, top_p=0.9, min_p=0.01),
)
SEEDS = st.integers(0, 2**32 - 1)
STEPS_WITHOUT_PROGRESS_MAX = 16
"""A prompt of 96 tokens takes 6 steps; it may be pushed aside, or wait for loads, for some."""
_truths: dict[Request, list[int]] = {}


def truth_of(one: Request) -> list[int]:
    if one not in _truths:
        _truths[one] = alone(one)
    return _truths[one]


def chain_of(ids: Iterable[int]) -> tuple[bytes, ...]:
    return tuple(block_hashes(root_hash(tokenizer_hash="t", salt=b"salt"), list(ids)))


class EngineMachine(RuleBasedStateMachine):
    """Adds, hints of every kind, credits, cancels, moves and steps, in any order."""

    @initialize(
        blocks=st.sampled_from((6, 9, 32)),
        sequences=st.integers(1, 4),
        mode=st.sampled_from(("auto", "always")),
        host=st.sampled_from((0, 2, 5, 40)),
        copy_bytes_per_s=st.sampled_from((1e3, 4e9)),
        preemptions=st.sampled_from((0, 1, 8)),
        seed=SEEDS,
    )
    def begin(self, blocks, sequences, mode, host, copy_bytes_per_s, preemptions, seed):
        self.random = Random(seed)
        self.runner = PagedRunner(blocks)
        self.config = config(
            blocks=blocks,
            context_max=min(96, blocks * 16),
            sequences_max=sequences,
            step_tokens_max=20,
            prefill_chunk=16,
            speculation=mode,
            host_blocks=host,
            copy_bytes_per_s=copy_bytes_per_s,
            preemptions_max=preemptions,
            ageing_slas=2.0,
            credit_timeout_s=1e6,
            pinned_share=0.5,
            handovers_max=2,
            handover_s=0.5,
        )
        self.prefills: dict[str, tuple[int, ...]] = {}
        self.handovers: list[Handover] = []
        self.credits: dict[str, int] = {}
        self.steps_without_progress = 0
        self.spilled: dict[bytes, bytes] = {}
        self.engine = Engine(self.runner, self.config)
        self.engine.spill = lambda name, read: self.spilled.update({name: read()})
        self.answers = Answers()
        self.asked: dict[str, Request] = {}
        self.epochs: dict[str, int] = {}
        self.mailbox = Mailbox(VOCAB)
        self.now = 0.0
        self.count = 0

    @rule(
        start=st.integers(0, 2),
        length=st.integers(1, 50),
        max_tokens=st.integers(1, 30),
        kind=st.integers(0, 3),
        priority=st.sampled_from(Priority),
        credit=st.integers(1, 40),
    )
    def add(self, start, length, max_tokens, kind, priority, credit):
        one = request(
            f"r{self.count}",
            range(start, start + length),
            max_tokens=max_tokens,
            sampling=SAMPLINGS[kind],
            seed=kind,
            priority=priority,
            eos_ids=frozenset({5, 6}),
        )
        self.count += 1
        try:
            self.engine.add(one, epoch=1, credit=length + credit, now=self.now)
        except CapacityError:
            return
        self.asked[one.id], self.epochs[one.id] = one, 1
        self.credits[one.id] = length + credit
        self.mailbox.open(one.id, one.prompt)

    @rule(count=st.integers(1, 4))
    def step(self, count):
        for _ in range(count):
            self._step()

    @precondition(lambda self: self.asked)
    @rule(seed=SEEDS, wrong=st.floats(0, 1))
    def hint(self, seed, wrong):
        """A piece of the answer, partly wrong, at about the right place, perhaps twice."""
        pick = Random(seed)
        one = self.asked[pick.choice(sorted(self.asked))]
        if one.id in self.answers.finish:
            return
        truth = truth_of(one)
        have = len(self.answers.ids.get(one.id, []))
        offset = max(0, have + pick.randint(-2, 4))
        ids = tuple(
            pick.randrange(VOCAB) if pick.random() < wrong else token
            for token in truth[offset : offset + pick.randint(1, 9)]
        )
        start = len(one.prompt) + offset
        self.engine.candidate(one.id, start, ids, tuple(pick.choice("ab") for _ in ids))
        chain = TokenStream(one.prompt, truth).chain_at(start)
        for _ in range(pick.randint(1, 2)):
            if chain is not None and pick.random() < 0.9:
                self.mailbox.hint(Hint(one.id, start, chain, ids, "a"))

    @rule(data=st.data())
    def garbage(self, data):
        """Offers that fit nothing: any name, place, ids."""
        names = [*self.asked, "nobody"]
        self.engine.candidate(
            data.draw(st.sampled_from(names)),
            data.draw(st.integers(-3, 90)),
            tuple(data.draw(st.lists(st.integers(-2, VOCAB + 1), max_size=12))),
            ("x",) * data.draw(st.integers(0, 12)),
        )

    @precondition(lambda self: self.asked)
    @rule(seed=SEEDS, more=st.integers(-5, 40))
    def credit(self, seed, more):
        pick = Random(seed)
        one = self.asked[pick.choice(sorted(self.asked))]
        position = len(one.prompt) + len(self.answers.ids.get(one.id, [])) + more
        self.engine.credit(one.id, position)
        self.credits[one.id] = max(self.credits[one.id], position)

    @precondition(lambda self: self.asked)
    @rule(seed=SEEDS)
    def cancel(self, seed):
        pick = Random(seed)
        name = pick.choice(sorted(self.asked))
        self.engine.cancel(name)
        self._forget(name)

    @rule()
    def cancel_all(self):
        """What they held is free at once, in both tiers."""
        for name in (*self.asked, *self.prefills):
            self.engine.cancel(name)
        for name in list(self.asked):
            self._forget(name)
        self.prefills.clear()
        assert self.engine.blocks.used == self.engine.host_blocks.used == 0
        assert not self.engine.has_work

    @rule(start=st.integers(0, 2), length=st.integers(1, 60), priority=st.sampled_from(Priority))
    def prefill(self, start, length, priority):
        """Only its KV is wanted, for another node."""
        prompt = tuple(range(start, start + length))
        one, self.count = request(f"p{self.count}", prompt, priority=priority), self.count + 1
        try:
            self.engine.add(one, epoch=1, credit=0, now=self.now, prefill_only=True)
        except CapacityError:
            return
        self.prefills[one.id] = prompt

    @precondition(lambda self: self.handovers)
    @rule()
    def release(self):
        self.engine.release(self.handovers.pop())

    @rule(start=st.integers(0, 2), blocks=st.integers(1, 4), keep=st.booleans())
    def pin(self, start, blocks, keep):
        chain = chain_of(range(start, start + blocks * 16))
        if not keep:
            self.engine.unpin(chain)
            return
        try:
            self.engine.pin(chain)
        except CapacityError:
            assert self.engine.counts.pinned_blocks + blocks > self.config.blocks // 2

    @rule(count=st.integers(1, 3))
    def storm(self, count):
        """Important ones come while others are half done."""
        for _ in range(count):
            self.add(0, 20, 2, 0, Priority.CRITICAL, 40)
            self._step()

    @rule(seconds=st.sampled_from((0.5, 3.0, 20.0)))
    def wait(self, seconds):
        """Time passes between steps: some are lifted, handovers are let go."""
        self.now += seconds

    @precondition(lambda self: self.asked)
    @rule(seed=SEEDS)
    def move(self, seed):
        """The same request again, with what is committed: a newer epoch goes on."""
        pick = Random(seed)
        name = pick.choice(sorted(self.asked))
        if name in self.answers.finish:
            return
        one, ids = self.asked[name], tuple(self.answers.ids.get(name, ()))
        try:
            self.engine.add(one, epoch=0, committed=ids, credit=500, now=self.now)
            raise AssertionError("an old epoch was taken")
        except StaleError:
            pass
        self.epochs[name] += 1
        self.credits[name] = 500
        self.engine.add(one, epoch=self.epochs[name], committed=ids, credit=500, now=self.now)
        self.mailbox.open(name, one.prompt, ids)

    @precondition(lambda self: self.asked)
    @rule(seed=SEEDS, hold_s=st.sampled_from((0.0, 0.05)), share=st.floats(0, 1))
    def load(self, seed, hold_s, share):
        """Some of its prefix comes from elsewhere, the last block first, perhaps not all of it."""
        pick = Random(seed)
        one = self.asked[pick.choice(sorted(self.asked))]
        prefix = self.engine.prefix(one.id)
        if prefix is None or not prefix.hashes:
            return
        end = pick.randint(1, len(prefix.hashes))
        self.engine.expect(one.id, end, self.now + hold_s)
        ids = [*one.prompt, *truth_of(one)]
        for index in range(end - 1, int(end * share) - 1, -1):
            block = ids[index * 16 : (index + 1) * 16]
            self.engine.land(prefix.hashes[index], block_of(block))
            if pick.random() < 0.3:
                self._step()
        if pick.random() < 0.5:
            self.engine.no_more(one.id)

    @precondition(lambda self: self.spilled)
    @rule(seed=SEEDS)
    def bring_back(self, seed):
        """What left the host tier is what it was."""
        name = Random(seed).choice(sorted(self.spilled))
        self.engine.land(name, self.spilled[name])
        assert self.engine.read(name) in (self.spilled[name], None)

    @rule()
    def flush(self):
        self.engine.flush_cache()

    @invariant()
    def no_block_is_lost(self):
        if hasattr(self, "engine"):
            counts = self.engine.blocks
            assert counts.free + counts.used + counts.cached == counts.total
            host = self.engine.host_blocks
            assert host.free + host.used + host.cached == host.total == self.config.host_blocks
            if not self.engine.has_work:
                assert counts.used == host.used == 0

    @invariant()
    def pins_stay_within_their_share(self):
        if hasattr(self, "engine"):
            counts = self.engine.counts
            assert counts.pinned_blocks <= self.config.blocks // 2
            assert counts.handovers <= 2
            assert counts.offloads <= counts.preemptions

    @invariant()
    def budget_and_sequences_are_kept(self):
        if hasattr(self, "engine"):
            assert max(self.runner.rows, default=0) <= self.config.step_tokens_max
            assert self.engine.load().running <= self.config.sequences_max

    def teardown(self):
        """With clients that read on, everyone ends soon, and says what it says alone."""
        if not hasattr(self, "engine"):
            return
        for name in self.asked:
            self.engine.credit(name, 10_000)
            self.credits[name] = 10_000
        steps_max = 40 + 80 * (len(self.asked) + len(self.prefills))
        for _ in range(steps_max):
            if not self.engine.has_work:
                break
            self._step()
        assert not self.engine.has_work
        assert not self.answers.errors
        assert not self.prefills
        for name, one in self.asked.items():
            assert self.answers.ids[name] == truth_of(one), name
        assert self.engine.blocks.used == 0

    def _step(self):
        for name, start in self.engine.next_positions().items():
            self._offer(name, start)
        before = {name: len(ids) for name, ids in self.answers.ids.items()}
        able = self.prefills or any(self._able(name) for name in self.asked)
        self.answers.step(self.engine, self.now)
        self._look(self.answers.last, bool(able))
        for name, ids in self.answers.ids.items():
            if name in self.asked and (fresh := ids[before.get(name, 0) :]):
                self.mailbox.committed(name, fresh)
        self.now += 0.02

    def _able(self, name: str) -> bool:
        """Whether it is neither done nor at its credit."""
        known = len(self.asked[name].prompt) + len(self.answers.ids.get(name, []))
        return name not in self.answers.finish and known < self.credits[name]

    def _look(self, result: StepResult, able: bool) -> None:
        """Somebody gets on in few steps, always; and what is handed over is here."""
        assert result.plan.rows == result.rows <= self.config.step_tokens_max
        progress = not able or bool(result.outcomes)
        self.steps_without_progress = 0 if progress else self.steps_without_progress + 1
        assert self.steps_without_progress <= STEPS_WITHOUT_PROGRESS_MAX
        for outcome in result.outcomes:
            if outcome.handover is None:
                continue
            prompt = self.prefills.pop(outcome.request)
            assert (outcome.ids, outcome.position) == ((), len(prompt))
            whole = chain_of(prompt)
            assert outcome.handover.hashes == whole[: len(outcome.handover.hashes)]
            for index, name in enumerate(outcome.handover.hashes):
                block = block_of(prompt[index * 16 : (index + 1) * 16])
                assert self.engine.read(name) in (block, None)
            self.handovers.append(outcome.handover)

    def _offer(self, name: str, start: int) -> None:
        """Mostly right ids for the next step, straight or through the mailbox, or none."""
        one, random = self.asked[name], self.random
        truth = truth_of(one)[start - len(one.prompt) :][: random.randint(0, 6)]
        ids = tuple(random.randrange(VOCAB) if random.random() < 0.2 else t for t in truth)
        if ids and random.random() < 0.5:
            self.engine.candidate(name, start, ids, tuple(random.choice("ab") for _ in ids))
            return
        if ids:
            chain = TokenStream(one.prompt, truth_of(one)).chain_at(start)
            assert chain is not None
            self.mailbox.hint(Hint(name, start, chain, ids, "c"))
        found = self.mailbox.candidate(name, 7)
        if found.ids and found.start == start:
            self.engine.candidate(name, start, found.ids, found.sources)

    def _forget(self, name: str) -> None:
        del self.asked[name]
        self.answers.ids.pop(name, None)
        self.credits.pop(name)
        self.mailbox.close(name)


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("host_blocks", [0, 3, 24])
def test_a_crowd_on_a_tiny_pool_ends_well_and_says_what_each_says_alone(host_blocks):
    random = Random(4)
    limits = config(
        blocks=8,
        context_max=120,
        sequences_max=4,
        waiting_max=40,
        speculation="always",
        host_blocks=host_blocks,
    )
    core = Engine(PagedRunner(8), limits)
    asked = [
        request(
            f"r{n}",
            range(n % 3, random.randint(5, 60)),
            max_tokens=random.randint(1, 50),
            seed=n,
            priority=random.choice(list(Priority)),
            sampling=random.choice(SAMPLINGS),
        )
        for n in range(30)
    ]
    for one in asked:
        core.add(one, epoch=1, credit=10_000, now=0.0)
    answers, now = Answers(), 0.0
    while core.has_work:
        for name, start in core.next_positions().items():
            one = asked[int(name[1:])]
            ids = truth_of(one)[start - len(one.prompt) :][: random.randint(0, 5)]
            if random.random() < 0.5 and ids:
                ids[-1] = random.randrange(VOCAB)
            core.candidate(name, start, tuple(ids), ("s",) * len(ids))
        answers.step(core, now)
        now += 0.05
        assert answers.steps < 3000
    assert core.counts.preemptions > 0
    assert (core.counts.offloads > 0) == (host_blocks > 0)
    assert answers.ids == {one.id: truth_of(one) for one in asked}
