"""The host tier below the pool: what is evicted comes back, and no slot is lost."""

from random import Random

from doubles import Answers, PagedRunner, alone, block_of, config, engine, request
from psutil import Process

from firstlight.shared.blocks import BlockCounts, block_hashes, root_hash
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.kv.host import HostTier
from firstlight.shared.types import Sampling

GROWTH_BYTES_MAX = 8 << 20
"""In 5,000 requests, of which each would cost 1.6 KB if it were forgotten nowhere."""
GREEDY = Sampling(temperature=0.0)


def counts(tier: HostTier) -> tuple[int, int, int]:
    return tier.pool.free, tier.pool.used, tier.pool.cached


def finish(core: Engine, answers: Answers, now: float = 0.0) -> None:
    while core.has_work:
        answers.step(core, now)
        assert answers.steps < 2000


def ask(core: Engine, answers: Answers, name: str, first: int, tokens: int) -> None:
    prompt = [first, *range(1, tokens)]
    core.add(request(name, prompt, max_tokens=2, sampling=GREEDY), epoch=1, credit=10_000, now=0.0)
    finish(core, answers)


def test_the_least_recently_used_block_leaves_first() -> None:
    tier = HostTier(2)
    assert tier.place(b"a") == (0, None)
    assert tier.place(b"b") == (1, None)
    tier.hold(0)
    tier.drop(0)
    assert tier.place(b"c") == (1, b"b")
    assert (tier.find(b"a"), tier.find(b"b"), tier.find(b"c")) == (0, None, 1)
    assert counts(tier) == (0, 0, 2)


def test_what_is_held_is_never_evicted() -> None:
    tier = HostTier(1)
    tier.place(b"a")
    tier.hold(0)
    assert tier.place(b"b") is None
    tier.clear()
    assert counts(tier) == (0, 1, 0)
    tier.drop(0)
    assert counts(tier) == (1, 0, 0)


def test_no_slots_take_nothing() -> None:
    assert HostTier(0).place(b"a") is None


def test_a_prefix_that_the_pool_evicted_comes_back_from_the_host_tier() -> None:
    core, runner = engine(PagedRunner(4), blocks=4, context_max=64, host_blocks=8)
    answers = Answers()
    ask(core, answers, "a", 1, 40)
    ask(core, answers, "b", 2, 60)  # needs all four blocks
    assert core.host_blocks.cached == 2
    rows = len(runner.rows)
    ask(core, answers, "again", 1, 40)
    assert sum(runner.rows[rows:]) == 40 - 32 + 1  # what two blocks hold is not computed
    assert answers.ids["again"] == answers.ids["a"]


def test_the_first_outcome_counts_what_came_from_the_host_tier_as_cached() -> None:
    core, _ = engine(PagedRunner(4), blocks=4, context_max=64, host_blocks=8)
    answers = Answers()
    ask(core, answers, "a", 1, 40)
    ask(core, answers, "b", 2, 60)
    core.add(request("c", [1, *range(1, 40)], max_tokens=1), epoch=1, credit=99, now=0.0)
    cached = [o.cached_tokens for _ in range(3) for o in core.step(0.0).outcomes]
    assert cached == [32]


def test_what_leaves_the_host_tier_is_handed_on_as_it_was() -> None:
    core, _ = engine(PagedRunner(4), blocks=4, context_max=64, host_blocks=1)
    spilled: dict[bytes, bytes] = {}
    core.spill = lambda name, read: spilled.update({name: read()})
    answers = Answers()
    for n in range(1, 5):
        ask(core, answers, f"r{n}", n, 60)
    for n in (1, 2):
        prompt = [n, *range(1, 60)]
        hashes = block_hashes(root_hash(tokenizer_hash="t", salt=b"salt"), prompt)
        for index, name in enumerate(hashes):
            if name in spilled:
                assert spilled[name] == block_of(prompt[index * 16 : index * 16 + 16])
    assert len(spilled) >= 4


