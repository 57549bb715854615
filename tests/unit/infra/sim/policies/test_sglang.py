"""The tests of SGLang's cache_aware.rs: loads 20 and 0 beyond a threshold of 5."""

from policy_bed import ask, go, picks, seen

from firstlight.infra.sim.policies.sglang import BLOCKS_MAX, CacheAware


def workers(*loads: int) -> list:
    return [seen(worker, own_in_flight=load) for worker, load in enumerate(loads, 1)]


def test_the_same_request_and_its_beginning_go_to_the_same_worker() -> None:
    rule = CacheAware()
    first = go(rule, ask(1, blocks=(1, 2)), workers(0, 0)).server
    assert picks(rule, ask(2, blocks=(1, 2)), workers(0, 0)) == {first}
    assert picks(rule, ask(3, blocks=(1,)), workers(0, 0)) == {first}


def test_an_imbalance_goes_to_the_idler_worker_despite_affinity() -> None:
    rule = CacheAware(5.0)
    rule.sent(ask(1, blocks=(1,)), 1)
    assert picks(rule, ask(2, blocks=(1,)), workers(20, 0)) == {2}


def test_it_takes_both_thresholds_to_be_imbalanced() -> None:
    rule = CacheAware(5.0)
    rule.sent(ask(1, blocks=(1,)), 1)
    assert picks(rule, ask(2, blocks=(1,)), workers(5, 0)) == {1}  # 5 more are allowed
    assert picks(rule, ask(2, blocks=(1,)), workers(6, 5)) == {1}
    assert picks(rule, ask(2, blocks=(1,)), workers(66, 60)) == {1}  # 66 is 1.1 · 60
    assert picks(rule, ask(2, blocks=(1,)), workers(67, 60)) == {2}


def test_half_a_prompt_is_no_match() -> None:
    rule = CacheAware()
    rule.sent(ask(1, blocks=(1, 2)), 1)
    assert picks(rule, ask(2, blocks=(1, 2, 3, 4)), workers(1, 0)) == {2}
    assert picks(rule, ask(2, blocks=(1, 2, 3)), workers(1, 0)) == {1}


def test_what_an_imbalance_sent_elsewhere_is_known_there() -> None:
    rule = CacheAware(5.0)
    rule.sent(ask(1, blocks=(1,)), 1)
    go(rule, ask(2, blocks=(1,)), workers(20, 0))
    assert picks(rule, ask(3, blocks=(1,)), workers(3, 3)) == {1, 2}


def test_the_limit_of_the_tree_is_that_of_the_source_in_our_blocks() -> None:
    assert BLOCKS_MAX == 32_768
