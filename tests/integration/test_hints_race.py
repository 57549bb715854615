"""The real parts in simulated time, against the model: drafts at the edge, mailbox, engine."""

from collections import deque

import pytest
from doubles import config, request

from firstlight.core_node.drafting import CoreDrafting, DraftingSection, Foretold
from firstlight.core_node.mailbox import Mailbox
from firstlight.edge_node.draft import FreeDraft
from firstlight.infra.scenario.hints_model import HintsModel
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.oracle import Oracle, OracleConfig
from firstlight.shared.engine.steptable import StepTable
from firstlight.shared.engine.timed import TimedRunner
from firstlight.shared.stream import TokenStream
from firstlight.shared.types import Hint

VOCAB, TOKENS, SEEDS = 1000, 600, (1, 2)
ANSWER_IDS = range(VOCAB)


class Race:
    """One stream between an edge and a core, `way_s` apart, on one clock."""

    def __init__(self, model: HintsModel, seed: int, claimed: float | None = None) -> None:
        """`claimed`: how good the edge's drafter really is, if not as the model has it."""
        self.asked = request("r", max_tokens=TOKENS, seed=seed)
        limits = config(blocks=256, context_max=2048, hint_ids_max=model.hint_ids_max)
        runner = TimedRunner(model.table, blocks=256, host_blocks=0, vocab=VOCAB)
        self.engine, self.mailbox = Engine(runner, limits), Mailbox(VOCAB)
        self.engine.add(self.asked, epoch=1, credit=10_000, now=0.0)
        self.mailbox.open("r", self.asked.prompt)
        self.now, self.ids, self.hint_ids_max = 0.0, [], model.hint_ids_max
        section = DraftingSection(ngram=False, oracle=model.core)
        self.drafting = CoreDrafting(section, self.mailbox, Foretold(ANSWER_IDS, self._delay))
        self.drafting.open(self.asked, ())
        self.rtt_ms, self.way_s = model.rtt_ms, model.rtt_ms / 2000
        self.stream = TokenStream(self.asked.prompt)
        self.commits: deque[tuple[float, tuple[int, ...]]] = deque()
        self.hints: deque[tuple[float, Hint]] = deque()
        self.edge: FreeDraft | None = None
        if model.edge is not None:
            right = model.edge.acceptance if claimed is None else claimed
            oracle = Oracle(right, self.asked, ANSWER_IDS, name="edge")
            ms = model.edge.token_ms
            self.edge = FreeDraft(
                self.asked, self.stream, oracle, token_ms=ms, source="edge-oracle"
            )
            self.edge.follow(self.stream, 0.0, self.rtt_ms)

    def _delay(self, seconds: float) -> None:
        self.now += seconds

    def _edge_until(self, until_s: float) -> None:
        assert self.edge is not None
        while True:
            heard_s = self.commits[0][0] if self.commits else float("inf")
            due_s = self.edge.due_s if self.edge.due_s is not None else float("inf")
            now = min(heard_s, due_s)
            if now > until_s:
                return
            if heard_s <= due_s:
                self.stream.append(self.commits.popleft()[1])
                self.edge.follow(self.stream, now, self.rtt_ms)
            elif (hint := self.edge.hint(now)) is not None:
                self.hints.append((now + self.way_s, hint))

    def step(self) -> None:
        if self.edge is not None:
            self._edge_until(self.now - self.way_s)
        while self.hints and self.hints[0][0] <= self.now:
            self.mailbox.hint(self.hints.popleft()[1])
        positions = self.engine.next_positions()
        self.drafting.offer(self.engine, positions, self.hint_ids_max)
        for handle in positions:
            found = self.mailbox.candidate(handle, self.hint_ids_max)
            self.engine.candidate(handle, found.start, found.ids, found.sources)
        result = self.engine.step(self.now)
        self.now += result.ms / 1000
        for outcome in result.outcomes:
            self.mailbox.verified("r", outcome.verified)
            self.drafting.committed("r", outcome.position, outcome.ids)
            self.mailbox.committed("r", outcome.ids)
            self.ids += outcome.ids
            self.commits.append((self.now + self.way_s, outcome.ids))

    def run(self) -> float:
        """To the end; returns tokens a second."""
        while self.engine.has_work:
            self.step()
        return len(self.ids) / self.now


def raced(model: HintsModel, claimed: float | None = None) -> float:
    races = [Race(model, seed, claimed) for seed in SEEDS]
    return sum(race.run() for race in races) / len(races)


def edge(acceptance: float) -> OracleConfig:
    return OracleConfig(acceptance, 5.0)


@pytest.mark.parametrize("rtt_ms", [0.0, 5.0, 20.0, 50.0, 100.0])
@pytest.mark.parametrize("acceptance", [0.6, 0.8, 0.9])
def test_hints_from_an_edge_bring_what_the_model_says(rtt_ms, acceptance):
    model = HintsModel(step=25.0, rtt_ms=rtt_ms, edge=edge(acceptance))
    assert raced(model) == pytest.approx(model.simulate(5000), rel=0.1)


@pytest.mark.parametrize("acceptance", [0.6, 0.8, 0.9])
def test_a_drafter_beside_the_core_brings_what_the_model_says(acceptance):
    model = HintsModel(step=25.0, core=OracleConfig(acceptance, 2.0))
    assert raced(model) == pytest.approx(model.simulate(5000), rel=0.1)


@pytest.mark.parametrize("rtt_ms", [5.0, 20.0, 100.0])
@pytest.mark.parametrize("acceptance", [0.6, 0.9])
def test_both_bring_what_the_model_says(rtt_ms, acceptance):
    core = OracleConfig(acceptance, 2.0)
    model = HintsModel(step=25.0, rtt_ms=rtt_ms, edge=edge(acceptance), core=core)
    assert raced(model) == pytest.approx(model.simulate(5000), rel=0.12)


@pytest.mark.parametrize("rtt_ms", [0.0, 20.0, 100.0])
@pytest.mark.parametrize("right", [0.0, 0.05])
def test_wrong_hints_cost_next_to_nothing_where_rows_are_dear(rtt_ms, right):
    dear = StepTable(points=((1, 25.0), (2, 30.0), (8, 60.0)))
    plain = raced(HintsModel(step=dear))
    model = HintsModel(step=dear, rtt_ms=rtt_ms, edge=edge(0.5))
    assert raced(model, claimed=right) > 0.97 * plain


def test_the_text_is_the_same_without_hints_with_right_ones_and_with_wrong_ones():
    texts = []
    for claimed, core in ((None, None), (1.0, None), (0.0, OracleConfig(0.7, 2.0)), (0.7, None)):
        given = None if claimed is None else edge(0.5)
        race = Race(HintsModel(step=25.0, rtt_ms=20.0, edge=given, core=core), 3, claimed)
        race.run()
        texts.append(race.ids)
    assert texts[0] == texts[1] == texts[2] == texts[3]
    assert len(texts[0]) == TOKENS