def loaded(core: Engine, name: str, prompt: list[int], indices: list[int]) -> None:
    prefix = core.prefix(name)
    assert prefix is not None
    for index in indices:
        core.land(prefix.hashes[index], block_of(prompt[index * 16 : index * 16 + 16]))


def test_a_sequence_that_waits_for_its_prefix_computes_only_the_rest() -> None:
    core, runner = engine(host_blocks=16)
    prompt = list(range(100))
    one = request("a", prompt, max_tokens=3, sampling=GREEDY)
    core.add(one, epoch=1, credit=999, now=0.0)
    core.expect("a", 6, hold_until_s=1.0)
    answers = Answers()
    answers.step(core, 0.0)
    assert runner.rows == []
    loaded(core, "a", prompt, [5, 4, 3, 2, 1, 0])
    finish(core, answers)
    assert sum(runner.rows) == 4 + 2
    assert answers.ids["a"] == alone(one)


def test_computing_the_front_meets_what_is_loaded_from_the_back() -> None:
    core, runner = engine(host_blocks=16, prefill_chunk=16)
    prompt = list(range(100))
    one = request("a", prompt, max_tokens=3, sampling=GREEDY)
    core.add(one, epoch=1, credit=999, now=0.0)
    core.expect("a", 6, hold_until_s=0.0)
    answers = Answers()
    answers.step(core, 0.0)
    loaded(core, "a", prompt, [5, 4])
    answers.step(core, 0.0)
    loaded(core, "a", prompt, [3, 2])  # 32 tokens are computed: they meet here
    result = core.step(0.0)
    assert result.met == ("a",)
    assert sum(runner.rows) == 32 + 4
    assert result.outcomes[0].cached_tokens == 64
    answers.ids["a"] = list(result.outcomes[0].ids)
    finish(core, answers)
    assert answers.ids["a"] == alone(one)


def test_a_hole_in_what_is_loaded_is_computed() -> None:
    core, runner = engine(host_blocks=16)
    prompt = list(range(100))
    one = request("a", prompt, max_tokens=2, sampling=GREEDY)
    core.add(one, epoch=1, credit=999, now=0.0)
    core.expect("a", 6, hold_until_s=9.0)
    loaded(core, "a", prompt, [5, 4])
    core.no_more("a")
    answers = Answers()
    finish(core, answers)
    assert sum(runner.rows) == 64 + 4 + 1
    assert answers.ids["a"] == alone(one)


def test_nobody_waits_longer_than_was_said() -> None:
    core, runner = engine(host_blocks=16)
    core.add(request("a", range(100), max_tokens=1), epoch=1, credit=999, now=0.0)
    core.expect("a", 6, hold_until_s=0.5)
    assert core.step(0.4).rows == 0
    assert core.step(0.5).rows == runner.rows[0] > 0


def test_a_cancelled_sequence_lets_go_of_what_was_loaded_for_it() -> None:
    core, _ = engine(host_blocks=16)
    prompt = list(range(100))
    core.add(request("a", prompt, max_tokens=1), epoch=1, credit=999, now=0.0)
    core.expect("a", 6, hold_until_s=9.0)
    loaded(core, "a", prompt, [5, 4])
    core.step(0.0)
    assert core.host_blocks.used == 2
    core.cancel("a")
    assert core.host_blocks == BlockCounts(free=14, used=0, cached=2, total=16)


def test_others_run_while_one_waits_for_its_prefix() -> None:
    core, _ = engine(host_blocks=16)
    core.add(request("a", range(100), max_tokens=1), epoch=1, credit=999, now=0.0)
    core.expect("a", 6, hold_until_s=9.0)
    other = request("b", range(50, 80), max_tokens=2, sampling=GREEDY)
    core.add(other, epoch=1, credit=999, now=0.0)
    answers = Answers()
    while "b" not in answers.finish:
        answers.step(core, 0.0)
    assert answers.ids["b"] == alone(other)


