"""Whatever a decider sees: each published rule answers with a server it was shown, or with none."""

from math import inf, nan
from random import Random

import pytest
from policy_bed import ask, seen

from firstlight.infra.sim.policies.policy import Ask, Pick, Policy, Seen
from firstlight.infra.sim.policies.published import POLICIES

RUNS = 150
RULES = [pytest.param(rule, id=rule.name) for rule in POLICIES]
KNOBS = [(rule, knob) for rule in POLICIES for knob in rule.knobs]


def number(lots: Random) -> float:
    """Plausible, or no number at all."""
    return lots.choice((lots.uniform(-1e3, 1e6), lots.uniform(0.0, 10.0), 0.0, nan, inf, -inf))


def count(lots: Random) -> int:
    return lots.choice((lots.randint(0, 80), 0, -3))


def tokens(lots: Random) -> int:
    return lots.choice((lots.randint(0, 200_000), 0, -10, 2**62))


def nonsense(lots: Random) -> Seen:
    """A server that may say anything, one id more than once among them."""
    return Seen(
        server=lots.randint(0, 9),
        region=lots.randint(0, 2),
        rtt_ms=number(lots),
        waiting=count(lots),
        running=count(lots),
        sequences_max=lots.randint(0, 64),
        queued_prefill_tokens=tokens(lots),
        kv_used_share=number(lots),
        cached_tokens=tokens(lots),
        prefill_ms_per_token=number(lots),
        step_ms=tuple((count(lots), number(lots)) for _ in range(lots.randint(0, 3))),
        age_s=number(lots),
        own_in_flight=count(lots),
        unseen_opens=count(lots),
        unseen_prompt_tokens=tokens(lots),
    )


def request(lots: Random) -> Ask:
    return Ask(
        request=lots.randint(0, 5),
        prompt_tokens=tokens(lots),
        answer_tokens_guess=tokens(lots),
        blocks=tuple(lots.randint(0, 6) for _ in range(lots.randint(0, 6))),
        now_s=lots.choice((lots.uniform(-10.0, 1e4), lots.uniform(0.0, 1.0))),
        origin=lots.randint(0, 2),
        session=lots.randint(-5, 2**63),
    )


def run(rule: type[Policy], seed: int) -> list[tuple[Pick, list[Seen]]]:
    """Choose, send, answer and end in turn; every third request gets no answer."""
    lots, rng = Random(seed), Random(5)
    one_rule = rule(lots.choice(rule.knobs))
    chosen = []
    for turn in range(8):
        one, servers = request(lots), [nonsense(lots) for _ in range(lots.randint(0, 5))]
        pick = one_rule.pick(one, servers, rng)
        chosen.append((pick, servers))
        if pick.server is not None:
            one_rule.sent(one, pick.server)
            if turn % 3:
                one_rule.first_token(one, pick.server, number(lots), one.now_s)
                one_rule.ended(one, pick.server, number(lots), one.now_s)
    return chosen


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_names_a_server_it_was_shown_or_none(rule: type[Policy]) -> None:
    for seed in range(RUNS):
        for pick, servers in run(rule, seed):
            shown = {one.server for one in servers}
            assert pick.reason, seed
            assert pick.server is None or pick.server in shown, seed
            assert pick.fetch_from is None or pick.fetch_from in shown, seed
            assert 0.0 <= pick.wait_s <= 60.0, seed
            assert pick.server is None or pick.wait_s == 0.0, seed


@pytest.mark.parametrize("rule", RULES)
def test_one_seed_gives_one_answer(rule: type[Policy]) -> None:
    for seed in range(RUNS // 5):
        assert [pick for pick, _ in run(rule, seed)] == [pick for pick, _ in run(rule, seed)]


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
