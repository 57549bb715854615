"""One simulated run: what edges know, what requests meet, and that a seed decides all of it."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf, isfinite
from random import Random
from typing import ClassVar

import pytest
from sim_bed import ONE_REGION, SPEC, asked, mesh

from firstlight.infra.sim.core import Core
from firstlight.infra.sim.edge import Server
from firstlight.infra.sim.faults import Fault
from firstlight.infra.sim.matrix import GORGO
from firstlight.infra.sim.mesh import Mesh
from firstlight.infra.sim.ours import Firstlight
from firstlight.infra.sim.policies.policy import Ask, Pick, Policy, Seen
from firstlight.infra.sim.policies.round_robin import RoundRobin
from firstlight.infra.sim.rules import Way
from firstlight.infra.sim.simulation import TRIES_MAX, Run, simulate
from firstlight.infra.sim.workload import Asked
from firstlight.shared.engine.sequence import Counted
from firstlight.shared.errors import ConfigError
from firstlight.shared.routing.sketch import held_tokens, probes_of

OURS = Way("firstlight").make


class Fixed(Policy):
    """Always the same server, and a note of all that it was told."""

    name = "fixed"
    source = "this test"
    has_network_term = False
    knobs: ClassVar[tuple[float, ...]] = (0.0,)

    def __init__(self, server: int | None = 0, wait_s: float = 0.0) -> None:
        self.answer = Pick(server, wait_s=wait_s)
        self.looks: list[tuple[float, tuple[Seen, ...]]] = []
        self.told: list[str] = []

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        self.looks.append((ask.now_s, tuple(seen)))
        here = {one.server for one in seen}
        return self.answer if self.answer.server in here or self.answer.wait_s else Pick(None)

    def sent(self, ask: Ask, server: int) -> None:
        self.told.append(f"sent {ask.request}")

    def first_token(self, ask: Ask, server: int, ttft_ms: float, now_s: float) -> None:
        self.told.append(f"first {ask.request}")

    def ended(self, ask: Ask, server: int, latency_ms: float, now_s: float) -> None:
        self.told.append(f"ended {ask.request}")


def one_at(at_s: float, *, tokens: int = 3000, answer: int = 20, session: int = 0) -> Asked:
    blocks = tuple(range(session * 1000, session * 1000 + -(-tokens // 512)))
    return Asked(at_s, tokens, answer, blocks, session, 0)


def fixed_run(requests: Sequence[Asked], rule: Fixed, **more: object) -> Run:
    setup = mesh(ONE_REGION, cores=1, edges=1, **more)
    return simulate(requests, lambda edge, known: rule, setup)


def test_the_same_seed_gives_the_same_result_to_the_bit() -> None:
    setup = mesh(replace(GORGO, jitter_ms=3.0, loss=0.02), seed=5)
    assert simulate(asked(), OURS, setup) == simulate(asked(), OURS, setup)


def test_another_seed_gives_another_result() -> None:
    assert simulate(asked(), OURS, mesh(seed=5)) != simulate(asked(), OURS, mesh(seed=6))


@pytest.mark.parametrize("rule", ["firstlight", "round_robin", "gorgo"])
def test_stretches_change_nothing_that_is_told(rule: str) -> None:
    fast = simulate(asked(), Way(rule).make, mesh())
    slow = simulate(asked(), Way(rule).make, mesh(stretches=False))
    assert fast == slow


def test_an_idle_core_serves_after_the_way_there_and_back_and_its_prefill() -> None:
    warm, one = one_at(0.0, session=1), one_at(3.0, tokens=1000)
    run = fixed_run([warm, one], Fixed())
    prefill_ms = SPEC.table.work_ms(1, 999, 999 * 1000 // 2, 1000)
    assert run.served[1].ttft_ms == pytest.approx(10.0 + prefill_ms)


def test_what_a_core_has_cached_is_not_computed_again() -> None:
    run = fixed_run([one_at(0.0), one_at(5.0)], Fixed())
    first, second = run.served
    assert (first.cached_tokens, second.cached_tokens) == (0, 5 * 512)
    assert second.ttft_ms < first.ttft_ms / 3


def test_a_report_is_as_old_as_the_way_and_the_heartbeat() -> None:
    rule = Fixed()
    fixed_run([one_at(0.0, answer=2000), one_at(0.004, tokens=600, session=1)], rule)
    (_, first), (_, second) = rule.looks
    assert (first[0].running, second[0].running) == (0, 0)
    assert 0.005 <= second[0].age_s <= 0.255
    assert second[0].own_in_flight == 1
    assert second[0].unseen_opens == 1


def test_a_stream_keeps_its_edge_informed() -> None:
    rule = Fixed()
    fixed_run([one_at(0.0, answer=2000), one_at(3.0, tokens=600, session=1)], rule)
    seen = rule.looks[1][1][0]
    assert seen.age_s == pytest.approx(0.005)
    assert (seen.running, seen.unseen_opens) == (1, 0)


def test_a_full_core_refuses_and_a_request_without_another_is_a_miss() -> None:
    rule = Fixed()
    crowd = [one_at(0.0, tokens=2000, answer=50, session=n) for n in range(40)]
    run = fixed_run(crowd, rule)
    refused = [one for one in run.served if one.refused]
    assert len(refused) == 40 - SPEC.sequences_max - SPEC.waiting_max
    assert all(one.ttft_ms == inf for one in refused)
    assert sum(told.startswith("ended") for told in rule.told) == 40


def test_what_a_core_refuses_goes_to_another() -> None:
    run = simulate(
        [one_at(0.0, tokens=2000, answer=50, session=n) for n in range(24)],
        lambda edge, known: RoundRobin(),
        mesh(ONE_REGION, cores=3, edges=1),
    )
    assert not any(one.refused for one in run.served)


def test_a_rule_may_let_a_request_wait() -> None:
    class Patient(Fixed):
        def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
            return Pick(None, wait_s=0.25) if ask.now_s < 1.0 else Pick(0)

    run = fixed_run([one_at(0.0)], Patient())
    assert 1000 < run.served[0].ttft_ms < 1500


def test_a_killed_core_loses_what_it_had_and_other_cores_go_on_with_it() -> None:
    kill = Fault("kill", "core-0", 0.5, 1.0)
    run = simulate(
        [one_at(0.0, tokens=2000, answer=400, session=n) for n in range(4)],
        lambda edge, known: RoundRobin(),
        mesh(ONE_REGION, cores=2, edges=1, faults=(kill,)),
    )
    assert not any(one.refused for one in run.served)
    assert sorted(one.tries for one in run.served) == [1, 1, 2, 2]


def test_a_core_that_is_back_is_empty_and_is_used_again() -> None:
    rule = Fixed()
    kill = Fault("kill", "core-0", 2.0, 1.0)
    run = fixed_run([one_at(0.0), one_at(2.5), one_at(4.0)], rule, faults=(kill,))
    assert [bool(one.refused) for one in run.served] == [False, True, False]
    assert run.served[2].cached_tokens == 0


def test_the_loss_of_a_region_is_noticed_by_its_silence() -> None:
    lost = Fault("region", "here", 0.01)
    rule = Fixed()
    run = fixed_run([one_at(0.0), one_at(1.0), one_at(3.0)], rule, faults=(lost,))
    assert all(one.refused for one in run.served)
    assert [len(seen) for at, seen in rule.looks] == [1, 1, 0, 0, 0]


def test_a_slow_core_is_slow_until_it_is_mended() -> None:
    slow = Fault("slow", "core-0", 1.0, 4.0, 3.0)
    requests = [one_at(at, session=n) for n, at in enumerate((0.0, 0.5, 2.0, 6.0))]
    _, before, while_, after = fixed_run(requests, Fixed(), faults=(slow,)).served
    assert while_.ttft_ms - 10 == pytest.approx(3 * (before.ttft_ms - 10), rel=0.02)
    assert after.ttft_ms == pytest.approx(before.ttft_ms, rel=0.02)


def test_a_request_that_nobody_keeps_is_given_up_after_some_tries() -> None:
    kills = tuple(Fault("kill", f"core-{n}", 0.02 + n * 0.2) for n in range(6))
    run = simulate(
        [one_at(0.0, tokens=30_000, answer=400)],
        lambda edge, known: RoundRobin(),
        mesh(ONE_REGION, cores=6, edges=1, faults=kills),
    )
    assert run.served[0].tries <= TRIES_MAX


def test_a_prefix_that_is_fetched_is_cached_there_but_takes_its_way() -> None:
    class Moves(Fixed):
        def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
            return Pick(0) if ask.request == 0 else Pick(1, fetch_from=0)

    rule = Moves()
    run = simulate(
        [one_at(0.0, tokens=20_000), one_at(5.0, tokens=20_000)],
        lambda edge, known: rule,
        mesh(ONE_REGION, cores=2, edges=1),
    )
    assert run.served[1].cached_tokens == 39 * 512
    assert 200 < run.served[1].ttft_ms < run.served[0].ttft_ms


def test_our_rule_goes_by_what_it_sent_and_not_by_what_it_cannot_know() -> None:
    known = Mesh(mesh(ONE_REGION, cores=2, edges=1))
    rule = Firstlight(known)
    ask = Ask(0, 5000, 350, tuple(range(10)), 1.0, 0, 0)
    seen = [Seen(n, 0, 10.0, 0, 0, 16, 0, 0.0, 4608 * n, 0.02, ((1, 5.0),), 0.1, 0) for n in (0, 1)]
    first = {Firstlight(known).pick(ask, seen, Random(seed)).server for seed in range(20)}
    assert first == {0, 1}
    chosen = rule.pick(ask, seen, Random(0)).server
    assert chosen is not None
    rule.computed(ask, chosen, 0, 1.2)
    later = replace(ask, request=1, now_s=9.0)
    assert {rule.pick(replace(later, request=n), seen, Random(n)).server for n in range(9)} == {
        chosen
    }


def test_our_rule_hears_of_a_hot_prefix_a_second_or_two_late_and_from_the_core() -> None:
    known = Mesh(mesh(ONE_REGION, cores=2, edges=1))
    names = known.names(tuple(range(10)), 5000)
    cores = [Core(known.setup.spec) for _ in range(2)]
    servers = [Server(n, 0, core) for n, core in enumerate(cores)]
    cores[1].land(names)
    ask = Ask(0, 5000, 350, tuple(range(10)), 1.0, 0, 0)
    seen = [Seen(n, 0, 10.0, 0, 0, 16, 0, 0.0, 0, 0.02, ((1, 5.0),), 0.1, 0) for n in (0, 1)]
    for second, expected in ((1, {0, 1}), (2, {1})):
        known.tick(servers, float(second))
        picked = {Firstlight(known).pick(ask, seen, Random(n)).server for n in range(20)}
        assert picked == expected


def test_a_core_tells_of_a_prompt_once_it_is_computed_and_of_none_after_a_kill() -> None:
    core = Core(SPEC)
    names = tuple(bytes([n]) * 16 for n in range(4))
    assert core.open("r", Counted(2100, 2100, names), 5, 0.0) == ""
    assert core.sketch == b""
    while core.due_s is not None:
        at_s = core.due_s
        core.run(at_s)
    assert held_tokens(core.sketch, probes_of(names, 512)) == 2048
    core.kill(at_s)
    assert core.sketch == b""


def test_utilisation_and_steps_are_told() -> None:
    run = simulate(asked(), OURS, mesh())
    assert len(run.busy) == 3
    assert all(0 < share <= 1 for share in run.busy)
    assert run.steps > 0
    assert all(isfinite(one.e2e_ms) for one in run.served)


@pytest.mark.parametrize(("cores", "edges"), [(0, 1), (1, 0), (100_000, 1)])
def test_a_mesh_without_nodes_or_with_too_many_is_refused(cores: int, edges: int) -> None:
    with pytest.raises(ConfigError, match="at least one of each"):
        mesh(cores=cores, edges=edges)
