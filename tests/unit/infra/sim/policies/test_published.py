"""The list of published rules."""

from firstlight.infra.sim.policies.published import POLICIES


def test_no_two_rules_have_one_name() -> None:
    names = [rule.name for rule in POLICIES]
    assert len(set(names)) == len(names) == 17


def test_each_rule_says_where_it_was_published() -> None:
    assert all("," in rule.source for rule in POLICIES)


def test_a_rule_has_one_value_of_its_knob_or_five() -> None:
    assert {len(rule.knobs) for rule in POLICIES} == {1, 5}
    assert all(len(set(rule.knobs)) == len(rule.knobs) for rule in POLICIES)


def test_the_rules_that_weigh_round_trips_are_these() -> None:
    assert [rule.name for rule in POLICIES if rule.has_network_term] == [
        "stargate_power_of_n",
        "stargate_wait_and_widen",
        "gorgo",
    ]
