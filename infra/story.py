"""An edge's timeline of a request in words and bars. Pure: the edge's JSON in, text out.

The order is that of the questions: what was slow, which phases there were and where, why that core,
and then everything that happened.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Story = Mapping[str, Any]

BAR_CELLS = 32
PARTS_MAX = 5
_TOLD = {"ms", "node", "what", "choice", "epoch", "detail", "core_ms", "placed", "wait_ms"}
"""Of an entry: what is said in a way of its own, or not at all."""


def show(story: Story) -> RenderableType:
    """The whole story, for a terminal."""
    parts: list[RenderableType] = [Text(line) for line in summary(story)]
    for choice in sorted({phase["choice"] for phase in story["phases"]}):
        phases = [phase for phase in story["phases"] if phase["choice"] == choice]
        several = len(story["streams"]) > 1
        parts += [Text(""), _bars(phases, story["total_ms"], f"choice {choice}" if several else "")]
    if why := list(routing(story)):
        parts += [Text(""), *(Text(line) for line in why)]
    parts += [Text(""), _entries(story)]
    if story["left_out"]:
        parts.append(Text(f"{story['left_out']} more were not kept"))
    return Group(*parts)


def summary(story: Story) -> list[str]:
    """How it went, and what was slow, the slowest first."""
    total_ms, first_ms = story["total_ms"], story["first_token_ms"]
    first = _first_to_speak(story)
    lines = [
        _clean(f"{story['id']} at {story['edge']}: {story['status']} after {total_ms:,.0f} ms")
    ]
    lines += [_clean(f"error: {_error(entry)}") for entry in _of(story, "failed")]
    if first_ms is not None:
        lines.append(f"{first_ms:,.0f} ms to the first token: {_slowest(story, first, first_ms)}")
    last = max(story["phases"], key=_end_ms, default=None)
    if last is not None:
        lines.append(f"{total_ms:,.0f} ms in all: {_slowest(story, last['choice'], total_ms)}")
    return lines


def routing(story: Story) -> Iterator[str]:
    """Why each core was chosen, in words."""
    for entry in _of(story, "routed"):
        chosen, *others = entry["candidates"]
        who = f"choice {entry['choice']}: " if len(story["streams"]) > 1 else ""
        yield _clean(f"{who}{_candidate(chosen)}, chosen: {entry['reason']}")
        for candidate in others:
            yield _clean(f"  behind it {_candidate(candidate)}")


def _candidate(candidate: Mapping[str, Any]) -> str:
    expected = f"{candidate['expected_ttft_ms']:,.0f} ms expected to the first token"
    return f"{candidate['core']} in {candidate['region']}, {expected} ({candidate['reason']})"


def _slowest(story: Story, choice: int, until_ms: float) -> str:
    """What a choice's time up to a point went into."""
    spent: dict[str, float] = {}
    for phase in story["phases"]:
        took_ms = min(_end_ms(phase), until_ms) - phase["begin_ms"]
        if phase["choice"] == choice and took_ms > 0:
            # A way there and a way back: the network is one thing, wherever it leads.
            where = "" if phase["phase"] == "network" else f" on {phase['node']}"
            name = f"{phase['phase']}{where}"
            spent[name] = spent.get(name, 0.0) + took_ms
    parts = sorted(spent.items(), key=lambda item: -item[1])
    told = [f"{ms:,.0f} {name}" for name, ms in parts[:PARTS_MAX] if round(ms)]
    rest_ms = until_ms - sum(ms for _, ms in parts[: len(told)])
    return _clean(", ".join([*told, *([f"{rest_ms:,.0f} other"] if round(rest_ms) else [])]))


def _first_to_speak(story: Story) -> int:
    for what in ("first text", "first commit"):
        for entry in _of(story, what):
            return int(entry["choice"])
    return 0


def _bars(phases: Sequence[Mapping[str, Any]], total_ms: float, title: str) -> Table:
    table = Table(box=None, pad_edge=False, title=title or None, title_justify="left")
    for name in ("node", "phase"):
        table.add_column(name, no_wrap=True)
    for name in ("from ms", "ms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", width=BAR_CELLS, no_wrap=True)
    node = ""
    for phase in phases:
        same, node = phase["node"] == node, phase["node"]
        table.add_row(
            "" if same else _clean(node),
            _clean(phase["phase"]),
            f"{phase['begin_ms']:,.1f}",
            f"{phase['ms']:,.1f}",
            bar(phase["begin_ms"], phase["ms"], total_ms),
        )
    return table


def bar(begin_ms: float, ms: float, total_ms: float) -> str:
    """A phase's place in the whole; what is too short for a cell is a thin line."""
    scale = BAR_CELLS / total_ms if total_ms > 0 else 0.0
    begin = min(BAR_CELLS - 1, int(begin_ms * scale))
    cells = min(BAR_CELLS - begin, round(ms * scale))
    return " " * begin + ("█" * cells or "▏")


def _entries(story: Story) -> Table:
    several = len(story["streams"]) > 1
    table = Table(box=None, pad_edge=False)
    table.add_column("at ms", justify="right", no_wrap=True)
    table.add_column("node", no_wrap=True)
    table.add_column("what", no_wrap=True)
    table.add_column("")
    for entry in story["entries"]:
        choice = f"{entry['choice']}: " if several and "choice" in entry else ""
        table.add_row(
            f"{entry['ms']:,.1f}",
            _clean(entry["node"]),
            _clean(entry["what"]),
            _clean(choice + _details(entry)),
        )
    if any("placed" in entry for entry in story["entries"]):
        table.caption = "a core's times: " + next(
            _clean(entry["placed"]) for entry in story["entries"] if "placed" in entry
        )
        table.caption_justify = "left"
    return table


def _details(entry: Mapping[str, Any]) -> str:
    match entry["what"]:
        case "routed":
            return f"{entry['core']}: {entry['reason']}"
        case "moved":
            return f"{entry['from']} → {entry['to']}: {entry['why']}"
        case "left":
            return f"{entry['core']} {entry['how']}: {entry['reason']}"
        case "failed" | "gave up":
            return _error(entry)
        case "ended":
            return _ended(entry)
    detail = [entry["detail"]] if entry.get("detail") else []
    return ", ".join(
        [*detail, *(f"{_spaced(k)} {v}" for k, v in entry.items() if k not in _TOLD and v)]
    )


def _ended(entry: Mapping[str, Any]) -> str:
    hints = [
        f"{source} {count['accepted']} of {count['offered']}"
        for source, count in entry["hints"].items()
    ]
    parts = [f"{entry['finish']}, {entry['tokens']} tokens", f"{entry['cached_tokens']} cached"]
    parts += [f"hints accepted: {', '.join(hints)}"] if hints else []
    parts += [f"moved {entry['moved']}×, {entry['continuation']}"] if entry["moved"] else []
    return "; ".join(parts)


def _error(entry: Mapping[str, Any]) -> str:
    what = f"{entry['status']} {entry['code'] or entry['kind']}"
    where = f" in {entry['param']}" if entry["param"] else ""
    return f"{what}{where}: {entry['message'] or 'as the answer said'}"


def _of(story: Story, what: str) -> list[Mapping[str, Any]]:
    return [entry for entry in story["entries"] if entry["what"] == what]


def _end_ms(phase: Mapping[str, Any]) -> float:
    return float(phase["begin_ms"] + phase["ms"])


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _clean(text: str) -> str:
    """No control characters: a terminal would obey them."""
    return "".join(char if char.isprintable() else "�" for char in text)