def test_ten_thousand_requests_under_small_tiers_leave_every_block_accounted_for() -> None:
    random = Random(9)
    runner = PagedRunner(24)
    core = Engine(
        runner,
        config(blocks=24, context_max=96, sequences_max=4, waiting_max=60, host_blocks=12),
    )
    below: dict[bytes, bytes] = {}
    core.spill = lambda name, read: below.update({name: read()}) if len(below) < 64 else None
    now, asked, ended, half_way = 0.0, 0, 0, 0
    while asked < 10_000 or core.has_work:
        while asked < 10_000 and core.load().in_flight < 40:
            start = random.randrange(12)
            prompt = [start, *range(start, start + random.choice((4, 20, 36, 70)))]
            one = request(f"r{asked}", prompt, max_tokens=1)
            core.add(one, epoch=1, credit=999, now=now)
            asked += 1
            prefix = core.prefix(one.id)
            assert prefix is not None
            if prefix.hashes and prefix.hashes[-1] in below:
                core.expect(one.id, len(prefix.hashes), now)
                core.land(prefix.hashes[-1], below.pop(prefix.hashes[-1]))
        result = core.step(now)
        ended += sum(outcome.finish is not None for outcome in result.outcomes)
        assert result.failures == ()
        for tier in (core.blocks, core.host_blocks):
            assert tier.free + tier.used + tier.cached == tier.total
        now += 0.01
        for kept in (runner.plans, runner.rows, runner.moved):
            kept.clear()  # what the double remembers of each step
        if not half_way and ended > 5_000:
            half_way = Process().memory_info().rss
    assert ended == 10_000
    assert Process().memory_info().rss - half_way < GROWTH_BYTES_MAX
    assert core.blocks.used == core.host_blocks.used == 0


def test_what_is_expected_too_late_is_said_to_be_needed_no_more() -> None:
    core, _ = engine(host_blocks=16, prefill_chunk=40)
    core.add(request("a", range(50), max_tokens=9), epoch=1, credit=999, now=0.0)
    core.step(0.0)
    core.step(0.0)
    core.expect("a", 2, 9.0)
    assert core.step(0.0).met == ("a",)
    assert core.host_blocks.used == 0


def test_what_is_not_to_be_trusted_is_forgotten_in_the_host_tier_too() -> None:
    core, _ = engine(PagedRunner(8, poison=frozenset({9})), blocks=8, context_max=96, host_blocks=8)
    told: list[bytes] = []
    core.distrust = told.extend
    prompt = [*range(10, 60), 9]
    core.add(request("a", prompt, max_tokens=4), epoch=1, credit=999, now=0.0)
    prefix = core.prefix("a")
    assert prefix is not None
    core.expect("a", 2, 9.0)
    loaded(core, "a", prompt, [1, 0])
    failures = [f for _ in range(9) for f in core.step(0.0).failures]
    assert [name for name, _, _ in failures] == ["a"]
    assert core.host_blocks == BlockCounts(free=8, used=0, cached=0, total=8)
    assert told[:3] == list(prefix.hashes)
    core.add(request("b", prompt, max_tokens=4), epoch=1, credit=999, now=0.0)
    again = core.prefix("b")
    assert again is not None
    assert again.here == 0


def test_a_chain_that_was_flushed_under_a_running_sequence_is_not_said_to_be_here() -> None:
    core, _ = engine(blocks=16, host_blocks=4)
    core.add(request("a", range(40), max_tokens=30), epoch=1, credit=999, now=0.0)
    held = [chain for _ in range(3) for chain in core.step(0.0).held]
    assert [len(chain) for chain in held] == [2]
    core.flush_cache()
    while core.has_work:
        assert core.step(0.0).held == ()


def test_no_more_of_a_prompt_is_said_to_be_cached_than_it_has() -> None:
    core, _ = engine(host_blocks=16)
    ids = [*range(20), *range(60, 100)]
    one = request("a", ids[:20], max_tokens=60, sampling=GREEDY)
    core.add(one, epoch=1, committed=tuple(ids[20:]), credit=999, now=0.0)
    core.expect("a", 3, 9.0)
    loaded(core, "a", ids, [2, 1, 0])
    cached = [o.cached_tokens for _ in range(3) for o in core.step(0.0).outcomes]
    assert cached[0] == 20
