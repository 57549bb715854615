"""Each fault in a real laboratory: it has its effect, is taken back, and the judge holds the run.

One laboratory for all, with cores that compute nothing; the tests go on where others have left it.
"""

import asyncio
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from time import sleep
from typing import Any

import httpx
import pytest
import yaml

from firstlight.infra.chat import Asked, Question, ask
from firstlight.infra.judge.evidence import read_evidence
from firstlight.infra.judge.invariants import judge
from firstlight.infra.judge.run_file import RunRecord
from firstlight.infra.lab import fault_door
from firstlight.infra.lab.fault_plan import parse
from firstlight.infra.lab.faults import Faults, Injected
from firstlight.infra.lab.lab import Lab, start_lab
from firstlight.infra.lab.plan import KEY
from firstlight.infra.reply import Reply
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import ConfigError, FirstlightError

CORES = ("near", "far")
WAIT_S = 90.0
"""For processes to come back: seconds, where the machine has nothing else to do."""
STORY = Question("Once upon a time", seed=3, temperature=0.8, max_tokens=80, ignore_eos=True)
BLOCKS_SAVED = 15
"""Of a document, on the disk: enough to be worth reading."""
SHORT = Question("Say something.", seed=4, max_tokens=4, ignore_eos=True)
DOCUMENT = Question("All that follows is well known. " * 40, seed=5, max_tokens=8, ignore_eos=True)


def topology(histories: Path) -> dict[str, Any]:
    noted = {"history": str(histories)}
    slow = {"role": "core", "settings": noted | {"model": {"timed": "smollm2-cpu"}}}
    fast = {"role": "core", "settings": noted | {"model": {"timed": "h100-8b"}}}
    return {
        "regions": {"eu": {}, "us": {}},
        "nodes": {
            "lb": {"role": "lb", "region": "eu", "settings": noted},
            "edge": {"role": "edge", "region": "eu", "settings": noted},
            "near": {**slow, "region": "eu", "disk_mb": 160},
            "far": {**fast, "region": "us"},
            "index": {"role": "valkey", "region": "us"},
            "user": {"role": "client", "region": "eu"},
        },
        "links": [{"between": ["eu", "us"], "rtt_ms": 20}],
    }


@dataclass
class Bed:
    """A laboratory, and what tests do with it."""

    lab: Lab
    faults: Faults
    record: RunRecord

    def do(self, do: str, node: str | None = None, **more: Any) -> Injected:
        named = {} if node is None else {"node": node}
        return self.faults.inject(parse({"do": do, **named, **more}))

    def end(self, injected: Injected) -> None:
        self.faults.end(injected)
        self.faults.wait_back(WAIT_S)

    def ask(
        self,
        question: Question = SHORT,
        on_text: Callable[[str, Reply], None] = lambda text, reply: None,
        within_s: float = 30.0,
    ) -> Asked:
        url = self.lab.mesh.plan.edges[0].url
        with self.lab.inside("user"):
            asking = ask(
                url, question, ca_file=self.lab.mesh.ca_file, key=KEY, http="2", on_text=on_text
            )
            return asyncio.run(asyncio.wait_for(asking, within_s))

    def pid(self, node: str) -> int:
        mesh = self.lab.mesh
        return (mesh.children.get(node) or mesh.valkeys[node]).process.pid

    def state(self, node: str) -> str:
        stat = Path(f"/proc/{self.pid(node)}/stat").read_text()
        return stat.rpartition(")")[2].split()[0]

    def blocks(self, fate: str) -> float:
        """Of the disk tier of the core `near`."""
        ready = self.lab.mesh.children["near"].ready
        assert ready is not None
        metrics = self.lab.visit("near", f"http://{ready['admin']}/metrics")
        assert metrics is not None
        pattern = rf'kv_tier_blocks_total{{fate="{fate}",tier="disk"}} ([0-9.]+)'
        return sum(map(float, re.findall(pattern, metrics.decode())))

    def cut(self) -> set[tuple[str, str]]:
        with self.lab.network.control() as control:
            return {(one["from"], one["to"]) for one in control.stats()["paths"] if one["cut"]}


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("faults")
    histories = folder / "histories"
    file = folder / "topology.yaml"
    file.write_text(yaml.safe_dump(topology(histories)))
    lab = start_lab(file, folder)
    command = "pytest tests/integration/lab/test_faults.py"
    record = RunRecord.begin(histories, seed=1, command=command, nodes=lab.mesh.plan.names)
    faults = Faults(lab, record, Random(1))
    try:
        yield Bed(lab, faults, record)
    finally:
        faults.close()
        assert lab.stop() == 0


def eventually(holds: Callable[[], bool], within_s: float = 10.0) -> bool:
    deadline = monotonic_s() + within_s
    while not holds():
        if monotonic_s() > deadline:
            return False
        sleep(0.05)
    return True


