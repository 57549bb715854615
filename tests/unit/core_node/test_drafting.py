"""Drafters beside the engine: what they offer, what their time costs, and that no text changes."""

from dataclasses import dataclass, field

import pytest
from doubles import config, request

from firstlight.core_node.drafting import ORACLE_SOURCE, CoreDrafting, DraftingSection, Foretold
from firstlight.core_node.mailbox import Mailbox
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.oracle import Oracle, OracleConfig
from firstlight.shared.engine.steptable import StepTable
from firstlight.shared.engine.timed import TimedRunner
from firstlight.shared.types import Hint, Request

VOCAB = 1000
FLAT = StepTable(((1, 25.0),))


@dataclass
class Core:
    """An engine over simulated time with a drafter beside it, stepped as a backend does it."""

    oracle: OracleConfig | None
    table: StepTable = FLAT
    delays_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        limits = config(blocks=256, context_max=2048, hint_ids_max=7)
        runner = TimedRunner(self.table, blocks=256, host_blocks=0, vocab=VOCAB)
        self.engine = Engine(runner, limits)
        self.mailbox = Mailbox(VOCAB)
        section = DraftingSection(ngram=False, oracle=self.oracle)
        foretold = Foretold(range(VOCAB), self.delays_s.append)
        self.drafting = CoreDrafting(section, self.mailbox, foretold)
        self.ms, self.ids = 0.0, {}
        self.verified = {}

    def open(self, *requests: Request) -> None:
        for one in requests:
            self.engine.add(one, epoch=1, credit=10_000, now=0.0)
            self.mailbox.open(one.id, one.prompt)
            self.drafting.open(one, ())
            self.ids[one.id] = []

    def step(self) -> None:
        positions = self.engine.next_positions()
        self.drafting.offer(self.engine, positions, 7)
        for handle in positions:
            found = self.mailbox.candidate(handle, 7)
            self.engine.candidate(handle, found.start, found.ids, found.sources)
        result = self.engine.step(0.0)
        self.ms += result.ms
        for outcome in result.outcomes:
            self.mailbox.verified(outcome.request, outcome.verified)
            self.drafting.committed(outcome.request, outcome.position, outcome.ids)
            self.mailbox.committed(outcome.request, outcome.ids)
            self.ids[outcome.request] += outcome.ids
            if outcome.finish:
                self.drafting.forget(outcome.request)
                self.verified[outcome.request] = dict(self.mailbox.close(outcome.request))

    def run(self, *requests: Request) -> float:
        """All of them to their end; returns tokens a second."""
        self.open(*requests)
        while self.engine.has_work:
            self.step()
        return 1000 * sum(map(len, self.ids.values())) / (self.ms + 1000 * sum(self.delays_s))


def asked(name: str = "r", tokens: int = 400, seed: int = 5) -> Request:
    return request(name, max_tokens=tokens, seed=seed)


def test_a_good_drafter_beside_the_core_makes_it_faster_and_changes_no_id():
    alone, beside = Core(None), Core(OracleConfig(0.8, 2.0))
    plain, drafted = alone.run(asked()), beside.run(asked())
    assert beside.ids == alone.ids
    assert plain < 40.01
    assert 90 < drafted < 112, "107 by the model of `infra.scenario.hints_model`"


def test_the_time_of_every_drafted_id_passes():
    core = Core(OracleConfig(0.8, 2.0))
    core.run(asked())
    offered = core.verified["r"][ORACLE_SOURCE].offered
    assert offered > 100
    assert sum(core.delays_s) * 1000 == pytest.approx(2.0 * offered)


def test_a_drafter_that_does_not_pay_only_probes_in_one_request_of_sixteen():
    core = Core(OracleConfig(0.3, 24.0))
    plain = Core(None).run(asked("a"))
    assert core.run(asked("warm"), asked("a", seed=6)) > 0
    core.ids.clear()
    core.delays_s.clear()
    core.ms = 0.0
    assert core.run(asked("b")) > 0.97 * plain
    assert ORACLE_SOURCE not in core.verified["b"]


def test_behind_what_an_edge_foretold_it_goes_on_and_does_not_say_it_again():
    core, one = Core(OracleConfig(0.9, 2.0)), asked(tokens=1900)
    sure = Oracle(1.0, one, range(VOCAB), name="edge")
    core.open(one)
    for _ in range(8):
        core.step()
    while len(core.ids["r"]) < 1800:
        start, chain = core.mailbox.tip("r")
        sure.rewind(len(one.prompt))
        sure.append(core.ids["r"])
        core.mailbox.hint(Hint("r", start, chain, (sure.next(), sure.next()), "edge-oracle"))
        core.step()
    counts = core.mailbox.counts("r")
    assert counts["edge-oracle"].accepted == counts["edge-oracle"].verified > 200
    assert core.delays_s[-1] == pytest.approx(5 * 0.002), "hint_ids_max is 7"


def test_what_others_offer_in_vain_is_not_gone_on_from():
    core = Core(OracleConfig(0.9, 2.0))
    core.open(asked(tokens=400))
    while core.engine.has_work and len(core.ids["r"]) < 390:
        start, chain = core.mailbox.tip("r")
        core.mailbox.hint(Hint("r", start, chain, (3, 4), "edge-oracle"))
        core.step()
    counts = core.mailbox.counts("r")
    assert counts[ORACLE_SOURCE].accepted > 200
    assert counts["edge-oracle"].verified < 40


def test_nothing_is_drafted_for_a_step_that_prefills():
    core = Core(OracleConfig(1.0, 2.0))
    core.open(asked())
    core.step()
    assert core.delays_s == []
