"""Figures of production-stack's test_prefixaware_router.py and test_session_router.py."""

from policy_bed import ask, go, picks, prefilled, seen

from firstlight.infra.sim.policies.production_stack import (
    BySession,
    KvAware,
    PrefixAware,
    mixed,
    of_session,
)


def test_without_a_match_any_server_will_do() -> None:
    servers = [seen(0, running=9), seen(1), seen(2)]
    assert picks(PrefixAware(), ask(blocks=(1,)), servers) == {0, 1, 2}


def test_a_follow_up_is_pinned_to_where_the_first_went() -> None:
    rule = PrefixAware()
    prefilled(rule, ask(1, blocks=(1, 2)), 1)
    assert picks(rule, ask(2, blocks=(1, 2, 3)), [seen(0), seen(1, running=60)]) == {1}


def test_the_longest_of_several_matches_counts() -> None:
    rule = PrefixAware()
    prefilled(rule, ask(1, blocks=(1, 2)), 0)
    prefilled(rule, ask(2, blocks=(1, 2, 3)), 1)
    prefilled(rule, ask(3, blocks=(1, 2, 3)), 2)
    assert picks(rule, ask(4, blocks=(1, 2, 3, 4)), [seen(0), seen(1), seen(2)]) == {1, 2}


def test_a_match_below_the_minimum_goes_to_few_requests_and_seeds_the_trie() -> None:
    rule = PrefixAware(1024.0)
    first = ask(1, blocks=(1, 2))
    assert go(rule, first, [seen(0), seen(1, waiting=4, running=4)]).server == 0
    busy = [seen(0, waiting=4, running=4), seen(1)]
    assert picks(rule, ask(2, blocks=(1, 9)), busy) == {1}
    assert picks(rule, ask(3, blocks=(1, 2, 3)), busy) == {0}


def test_near_ties_spread_a_burst() -> None:
    servers = [seen(0, running=2), seen(1, running=2, waiting=1), seen(2, running=5)]
    assert picks(PrefixAware(4096.0), ask(blocks=(1,)), servers) == {0, 1}


def test_kv_is_followed_if_at_most_two_thousand_tokens_are_missing() -> None:
    rule = KvAware(2000.0)
    one = ask(tokens=5000, session=3)
    assert picks(rule, one, [seen(0, cached_tokens=3000), seen(1, cached_tokens=2999)]) == {0}
    short = [seen(0, cached_tokens=2999), seen(1, cached_tokens=2999)]
    assert picks(rule, one, short) == {of_session(3, short)}


def test_nothing_cached_is_no_match_however_short_the_prompt() -> None:
    servers = [seen(server) for server in range(5)]
    for session in range(20):
        one = ask(tokens=100, session=session)
        assert picks(KvAware(), one, servers, times=4) == {of_session(session, servers)}


def test_a_session_stays() -> None:
    servers = [seen(server, running=server * 10) for server in range(3)]
    assert picks(BySession(), ask(session=123), servers) == {of_session(123, servers)}


def test_sessions_are_spread() -> None:
    servers = [seen(server) for server in range(8)]
    lots = [of_session(session, servers) for session in range(8000)]
    assert all(850 < lots.count(server) < 1150 for server in range(8))


def test_only_sessions_of_a_server_that_left_move() -> None:
    servers = [seen(server) for server in range(3)]
    before = [of_session(session, servers) for session in range(200)]
    after = [of_session(session, servers[:2]) for session in range(200)]
    moved = {old for old, new in zip(before, after, strict=True) if old != new}
    assert moved == {2}


def test_mixing_is_splitmix64() -> None:
    # the first outputs of Java's SplittableRandom and of splitmix64.c for seeds 0 and 1234567
    assert mixed(0) == 0xE220A8397B1DCDAF
    assert mixed(1234567) == 6457827717110365317
