"""What an engine was told is written down, and gives the same plans when it is played again."""

import json
from contextlib import suppress
from random import Random

import pytest
from doubles import VOCAB, config, request

from firstlight.shared.blocks import block_hashes, root_hash
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.plan import EngineConfig
from firstlight.shared.engine.record import Recorder, replay
from firstlight.shared.engine.steptable import StepTable
from firstlight.shared.engine.timed import TimedRunner
from firstlight.shared.errors import FirstlightError
from firstlight.shared.types import Priority, Sampling

LIMITS = config(blocks=12, context_max=160, host_blocks=9, waiting_max=6, copy_bytes_per_s=1e7)


def timed(limits: EngineConfig = LIMITS) -> Engine:
    table = StepTable.linear(8.0, 0.5, block_copy_ms=0.1)
    runner = TimedRunner(table, blocks=limits.blocks, host_blocks=limits.host_blocks, vocab=VOCAB)
    return Engine(runner, limits)


def asked(random: Random, number: int):
    return request(
        f"r{number}",
        range(number % 3, number % 3 + random.randint(1, 60)),
        max_tokens=random.randint(1, 40),
        seed=number,
        priority=random.choice(list(Priority)),
        sampling=Sampling(temperature=random.choice([0.0, 1.0]), logit_bias=((3, 0.5),)),
        eos_ids=frozenset({5}),
    )


def act(core: Recorder, random: Random, number: int, now: float) -> None:
    """One call of any kind."""
    name, some = f"r{random.randrange(number + 1)}", tuple(random.randrange(99) for _ in range(3))
    chain = tuple(block_hashes(root_hash(tokenizer_hash="t", salt=b"salt"), range(32)))
    calls = (
        lambda: core.credit(name, random.randint(1, 99)),
        lambda: core.cancel(name),
        lambda: core.pin(chain),
        lambda: core.unpin(chain),
        lambda: core.expect(name, 1, now + 0.05),
        lambda: core.no_more(name),
        lambda: core.flush_cache(),
        lambda: [
            core.candidate(one, start, some, ("a", "b", "b"))
            for one, start in core.engine.next_positions().items()
        ],
    )
    random.choice(calls)()


def recorded(seed: int, *, bytes_max: int = 1 << 30) -> tuple[list[str], Recorder]:
    random, lines = Random(seed), list[str]()
    core, now = Recorder(timed(), lines.append, bytes_max=bytes_max), 0.0
    for number in range(60):
        one, prefill_only = asked(random, number), random.random() < 0.2
        credit = random.choice([80, 500])
        with suppress(FirstlightError):
            core.add(one, epoch=1, credit=credit, now=now, prefill_only=prefill_only)
        if number == 0:
            core.step(now)
        for _ in range(random.randint(0, 3)):
            act(core, random, number, now)
        for _ in range(random.randint(0, 6)):
            result = core.step(now)
            now += result.ms / 1000 + 0.001
            for outcome in result.outcomes:
                if outcome.handover is not None and random.random() < 0.5:
                    core.release(outcome.handover)
    return lines, core


@pytest.mark.parametrize("seed", range(6))
def test_a_replay_plans_every_step_as_it_was_recorded(seed):
    lines, core = recorded(seed)
    again = timed()
    results = list(replay(lines, again))
    assert len(results) == sum('"do":"step"' in line for line in lines) > 60
    assert again.counts == core.engine.counts
    assert (again.blocks, again.host_blocks) == (core.engine.blocks, core.engine.host_blocks)
    assert again.steps == core.engine.steps > 0


def test_the_recorded_runs_have_what_makes_plans_differ():
    counts = [recorded(seed)[1].engine.counts for seed in range(6)]
    assert sum(one.preemptions for one in counts) > sum(one.offloads for one in counts) > 0
    assert sum(one.hint_ids_offered - one.hint_ids_dropped for one in counts) > 0


def test_a_call_that_is_missing_is_noticed_at_the_step_that_it_changes():
    lines, _ = recorded(1)
    first = next(n for n, line in enumerate(lines) if '"do":"add"' in line)
    with pytest.raises(FirstlightError, match=r"step \d+ \(line \d+\): plan is"):
        list(replay(lines[:first] + lines[first + 1 :], timed()))


