"""All of what is asked for, measured on one server: warm-ups, repeats, medians."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from firstlight.infra.bench.engine import invariant, processes
from firstlight.infra.bench.engine.client import Server
from firstlight.infra.bench.engine.figures import Figures, repeats
from firstlight.infra.bench.engine.prompts import Prompts
from firstlight.infra.bench.engine.scenarios import SCENARIOS, Outcome, Prompt
from firstlight.shared.errors import ConfigError

INVARIANT, PERPLEXITY = "invariant", "perplexity"
PARTS = (*SCENARIOS, INVARIANT, PERPLEXITY)
"""All that `--only` can name."""
INVARIANT_OF = "streams_16"
"""Whoever measures this load also asks whether its texts are the same alone."""


@dataclass(slots=True)
class Measured:
    """What became of one scenario."""

    runs: list[Figures] = field(default_factory=list)
    """Figures of each repeat, `foreign_cpu` among them."""
    failed: int = 0
    why: str = ""

    @property
    def medians(self) -> Figures:
        """Over the repeats; the figures that every scenario has are always there."""
        always: Figures = dict.fromkeys(("ttft_ms", "tpot_ms", "tokens_per_s"))
        return always | repeats(self.runs)

    def add(self, outcome: Outcome, foreign_cpu: float | None) -> None:
        """One repeat more."""
        self.runs.append({**outcome.figures, "foreign_cpu": foreign_cpu})
        self.failed += outcome.failed
        self.why = self.why or outcome.why


@dataclass(slots=True)
class Report:
    """What was measured of one server."""

    scenarios: dict[str, Measured] = field(default_factory=dict)
    differing: list[str] | None = None
    """Questions whose text was not the same; None where that was not asked."""
    numerics_class: str | None = None
    memory_mb: dict[str, float | None] | None = None

    @property
    def invariant(self) -> bool | None:
        """Whether all texts were the same."""
        return None if self.differing is None else not self.differing

    @property
    def sound(self) -> bool:
        """No request failed, and no text differed where that was asked."""
        return not self.differing and not any(one.failed for one in self.scenarios.values())


def chosen(only: str | None) -> tuple[str, ...]:
    """The parts that `--only` names, in their own order. Raises `ConfigError`."""
    if only is None:
        return PARTS
    named = {name.strip() for name in only.split(",") if name.strip()}
    unknown = sorted(named - set(PARTS))
    if unknown or not named:
        raise ConfigError(f"no scenario {', '.join(unknown) or only!r}: {', '.join(PARTS)}")
    return tuple(part for part in PARTS if part in named)


async def measure(
    server: Server,
    parts: Sequence[str],
    count: int,
    prompts: Prompts,
    *,
    pids: Sequence[int] | None,
    say: Callable[[str], None],
) -> Report:
    """Every scenario among `parts`: one warm-up, then `count` repeats. `pids`: the server's."""
    report = Report()
    for name in (part for part in parts if part in SCENARIOS):
        report.scenarios[name] = measured = Measured()
        for repeat in range(count + 1):
            outcome, foreign = await _watched(name, server, _prompt(prompts, name, repeat), pids)
            if repeat:
                measured.add(outcome, foreign)
        first = measured.medians["ttft_ms"]
        shown = "no first token" if first is None else f"first token {first:.0f} ms"
        failed = f", {measured.failed} failed: {measured.why}" if measured.failed else ""
        say(f"  {name}: {shown}{failed}")
    if INVARIANT in parts or INVARIANT_OF in parts:
        prompt = _prompt(prompts, INVARIANT, 0)
        report.differing = await invariant.texts_that_differ(server, prompt)
        say(f"  {INVARIANT}: {_told(report.differing)}")
    report.numerics_class = server.numerics_class
    return report


def _told(differing: Sequence[str] | None) -> str:
    if differing is None:
        return "the server takes no seed"
    shown = ", ".join(differing[:5]) + (", …" if len(differing) > 5 else "")
    return f"{len(differing)} texts differ: {shown}" if differing else "all texts are the same"


def _prompt(prompts: Prompts, name: str, repeat: int) -> Prompt:
    return lambda tokens, index: prompts.of(tokens, name, repeat, index)


async def _watched(
    name: str, server: Server, prompt: Prompt, pids: Sequence[int] | None
) -> tuple[Outcome, float | None]:
    """One repeat, and what CPU others took; None where the server's processes are not known."""
    before = processes.read(pids) if pids is not None else None
    outcome = await SCENARIOS[name](server, prompt)
    after = processes.read(pids) if pids is not None else None
    if before is None or after is None:
        return outcome, None
    return outcome, processes.foreign_share(before, after)
