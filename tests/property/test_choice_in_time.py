"""What the rule does to a crowd, in virtual time: queues, one slow server, a hot prefix."""

from collections.abc import Callable
from functools import partial
from random import Random

import pytest
from queue_bed import Edge, Server, World, by_rule, by_two_choices, lognormal_s

from firstlight.shared.estimate import quantile
from firstlight.shared.routing.prefixes import SentPrefixes
from firstlight.shared.routing.rank import Wanted

Pick = Callable[[World, Edge, Random], int]


def rule(world: World, edge: Edge, rng: Random) -> int:
    return by_rule(world, edge, rng)[0]


def two_choices(world: World, edge: Edge, rng: Random) -> int:
    return by_two_choices(edge, rng)


def p99_wait_s(pick: Pick, deciders: int, seed: int, *, requests: int = 8000) -> float:
    """Ten servers of four places, one three times slower, at three quarters of what they can do."""
    rng = Random(seed)
    servers = [Server(f"s{n}", slower=3.0 if n == 0 else 1.0) for n in range(10)]
    world = World(servers, [Edge.of(n, servers) for n in range(deciders)])
    world.speak(rng)
    rate = 0.75 * sum(server.places / server.slower for server in servers)

    def arrive(left: int) -> None:
        edge = rng.choice(world.edges)
        world.send(edge, pick(world, edge, rng), lognormal_s(rng))
        if left:
            world.at(world.now + rng.expovariate(rate), lambda: arrive(left - 1))

    world.at(0.0, lambda: arrive(requests))
    world.run(requests / rate + 60.0)
    return quantile(world.waits_s[requests // 10 :], 0.99)


@pytest.mark.parametrize("deciders", [4, 16])
def test_beside_a_slow_server_the_longest_waits_are_a_third_of_those_of_two_choices(
    deciders: int,
) -> None:
    ours = p99_wait_s(rule, deciders, seed=1)
    theirs = p99_wait_s(two_choices, deciders, seed=1)
    assert ours <= 0.3 * theirs, (ours, theirs)


SYSTEM_BLOCKS, OWN_TOKENS = 64, 256
SYSTEM_TOKENS = 16 * SYSTEM_BLOCKS
SYSTEM = [b"system %d" % n for n in range(SYSTEM_BLOCKS)]


def hot_prefix(share: float, seed: int, *, requests: int = 4000) -> tuple[list[float], float]:
    """(requests in flight by core, the share of cached tokens of those with the system prompt).

    Eight cores of eight places, four edges, six tenths of what they can do.
    """
    rng = Random(seed)
    servers = [Server(f"s{n}", places=8, mean_s=1.0, prefill_ms=1.0) for n in range(8)]
    world = World(servers, [Edge.of(n, servers) for n in range(4)])
    world.speak(rng)
    sent = [SentPrefixes() for _ in world.edges]
    hits: list[bool] = []
    work_s = share * (1.0 + OWN_TOKENS / 1000) + (1 - share) * 2.28
    rate = 0.6 * 64 / work_s

    def learn(edge: Edge, core: str, expected: int, hit: bool) -> None:
        sent[edge.number].computed(
            core,
            SYSTEM,
            expected_tokens=expected,
            cached_tokens=SYSTEM_TOKENS if hit else 0,
            now=world.now,
        )

    def arrive(left: int) -> None:
        edge, hot = rng.choice(world.edges), rng.random() < share
        prefixes = sent[edge.number].resident(SYSTEM, world.now) if hot else {}
        wanted = Wanted(
            "home",
            SYSTEM_TOKENS + OWN_TOKENS,
            model="m",
            prefixes=prefixes,
            prefix_traffic=sent[edge.number].traffic(SYSTEM, SYSTEM_TOKENS, world.now) * hot,
        )
        place, _ = by_rule(world, edge, rng, wanted)
        server, hit = servers[place], False
        if hot:
            hit = b"system" in server.cached
            hits.append(hit)
            server.cached.add(b"system")
            sent[edge.number].sent(server.name, SYSTEM, world.now)
            then = partial(learn, edge, server.name, prefixes.get(server.name, 0), hit)
        else:
            own = [b"own %d %d" % (left, n) for n in range(SYSTEM_BLOCKS)]
            sent[edge.number].sent(server.name, own, world.now)
            then = partial(int)
        tokens = OWN_TOKENS if hit else SYSTEM_TOKENS + OWN_TOKENS
        world.send(edge, place, tokens / 1000 + rng.expovariate(1.0), then)
        if left:
            world.at(world.now + rng.expovariate(rate), lambda: arrive(left - 1))

    world.at(0.0, lambda: arrive(requests))
    world.run(requests / rate)
    return [server.in_flight_s / world.now for server in servers], sum(hits) / len(hits)


def test_a_system_prompt_of_most_requests_does_not_swamp_the_cores_that_have_it() -> None:
    in_flight, hit_rate = hot_prefix(0.8, seed=1)
    assert max(in_flight) <= 1.3 * sum(in_flight) / len(in_flight), in_flight
    assert hit_rate >= 0.9
