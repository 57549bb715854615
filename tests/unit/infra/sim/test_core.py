"""A simulated core against the engine, and its stretches against single steps."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from random import Random

import pytest

from firstlight.infra.sim.core import Core, CoreSpec, Ended, First
from firstlight.shared.blocks import block_hashes, root_hash
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.sequence import Counted
from firstlight.shared.engine.steptable import H100_8B
from firstlight.shared.engine.timed import TimedRunner
from firstlight.shared.types import Request, Sampling

ROOT = root_hash(tokenizer_hash="t", salt=b"")
SPEC = CoreSpec(
    H100_8B, pool_tokens=6_000, block_tokens=16, sequences_max=6, waiting_max=40, prefill_chunk=512
)
Asked = tuple[float, tuple[int, ...], int]
"""(when, prompt, ids of the answer)"""
Times = dict[str, tuple[float, float]]
"""Request → (first id, last id)."""


def crowd(seed: int, count: int = 40, rate: float = 12.0) -> list[Asked]:
    """Prompts of a few families, so that some begin alike; some come while all places are taken."""
    rng, at_s, made = Random(seed), 0.0, []
    families = [tuple(rng.randrange(1000) for _ in range(2000)) for _ in range(3)]
    for _ in range(count):
        at_s += rng.expovariate(rate)
        shared = rng.choice(families)[: rng.randrange(0, 1500)]
        own = tuple(rng.randrange(1000) for _ in range(rng.randrange(1, 600)))
        made.append((at_s, shared + own, rng.randrange(1, 120)))
    return made


def by_engine(asked: Sequence[Asked], spec: CoreSpec) -> Times:
    config = replace(spec.engine_config(), copy_bytes_per_s=None)
    runner = TimedRunner(
        spec.table, blocks=config.blocks, host_blocks=config.host_blocks, vocab=1000
    )
    engine, now, coming = Engine(runner, config), 0.0, list(enumerate(asked))
    firsts: dict[str, float] = {}
    lasts: dict[str, float] = {}
    while coming or engine.has_work:
        if not engine.has_work:
            now = max(now, coming[0][1][0])
        while coming and coming[0][1][0] <= now:
            number, (_, prompt, answer) = coming.pop(0)
            request = Request(
                id=str(number),
                model="",
                tokenizer_hash="t",
                salt=b"",
                prompt=prompt,
                sampling=Sampling(temperature=0.0),
                seed=0,
                choice=0,
                max_tokens=answer,
                eos_ids=frozenset(),
            )
            engine.add(request, epoch=1, credit=1 << 62, now=now)
        result = engine.step(now)
        now += result.ms / 1000
        for outcome in result.outcomes:
            firsts.setdefault(outcome.request, now)
            if outcome.finish:
                lasts[outcome.request] = now
    return {name: (firsts[name], lasts[name]) for name in firsts}


def by_core(
    asked: Sequence[Asked], spec: CoreSpec, *, stretches: bool = True
) -> tuple[Times, Core]:
    core, coming = Core(spec, stretches=stretches), list(enumerate(asked))
    firsts: dict[str, float] = {}
    lasts: dict[str, float] = {}
    while coming or core.due_s is not None:
        at_s = coming[0][1][0] if coming else inf
        if core.due_s is None or at_s <= core.due_s:
            number, (_, prompt, answer) = coming.pop(0)
            hashes = tuple(block_hashes(ROOT, prompt)) if spec.block_tokens == 16 else ()
            counted = Counted(len(prompt), len(prompt), hashes)
            assert not core.open(str(number), counted, answer, at_s)
            continue
        for told in core.run(core.due_s):
            if isinstance(told, First):
                firsts[told.request] = told.at_s
            elif isinstance(told, Ended):
                assert not told.error
                lasts[told.request] = told.at_s
    return {name: (firsts[name], lasts[name]) for name in firsts}, core


@pytest.mark.parametrize("seed", range(4))
def test_tokens_come_when_the_engine_makes_them_to_the_bit(seed: int) -> None:
    asked = crowd(seed)
    assert by_core(asked, SPEC)[0] == by_engine(asked, SPEC)


def test_copies_to_the_host_tier_take_the_time_that_they_take_in_the_engine() -> None:
    spec = replace(SPEC, host_tokens=4_000)
    asked = crowd(11)
    assert by_core(asked, spec)[0] == by_engine(asked, spec)


@pytest.mark.parametrize("seed", range(6))
def test_a_stretch_ends_at_the_same_bit_as_its_steps_one_by_one(seed: int) -> None:
    asked = crowd(seed, count=120, rate=30.0)
    fast, jumped = by_core(asked, replace(SPEC, block_tokens=128, waiting_max=400))
    slow, stepped = by_core(
        asked, replace(SPEC, block_tokens=128, waiting_max=400), stretches=False
    )
    assert fast == slow
    assert jumped.steps == stepped.steps
    ends_s = [last for _, last in fast.values()]
    assert [jumped.load_at(at) for at in ends_s] == [stepped.load_at(at) for at in ends_s]
