"""A real mesh that writes histories, its processes killed under streams; the judge reads them."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from firstlight.infra.chat import Asked, Question, ask
from firstlight.infra.judge.evidence import Evidence, read_evidence
from firstlight.infra.judge.run_file import RunRecord
from firstlight.infra.mesh import Mesh, start_mesh
from firstlight.infra.reply import Reply
from firstlight.shared.history import What
from firstlight.shared.history_file import History, history_of

SECRET = "Zanzibar lighthouse"
STORY = Question(
    f"Tell me about a {SECRET}.", seed=3, temperature=0.8, max_tokens=48, ignore_eos=True
)


@dataclass
class Scenario:
    """What was done, and what came of it."""

    mesh: Mesh
    record: RunRecord
    history: History
    texts: list[str] = field(default_factory=list)
    core: str = ""

    async def run(self) -> None:
        self.texts.append((await self.asked()).reply.text)
        self.texts.append((await self.asked(self.kill_core)).reply.text)
        self.back(self.core)
        self.texts.append((await self.asked(self.kill_edge)).reply.text)
        self.back(self.mesh.plan.edges[0].node)
        await self.cancelled()
        self.texts.append((await self.asked()).reply.text)
        await asyncio.sleep(1.5)

    async def asked(
        self, on_text: Callable[[str, Reply], None] = lambda text, reply: None
    ) -> Asked:
        here, there = self.mesh.plan.edges
        return await ask(
            here.url,
            STORY,
            others=[there.url],
            ca_file=self.mesh.ca_file,
            on_text=on_text,
            history=self.history,
        )

    def kill_core(self, text: str, reply: Reply) -> None:
        if not self.core and len(reply.token_ids) >= 15:
            self.core = str(reply.details["core"])
            self.kill(self.core)

    def kill_edge(self, text: str, reply: Reply) -> None:
        edge = self.mesh.plan.edges[0].node
        if edge in self.mesh.children and len(reply.token_ids) >= 15:
            self.kill(edge)

    def kill(self, node: str) -> None:
        self.record.fault("kill", node)
        self.mesh.kill(node)

    def back(self, node: str) -> None:
        self.mesh.start_node(node)
        self.mesh.wait_ready([node])
        self.mesh.wait_linked()

    async def cancelled(self) -> None:
        begun = asyncio.Event()
        asking = asyncio.create_task(self.asked(lambda text, reply: begun.set()))
        await asyncio.wait_for(begun.wait(), 30)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    folder = tmp_path_factory.mktemp("judged")
    histories = folder / "histories"
    with ExitStack() as stack:
        mesh = stack.enter_context(start_mesh(folder / "state", histories=histories))
        command = "pytest tests/integration/test_judge.py"
        record = RunRecord.begin(histories, seed=3, command=command, nodes=mesh.plan.names)
        history = stack.enter_context(history_of(histories, "client", "client"))
        assert history is not None
        scenario = Scenario(mesh, record, history)
        asyncio.run(scenario.run())
    record.end()
    return scenario


@pytest.fixture(scope="module")
def evidence(scenario: Scenario) -> Evidence:
    return read_evidence([scenario.record.directory])


def test_the_judge_holds_a_mesh_whose_core_and_edge_were_killed(scenario: Scenario) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "firstlight", "judge", str(scenario.record.directory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith("held: I1, I2, I3, I4, I5, I6, I7, I8, I9, poison; seed 3; ")
    assert "2 faults" in ended.stdout


def test_the_texts_are_one(scenario: Scenario) -> None:
    assert len(scenario.texts) == 4
    assert len(set(scenario.texts)) == 1


def test_what_happened_is_in_the_histories(scenario: Scenario, evidence: Evidence) -> None:
    said = {
        role: {one.line.what for process in evidence.of_role(role) for one in process.said}
        for role in ("edge", "core", "lb", "client")
    }
    edge = {What.ACCEPTED, What.OPENED, What.COMMITTED, What.SENT, What.DELIVERED, What.ENDED}
    assert edge | {What.MOVED, What.RESUMED, What.CANCELLED, What.SAMPLE} <= said["edge"]
    core = {What.OPENED, What.COMMITTED, What.ENDED, What.CANCELLED, What.DRAINED, What.SAMPLE}
    assert core <= said["core"]
    assert {What.MEMBER, What.SAMPLE, What.STOPPED} <= said["lb"]
    assert {What.ASKED, What.RESUMED, What.RECEIVED, What.ENDED, What.CANCELLED} <= said["client"]


def test_a_killed_process_and_the_one_after_it_have_a_history_each(
    scenario: Scenario, evidence: Evidence
) -> None:
    for node in (scenario.core, scenario.mesh.plan.edges[0].node):
        stopped = [process.stopped for process in evidence.processes if process.node == node]
        assert sorted(stopped) == [False, True]


def test_the_cancelled_stream_left_its_core_at_once(evidence: Evidence) -> None:
    cancelled = [one for one in evidence.edge_tellings if one.of(What.CANCELLED)]
    (stream,) = [one.stream for one in cancelled if one.process.stopped]
    (told,) = evidence.core_tellings[stream, 1]
    assert told.of(What.CANCELLED)


def test_no_prompt_and_no_answer_is_in_a_history(scenario: Scenario) -> None:
    text = scenario.texts[0]
    assert len(text) > 100
    pieces = {text[at : at + 12] for at in range(0, len(text) - 12, 5)}
    for path in scenario.record.directory.glob("*.jsonl"):
        written = path.read_text()
        assert not [piece for piece in (*SECRET.split(), *pieces) if piece in written]