def at_id(count: int, act: Callable[[Reply], None]) -> Callable[[str, Reply], None]:
    """Calls `act` once, when so many ids are here."""
    done: list[bool] = []

    def seen(text: str, reply: Reply) -> None:
        if len(reply.token_ids) >= count and not done:
            done.append(True)
            act(reply)

    return seen


def test_a_frozen_process_stands_still_and_goes_on(bed: Bed) -> None:
    frozen = bed.do("freeze", "far")
    assert eventually(lambda: bed.state("far") == "T")
    with pytest.raises(ConfigError, match="freeze far: it is so already"):
        bed.do("freeze", "far")
    with pytest.raises(ConfigError, match="hang: far is frozen"):
        bed.do("hang", "far")
    bed.end(frozen)
    assert bed.state("far") != "T"
    bed.end(frozen)


def test_a_stream_leaves_a_core_whose_engine_hangs_and_has_the_same_text(bed: Bed) -> None:
    whole = bed.ask(STORY).reply
    hung: list[Injected] = []
    moved = bed.ask(
        STORY, at_id(20, lambda reply: hung.append(bed.do("hang", str(reply.details["core"]))))
    ).reply
    assert moved.token_ids == whole.token_ids
    assert moved.details["moved"] == 1
    (core,) = hung[0].targets
    assert bed.state(core) != "T"
    bed.end(hung[0])


def test_what_a_core_refuses_another_one_answers(bed: Bed) -> None:
    refusing = bed.do("refuse", "near")
    assert {str(bed.ask(SHORT).reply.details["core"]) for _ in range(3)} == {"far"}
    bed.end(refusing)


def test_a_killed_core_is_started_again_and_serves(bed: Bed) -> None:
    killed: list[Injected] = []
    before = {core: bed.pid(core) for core in CORES}
    moved = bed.ask(
        STORY, at_id(20, lambda reply: killed.append(bed.do("kill", str(reply.details["core"]))))
    ).reply
    (core,) = killed[0].targets
    assert moved.details["core"] != core
    with pytest.raises(ConfigError, match=f"{core} does not run"):
        bed.do("freeze", core)
    bed.end(killed[0])
    assert bed.pid(core) != before[core]
    assert bed.lab.ended() == frozenset()


def test_a_slow_process_gets_its_share_of_a_cpu_and_no_more(bed: Bed) -> None:
    slow = bed.do("slow", "edge", share=0.05)
    (group,) = Path("/sys/fs/cgroup/cpu").glob(f"firstlight-{bed.lab.run.name}-edge")
    bed.ask()
    throttled = re.search(r"nr_throttled (\d+)", (group / "cpu.stat").read_text())
    assert throttled is not None
    assert int(throttled[1]) > 0
    bed.end(slow)
    assert not group.exists()
    bed.ask()


@pytest.mark.parametrize("how", ["swap", "flip", "truncate"])  # only the last is seen at a start
def test_spoiled_blocks_are_found_out_and_computed_again(bed: Bed, how: str) -> None:
    question = replace(DOCUMENT, text=f"What is a {how}? {DOCUMENT.text}")
    folder = bed.lab.disks["near"].path / "kv"
    before = len(list(folder.glob("*.kv")))
    away = bed.do("refuse", "far")
    answer = bed.ask(question).reply
    assert eventually(lambda: len(list(folder.glob("*.kv"))) >= before + BLOCKS_SAVED)
    bed.do("restart", "near")
    bed.faults.wait_back(WAIT_S)
    bed.do("corrupt", "near", how=how, blocks=1000)
    assert bed.ask(question).reply.token_ids == answer.token_ids
    assert bed.blocks("bad") > 0
    bed.end(away)


def test_a_full_disk_costs_a_core_nothing_but_hits(bed: Bed) -> None:
    """It is left alone for half a minute, so no test behind this one uses it."""
    failed = bed.blocks("failed")  # what tests before have left to be written may fail at once
    full = bed.do("disk", "near")
    away = bed.do("refuse", "far")
    assert bed.ask(DOCUMENT).reply.details["core"] == "near"
    assert eventually(lambda: bed.blocks("failed") > failed)
    bed.end(full)
    bed.end(away)
    room = os.statvfs(bed.lab.disks["near"].path)
    assert room.f_bavail * room.f_bsize > 8 << 20


def test_an_index_is_frozen_flushed_and_killed(bed: Bed) -> None:
    for kind in ("freeze", "kill"):
        fault = bed.do(kind, "index")
        bed.ask()
        bed.end(fault)
    assert bed.do("flush", "index").targets == ("index",)
    with pytest.raises(ConfigError, match="edge has the role edge, expected valkey"):
        bed.do("flush", "edge")


