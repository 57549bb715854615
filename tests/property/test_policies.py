"""Whatever a decider sees: each published rule answers with a server it was shown, or with none."""

from math import inf, nan
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_bed import ask, seen

from firstlight.infra.sim.policies.policy import Ask, Pick, Policy, Seen
from firstlight.infra.sim.policies.published import POLICIES

COUNTS = st.integers(-3, 80)
TOKENS = st.one_of(st.integers(-10, 200_000), st.just(2**62))
NUMBERS = st.one_of(st.floats(-1e3, 1e6), st.sampled_from((nan, inf, -inf, 0.0)))
SERVERS = st.builds(
    Seen,
    server=st.integers(0, 9),
    region=st.integers(0, 2),
    rtt_ms=NUMBERS,
    waiting=COUNTS,
    running=COUNTS,
    sequences_max=st.integers(0, 64),
    queued_prefill_tokens=TOKENS,
    kv_used_share=NUMBERS,
    cached_tokens=TOKENS,
    prefill_ms_per_token=NUMBERS,
    step_ms=st.lists(st.tuples(COUNTS, NUMBERS), max_size=3).map(tuple),
    age_s=NUMBERS,
    own_in_flight=COUNTS,
)
ASKS = st.builds(
    Ask,
    request=st.integers(0, 5),
    prompt_tokens=TOKENS,
    answer_tokens_guess=TOKENS,
    blocks=st.lists(st.integers(0, 6), max_size=6).map(tuple),
    now_s=st.floats(-10.0, 1e4),
    origin=st.integers(0, 2),
    session=st.integers(-5, 2**63),
)
EVENTS = st.lists(st.tuples(ASKS, st.lists(SERVERS, max_size=5), NUMBERS), min_size=1, max_size=8)
RULES = [pytest.param(rule, id=rule.name) for rule in POLICIES]
KNOBS = [(rule, knob) for rule in POLICIES for knob in rule.knobs]


def run(rule: Policy, events: list[tuple[Ask, list[Seen], float]]) -> list[Pick]:
    """Choose, send, answer and end in turn; every third request gets no answer."""
    rng, chosen = Random(5), []
    for number, (one, servers, ms) in enumerate(events):
        pick = rule.pick(one, servers, rng)
        chosen.append(pick)
        if pick.server is None:
            continue
        rule.sent(one, pick.server)
        if number % 3:
            rule.first_token(one, pick.server, ms, one.now_s)
            rule.ended(one, pick.server, ms, one.now_s)
    return chosen


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_a_rule_names_a_server_it_was_shown_or_none(
    rule: type[Policy], data: st.DataObject
) -> None:
    knob, events = data.draw(st.sampled_from(rule.knobs)), data.draw(EVENTS)
    for pick, (_, servers, _) in zip(run(rule(knob), events), events, strict=True):
        assert pick.reason
        assert pick.server is None or pick.server in {one.server for one in servers}
        assert 0.0 <= pick.wait_s <= 60.0
        assert pick.server is None or pick.wait_s == 0.0
        assert pick.fetch_from is None or pick.fetch_from in {one.server for one in servers}


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_one_seed_gives_one_answer(rule: type[Policy], data: st.DataObject) -> None:
    knob, events = data.draw(st.sampled_from(rule.knobs)), data.draw(EVENTS)
    assert run(rule(knob), events) == run(rule(knob), events)


@pytest.mark.parametrize(("rule", "knob"), KNOBS)
def test_with_one_idle_server_it_is_taken(rule: type[Policy], knob: float) -> None:
    assert rule(knob).pick(ask(blocks=(1, 2)), [seen(4)], Random(0)).server == 4


@pytest.mark.parametrize(("rule", "knob"), KNOBS)
def test_with_no_server_there_is_none(rule: type[Policy], knob: float) -> None:
    pick = rule(knob).pick(ask(blocks=(1, 2)), [], Random(0))
    assert (pick.server, pick.wait_s) == (None, 0.0)


@pytest.mark.parametrize("rule", RULES)
def test_all_full_is_for_the_servers_to_say_but_where_a_rule_waits(rule: type[Policy]) -> None:
    full = [seen(at, running=8, waiting=3, sequences_max=8, own_in_flight=11) for at in range(3)]
    pick = rule(rule.knobs[0]).pick(ask(blocks=(1,)), full, Random(0))
    if rule.name == "stargate_wait_and_widen":
        assert pick.server is None
        assert pick.wait_s > 0.0
    else:
        assert pick.server in {0, 1, 2}
