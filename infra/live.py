"""The status of a local mesh for people: a table that is drawn anew twice a second, or once."""

import asyncio
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from firstlight.infra.running import RunningMesh, read_running
from firstlight.infra.status import Documents, Gatherer, Row, rows
from firstlight.shared.config import state_dir
from firstlight.shared.errors import ConfigError
from firstlight.shared.types import Role

PERIOD_S = 0.5
RATE_S = 1.0
"""What is counted by the second is counted over this, where a status is shown once."""
_STYLES = {"ready": "green", "draining": "yellow"}


def run_status(*, as_json: bool) -> int:
    """The command: the local mesh, once. Raises `ConfigError` if none runs."""
    mesh = read_running(state_dir())
    if not mesh.cores:
        raise ConfigError(
            "the running mesh was started by an older firstlight, which did not note where its "
            "cores answer: start it again"
        )
    found = asyncio.run(_once(mesh))
    if as_json:
        print(json.dumps({"lb": mesh.lb, "model": mesh.model, "nodes": [asdict(r) for r in found]}))
    else:
        Console(highlight=False).print(table(found))
    return 0


async def _once(mesh: RunningMesh) -> tuple[Row, ...]:
    async with Gatherer(mesh.ca_file) as gatherer:
        before = await gatherer.gather(mesh)
        await asyncio.sleep(RATE_S)
        return rows(await gatherer.gather(mesh), before)


async def watch(
    console: Console,
    running: Callable[[], RunningMesh],
    ended: Callable[[], Collection[str]],
) -> None:
    """Draw until a node's process has ended, which the last drawing shows; it stays on the screen.

    `running` says where the nodes are, `ended` which of them have ended by themselves.
    """
    before: Documents | None = None
    async with Gatherer(running().ca_file) as gatherer:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                gone = ended()
                now = await gatherer.gather(running())
                live.update(table(rows(now, before, gone)), refresh=True)
                if gone:
                    return
                before = now
                await asyncio.sleep(PERIOD_S)


def table(found: Sequence[Row]) -> Group:
    """One line a node, in 80 columns; below it what needs room. What nobody fills is left out."""
    columns = {
        "node": [Text(row.node) for row in found],
        "role": [Text(row.role) for row in found],
        "region": [Text(row.region) for row in found],
        "state": [Text(row.state, _STYLES.get(row.state, "bold red")) for row in found],
        "heard": [_number(row.age_s, "{:.1f} s") for row in found],
        "load": [_load(row) for row in found],
        "KV": [_number(row.kv_used_share, "{:.0%}") for row in found],
        "tok/s": [_number(row.tokens_per_s, "{:.1f}") for row in found],
        "hits": [_number(row.prefix_hit_rate, "{:.0%}") for row in found],
        "TTFT": [_number(row.ttft_ms, "{:.0f} ms") for row in found],
    }
    shown = {name: cells for name, cells in columns.items() if any(cell.plain for cell in cells)}
    nodes = Table(box=None, pad_edge=False, header_style="bold")
    for name in shown:
        nodes.add_column(name, overflow="ellipsis", no_wrap=True)
    for line in zip(*shown.values(), strict=True):
        nodes.add_row(*line)
    more = Table(box=None, pad_edge=False, show_header=False)
    for row in found:
        if row.rtt_ms:
            ways = ", ".join(f"{core} {ms:.1f} ms" for core, ms in row.rtt_ms)
            more.add_row(Text("round trips", "bold"), Text(row.node), Text(ways))
    for row in found:
        if row.tiers:
            tiers = ", ".join(f"{name} {held} of {total}" for name, held, total in row.tiers)
            more.add_row(Text("KV blocks", "bold"), Text(row.node), Text(tiers))
    return Group(nodes, Text(), more) if more.row_count else Group(nodes)


def _number(value: float | None, form: str) -> Text:
    return Text("" if value is None else form.format(value))


def _load(row: Row) -> Text:
    if row.running is None:
        return Text("")
    if row.role == Role.EDGE:
        return Text(f"{row.running} stream{'' if row.running == 1 else 's'}")
    return Text(f"{row.running} run, {row.queued or 0} wait")
