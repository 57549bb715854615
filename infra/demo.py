"""`firstlight demo`: a mesh, a question over HTTP/3, and a core killed in mid-answer.

The last line of standard output is one JSON object. Its values are what was seen: the command
succeeds only if the protocol was HTTP/3, the text was the same with and without the kill, the
answer moved exactly once, and no process was left.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from firstlight.infra.chat import Asked, Question, ask
from firstlight.infra.mesh import Mesh, start_mesh
from firstlight.infra.nearest import edges_of
from firstlight.infra.reply import Reply
from firstlight.shared.clock import monotonic_s
from firstlight.shared.config import state_dir
from firstlight.shared.errors import PeerError

KILL_AFTER_TOKENS = 20
STORY_TOKENS_MIN = 60

QUESTION = Question("Why is the sky blue? Answer in one sentence.", temperature=0.0, max_tokens=48)
STORY = Question(
    "Tell me a long story about a lighthouse keeper who finds a map.",
    seed=20_261,
    temperature=0.8,
    max_tokens=80,
    ignore_eos=True,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the demo saw."""

    protocol: str
    same_text: bool
    moved: int
    seconds: float
    left_over: int

    def failures(self) -> list[str]:
        """What is not as it must be; empty if all is."""
        wanted = {"protocol": "h3", "same_text": True, "moved": 1, "left_over": 0}
        seen = asdict(self)
        return [f"{k} is {seen[k]!r}, not {v!r}" for k, v in wanted.items() if seen[k] != v]


@dataclass(frozen=True, slots=True)
class Answers:
    """The three answers of a demo."""

    first: Asked
    undisturbed: Asked
    moved: Asked

    def verdict(self, seconds: float, left_over: int) -> Verdict:
        """Judge them: text and ids must both be the same."""
        summaries = [asked.summary() for asked in (self.first, self.undisturbed, self.moved)]
        protocols = sorted({str(summary["protocol"]) for summary in summaries})
        one, other = self.undisturbed.reply, self.moved.reply
        return Verdict(
            protocol="+".join(protocols),
            same_text=(one.text, one.token_ids) == (other.text, other.token_ids),
            moved=int(summaries[-1]["moved"] or 0),
            seconds=round(seconds, 1),
            left_over=left_over,
        )


class CoreKiller:
    """Kills the core that serves an answer once enough of it has arrived."""

    def __init__(self, mesh: Mesh, console: Console) -> None:
        self._mesh = mesh
        self._console = console
        self.killed: str | None = None

    def on_text(self, text: str, reply: Reply) -> None:
        """See a piece of the answer, then kill if it is time to."""
        _write(text)
        if self.killed is None and len(reply.token_ids) >= KILL_AFTER_TOKENS:
            self.killed = str(reply.details.get("core") or "")
            self._mesh.kill(self.killed)
            note = f" [{self.killed} killed after {len(reply.token_ids)} tokens] "
            self._console.print(note, style="bold red", end="", markup=False)


def run_demo() -> int:
    """The command; returns the exit code."""
    console = Console(highlight=False, soft_wrap=True)
    begun_s = monotonic_s()
    mesh = start_with_progress(console, state_dir())
    try:
        answers = asyncio.run(_ask_all(mesh, console))
    except BaseException:
        left_over = mesh.stop()
        if left_over:
            print(f"firstlight: {left_over} processes could not be ended", file=sys.stderr)
        raise
    left_over = mesh.stop()
    verdict = answers.verdict(monotonic_s() - begun_s, left_over)
    for failure in verdict.failures():
        print(f"firstlight: demo failed: {failure}", file=sys.stderr)
    print(json.dumps(asdict(verdict)), flush=True)
    return 1 if verdict.failures() else 0


def start_with_progress(console: Console, state: Path) -> Mesh:
    """Start a mesh; show what it waits for."""
    console.print(
        "Starting a mesh: a load balancer, and an edge and a core in eu and us", style="bold"
    )
    with _status(console, "loading the model, a few seconds"):
        mesh = start_mesh(state, lambda line: console.print(f"  {line}"))
    return mesh


@contextmanager
def _status(console: Console, text: str) -> Iterator[None]:
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


async def _ask_all(mesh: Mesh, console: Console) -> Answers:
    async with edges_of(mesh.running) as edges:
        nearest, *_ = await edges.nearest()
    edge = nearest.edge
    console.print(f"Nearest edge: {edge.node} ({edge.region}), {nearest.why}")
    ca_file = mesh.ca_file
    console.print(f"\nOver HTTP/3: {QUESTION.text}", style="bold")
    model = mesh.running.model
    question, story = replace(QUESTION, model=model), replace(STORY, model=model)
    first = await ask(edge.url, question, ca_file=ca_file, on_text=lambda text, _: _write(text))
    console.print("\n")
    console.print(times_table(first.summary()))
    console.print(f"\nSeed {STORY.seed}: {STORY.text}", style="bold")
    undisturbed = await ask(edge.url, story, ca_file=ca_file, on_text=lambda text, _: _write(text))
    if len(undisturbed.reply.token_ids) < STORY_TOKENS_MIN:
        tokens = len(undisturbed.reply.token_ids)
        raise PeerError(f"the story has {tokens} tokens, expected at least {STORY_TOKENS_MIN}")
    console.print("\n\nThe same again, and its core dies on the way", style="bold")
    killer = CoreKiller(mesh, console)
    moved = await ask(edge.url, story, ca_file=ca_file, on_text=killer.on_text)
    summary = moved.summary()
    console.print(
        f"\n\n{killer.killed} died; {summary['core']} ({summary['region']}) ended the answer "
        f"({summary['continuation']} continuation)"
    )
    return Answers(first, undisturbed, moved)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def times_table(summary: dict[str, Any]) -> Table:
    """Where the time to the first token went, and who served."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    ttft, hints = summary["ttft_ms"], summary["hints"]
    for name in ("network", "queue", "prefill", "first_packet", "total"):
        label = "TTFT at the edge" if name == "total" else f"  {name.replace('_', ' ')}"
        table.add_row(label, _shown(ttft.get(name), "ms"))
    table.add_row("TTFT here, with connecting", _shown(ttft["client_first_token"], "ms"))
    table.add_row("TPOT", _shown(summary["tpot_ms"], "ms"))
    table.add_row("speed", _shown(summary["tokens_per_s"], "tokens/s"))
    table.add_row("hinted tokens", f"{hints['offered']} offered, {hints['accepted']} accepted")
    table.add_row("edge", str(summary["edge"]))
    table.add_row("core", f"{summary['core']} ({summary['region']})")
    table.add_row("protocol", str(summary["protocol"]))
    return table


def _shown(value: object, unit: str) -> str:
    return f"{value:.1f} {unit}" if isinstance(value, (int, float)) else "not known"
