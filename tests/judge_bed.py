"""Histories for tests of the judge: recorded by real links, cores and a pipeline, then altered."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pipeline_bed import PROMPT, a_mesh, alone, ask, events, read, settled

from firstlight.infra.judge.evidence import read_evidence
from firstlight.infra.judge.invariants import judge
from firstlight.infra.judge.run_file import RunRecord
from firstlight.infra.judge.verdict import Verdict
from firstlight.shared.history import Line, What, decode, encode

CORES = ("core-eu", "core-us")
COMMAND = "firstlight lab run failover --seed 9"


async def record(folder: Path) -> Path:
    """A healthy run: answers, one that moves as its core dies, a cancel, a resumed one."""
    histories = folder / "histories"
    run = RunRecord.begin(histories, seed=9, command=COMMAND, nodes=("edge", *CORES))
    async with a_mesh(folder, histories) as mesh:
        await read(mesh, ask(1))
        await read(mesh, ask(2, tenant="other", prompts=(PROMPT, PROMPT[:20]), n=2))
        whole = alone(3)
        await read(mesh, ask(3, committed=(tuple(whole[:10]),)))
        answer = mesh.pipeline.open(ask(4, max_tokens=400))
        async for _ in events(answer):
            break
        answer.close()
        await settled(mesh, CORES)
        run.fault("kill", "core-eu")
        await read(mesh, ask(5), at=12)
        await read(mesh, ask(6))
        await settled(mesh, CORES)
    run.end()
    return histories


def verdict_of(histories: Path) -> Verdict:
    return judge(read_evidence([histories]))


@dataclass
class Altered:
    """A copy of a run's histories whose lines can be changed."""

    folder: Path
    lines: dict[str, list[Line]]
    """By node."""
    run: dict[str, Any]

    def find(self, node: str, what: What, where: Callable[[Line], bool] = lambda line: True) -> int:
        """Place of the first such line of a node."""
        places = [
            place
            for place, line in enumerate(self.lines[node])
            if line.what is what and where(line)
        ]
        return places[0]

    def change(self, node: str, place: int, **changes: Any) -> None:
        """Change fields of a line; `facts` are added to what it has."""
        line = self.lines[node][place]
        facts = {**line.facts, **changes.pop("facts", {})}
        self.lines[node][place] = replace(line, facts=facts, **changes)

    def remove(self, node: str, where: Callable[[Line], bool]) -> None:
        """As if it had never been noted."""
        self.lines[node] = [line for line in self.lines[node] if not where(line)]

    def verdict(self) -> Verdict:
        """What the judge says of it: the process has counted its lines as they are now."""
        for node, lines in self.lines.items():
            numbered = (replace(line, number=i) for i, line in enumerate(lines, 1))
            (self.folder / f"{node}.jsonl").write_bytes(b"".join(map(encode, numbered)))
        (self.folder / "run.json").write_text(json.dumps(self.run))
        return verdict_of(self.folder)


def altered(histories: Path, folder: Path) -> Altered:
    """A copy to be changed."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = {
        path.name.split(".")[0]: [decode(text) for text in path.read_bytes().splitlines()]
        for path in histories.glob("*.jsonl")
    }
    return Altered(folder, lines, json.loads((histories / "run.json").read_text()))


def moved_stream(run: Altered) -> str:
    """The stream whose core died under it."""
    return run.lines["edge"][run.find("edge", What.MOVED)].stream


def other_hash(shown: str) -> str:
    """A chain hash of other ids."""
    return blake2b(bytes.fromhex(shown), digest_size=8).hexdigest()
