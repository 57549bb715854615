"""A system prompt that most requests begin with: ours reuses it as the best of others do."""

from random import Random

from firstlight.infra.bench.hot_prefix import HITS_MIN, UNEVEN_MAX, course
from firstlight.infra.sim.figures import figures
from firstlight.infra.sim.hot_prefix import OWN_TOKENS, SYSTEM_TOKENS, hot_prefix
from firstlight.infra.sim.rules import Way


def test_that_share_of_the_requests_begins_with_the_system_prompt_and_goes_on_alone() -> None:
    made = hot_prefix(2000, 0.8, Random(1))
    hot = [one for one in made if one.blocks[0] == 0]
    assert abs(len(hot) / len(made) - 0.8) < 0.03
    assert len({one.blocks[:-1] for one in hot}) == 1
    assert len({one.blocks[-1] for one in made}) == len(made)
    assert {one.tokens_in for one in made} == {SYSTEM_TOKENS + OWN_TOKENS}


def test_ours_finds_it_cached_as_often_as_strong_rules_and_no_core_has_too_many_requests() -> None:
    ask = course(800, 0.8, 0.75)
    rules = ("firstlight", "dynamo", "llm_d_precise", "sglang_cache_aware")
    told = {rule: figures([ask.run(Way(rule), 0)]) for rule in rules}
    ours = told["firstlight"]
    assert ours.hit_rate >= HITS_MIN * max(one.hit_rate for one in told.values())
    assert ours.uneven <= UNEVEN_MAX
    assert max(one.uneven for one in told.values()) > UNEVEN_MAX, "no rule is tempted"