def test_a_region_is_cut_off_killed_and_back_again_beside_another_partition(bed: Bed) -> None:
    one_way = bed.do("partition", **{"from": "far", "to": "edge", "one_way": True})
    assert bed.cut() == {("far", "edge")}
    lost = bed.do("region", region="us")
    assert lost.targets == ("far", "index")
    assert ("near", "index") in bed.cut()
    assert "far" not in bed.lab.mesh.children
    assert bed.ask().reply.details["core"] == "near"
    bed.end(lost)
    assert bed.cut() == {("far", "edge")}, "the other partition goes on"
    bed.end(one_way)
    assert bed.cut() == set()
    assert bed.lab.mesh.valkeys["index"].alive


def test_a_link_is_changed_and_as_the_topology_says_again(bed: Bed) -> None:
    def loss() -> list[float]:
        with bed.lab.network.control() as control:
            paths = control.stats()["paths"]
        return [one["loss"] for one in paths if (one["from"], one["to"]) == ("edge", "near")]

    lossy = bed.do("link", **{"from": "edge", "to": "near", "link": {"loss": 0.02}})
    assert loss() == [0.02]
    bed.end(lossy)
    assert loss() == [0.0]


def test_a_shifted_clock_is_seen_in_what_a_node_writes(bed: Bed) -> None:
    ahead = bed.do("clock", "edge", shift_s=7200)
    shifted = date_of(bed)
    bed.end(ahead)
    assert 7100 < shifted - date_of(bed) < 7201


def date_of(bed: Bed) -> int:
    """What an answer of the edge says that it is, in seconds since 1970."""
    trusted = ssl.create_default_context(cafile=bed.lab.mesh.ca_file)
    said = {"authorization": f"Bearer {KEY}"}
    body = {"messages": [{"role": "user", "content": "?"}], "max_tokens": 1, "model": "auto"}
    with bed.lab.inside("user"), httpx.Client(verify=trusted, headers=said) as client:
        url = f"{bed.lab.mesh.plan.edges[0].url}/v1/chat/completions"
        return int(client.post(url, json=body).json()["created"])


def test_other_programs_ask_at_the_laboratorys_door(bed: Bed) -> None:
    command = [sys.executable, "-m", "firstlight", "lab", "fault", "freeze", "near"]
    environment = {**os.environ, "FIRSTLIGHT_STATE_DIR": str(bed.lab.run.parents[2])}

    def run(*more: str) -> str:
        done = subprocess.run(
            [*command, *more], env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    assert "takes no faults from outside" in run()
    with fault_door.serving(bed.faults, bed.lab.run):
        assert run() == "freeze: near\n"
        assert bed.state("near") == "T"
        with pytest.raises(ConfigError, match="no such fault lasts: freeze near"):
            fault_door.ask(bed.lab.run, {"do": "hang", "node": "near", "end": True})
        assert run("--end") == "freeze ended: near\n"
    bed.faults.wait_back(WAIT_S)
    assert bed.state("near") != "T"


def test_a_process_beyond_its_memory_is_killed_and_started_again(bed: Bed) -> None:
    before = bed.pid("far")
    little = bed.do("memory", "far", more_mb=0.1)
    away = bed.do("refuse", "near")
    child = bed.lab.mesh.children["far"]
    with suppress(FirstlightError):  # with it the last core is gone
        for number in range(100):
            bed.ask(replace(DOCUMENT, text=f"{number} {DOCUMENT.text * 2}"))
    assert eventually(lambda: not child.alive)
    assert bed.lab.ended() == frozenset(), "it may end, for now"
    bed.end(away)
    bed.end(little)
    assert bed.pid("far") != before


def test_all_is_taken_back_at_the_end_whatever_state_it_is_in(bed: Bed) -> None:
    bed.do("slow", "far", share=0.5)
    bed.do("memory", "near", more_mb=1000)
    bed.do("hang", "near")
    bed.do("freeze", "near")
    bed.do("partition", **{"from": "eu", "to": "us"})
    assert len(bed.faults.active) == 5
    bed.faults.close()
    bed.faults.close()
    assert bed.faults.active == ()
    assert bed.cut() == set()
    assert bed.state("near") != "T"
    assert list(Path("/sys/fs/cgroup").glob(f"*/firstlight-{bed.lab.run.name}-*")) == []
    bed.faults.wait_back(WAIT_S)
    assert bed.ask().reply.finish_reason == "length"


def test_a_request_leaves_a_core_that_takes_it_and_says_nothing(bed: Bed) -> None:
    core = str(bed.ask().reply.details["core"])
    silent = bed.do("silent", core)
    answer = bed.ask(within_s=20.0).reply
    assert (answer.finish_reason, answer.details["moved"]) == ("length", 1)
    assert answer.details["core"] != core
    bed.end(silent)
    assert bed.ask().reply.finish_reason == "length"


def test_the_judge_holds_the_run_and_nothing_is_left_of_it(bed: Bed) -> None:
    bed.ask(STORY)
    assert bed.lab.stop() == 0
    bed.record.end()
    verdict = judge(read_evidence([bed.record.directory]))
    assert [f"{one.invariant} {one.what}, {one.where}" for one in verdict.violations] == []
    assert verdict.missing == ()