def test_a_prompt_of_another_id_is_noticed():
    lines, _ = recorded(1)
    changed = lines[0].replace('"prompt":[0,', '"prompt":[7,')
    assert changed != lines[0]
    with pytest.raises(FirstlightError, match="step 1 "):
        list(replay([changed, *lines[1:]], timed()))


def test_other_limits_and_other_times_are_noticed():
    lines, _ = recorded(2)
    with pytest.raises(FirstlightError, match="plan is"):
        list(replay(lines, timed(config(blocks=40, context_max=160, sequences_max=2))))
    slower = TimedRunner(StepTable.linear(9.0, 0.5), blocks=12, host_blocks=9, vocab=VOCAB)
    with pytest.raises(FirstlightError, match="ms is"):
        list(replay(lines, Engine(slower, LIMITS)))


def test_a_record_stops_at_its_limit_and_says_so_and_its_beginning_is_replayed():
    lines, core = recorded(3, bytes_max=5000)
    assert core.full
    assert lines[-1] == '{"do":"full"}'
    assert sum(len(line) + 1 for line in lines[:-1]) <= 5000
    steps = sum('"do":"step"' in line for line in lines)
    assert len(list(replay([*lines, "never read"], timed()))) == steps > 0


def test_blocks_that_land_are_recorded_with_what_is_in_them():
    lines: list[str] = []
    source, core = timed(), Recorder(timed(), lines.append)
    source.add(request("a", range(33)), epoch=1, credit=999, now=0.0)
    source.step(0.0)
    source.step(0.0)
    chain = block_hashes(root_hash(tokenizer_hash="t", salt=b"salt"), range(32))
    core.add(request("b", range(33), max_tokens=2), epoch=1, credit=999, now=0.0)
    core.expect("b", 2, 1.0)
    for block_hash in reversed(chain):
        payload = source.read(block_hash)
        assert payload is not None
        core.land(block_hash, memoryview(payload))
    assert core.step(0.0).rows == 1
    assert [result.rows for result in replay(lines, timed())] == [1]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 1 of the record is no call: '{'"),
        ("[]", "is no call"),
        ('{"do":"__init__"}', "is no call"),
        (json.dumps({"do": "pin", "hashes": ["x"]}), "line 1 of the record has no such pin"),
        (json.dumps({"do": "add", "request": {}}), "no such add"),
        ("[" * 100_000, "is no call"),
        ('{"do":"step"}', r"no such step: \['ms', 'now', 'plan'\]"),
        ('{"do":"step","now":NaN,"plan":"","ms":1}', r"no such step: \['now'\]"),
        (f'{{"do":"step","now":1{"0" * 400},"plan":"","ms":1}}', r"no such step: \['now'\]"),
        ('{"do":"credit","request":"a"}', r"no such credit: \['position'\]"),
        ('{"do":"credit","request":"a","position":true}', r"no such credit: \['position'\]"),
        ('{"do":"cancel","request":["a"]}', r"no such cancel: \['request'\]"),
        ('{"do":"no_more","request":"a","more":1}', r"no such no_more: \['more'\]"),
        ('{"do":"pin","hashes":5}', "no such pin"),
        ('{"do":"release","handover":5}', "no such release"),
        ('{"do":"land","block_hash":"00","payload":"00"}', "no such land: a block of 1 bytes"),
        (
            '{"do":"candidate","request":"a","start":1,"ids":[1,"b"],"sources":["x","x"]}',
            r"no such candidate: \['ids'\]",
        ),
    ],
)
def test_a_line_that_is_no_call_is_named(line, says):
    with pytest.raises(FirstlightError, match=says):
        list(replay([line], timed()))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt", [1, "2"]),
        ("prompt", [1, 2.5]),
        ("id", 7),
        ("salt", 7),
        ("seed", None),
        ("budget_s", "600"),
        ("eos_ids", [[5]]),
        ("eos_ids", [True]),
        ("priority", 9),
        ("sampling", {}),
        ("sampling", {"logit_bias": [[1, 2, 3]]}),
        ("sampling", {"logit_bias": [], "temperature": "hot"}),
        ("sampling", {"logit_bias": [], "logprobs": 1.5}),
    ],
)
def test_a_request_of_other_values_than_a_recorder_writes_is_named(name, value):
    lines, _ = recorded(1)
    line = json.loads(lines[0])
    assert line["do"] == "add"
    line["request"][name] = value
    with pytest.raises(FirstlightError, match="line 1 of the record has no such add"):
        list(replay([json.dumps(line)], timed()))
