"""The live map of a laboratory: regions, their nodes, round trips, faults."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from firstlight.infra.lab.lab import Lab
from firstlight.infra.lab.topology import OPERATOR, Topology
from firstlight.infra.live import PERIOD_S
from firstlight.infra.status import Documents, Gatherer, Row, rows
from firstlight.shared.errors import FirstlightError

Stats = Mapping[str, Any]
WAYS_MAX = 24
"""Lines of round trips that are drawn."""
_STYLES = {"ready": "green", "draining": "yellow", "": "dim"}


async def watch(console: Console, lab: Lab) -> None:
    """Draw twice a second until something has ended by itself; the last drawing shows it."""
    before: Documents | None = None
    async with Gatherer(str(lab.mesh.ca_file), lab.visit) as gatherer:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                gone = lab.ended()
                now = await gatherer.gather(lab.mesh.running)
                stats = await asyncio.to_thread(_stats, lab)
                found = rows(now, before, gone - {"router"})
                live.update(draw(lab.topology, found, stats), refresh=True)
                if gone:
                    return
                before = now
                await asyncio.sleep(PERIOD_S)


def _stats(lab: Lab) -> Stats | None:
    try:
        with lab.network.control() as control:
            return control.stats()
    except FirstlightError:
        return None


def draw(topology: Topology, found: Sequence[Row], stats: Stats | None) -> Group:
    """The whole picture; `stats` are the router's, None if it does not answer."""
    by_name = {row.node: row for row in found}
    regions = [
        Panel(_nodes(topology, region, by_name), title=region, expand=False)
        for region in topology.regions
    ]
    return Group(Columns(regions), _ways(topology, found), _faults(stats), _router(stats))


def _nodes(topology: Topology, region: str, rows_by_name: Mapping[str, Row]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for name in topology.names_of(region):
        row = rows_by_name.get(name)
        state = row.state if row is not None else ""
        style = _STYLES.get(state, "bold red")
        role = topology.nodes[name].role
        table.add_row(Text(name, style), Text(state or role, style), Text(_load(row)))
    return table


def _load(row: Row | None) -> str:
    if row is None or row.running is None:
        return ""
    if row.role == "edge":
        first = "" if row.ttft_ms is None else f" · TTFT {row.ttft_ms:.0f} ms"
        return f"{row.running} streams{first}"
    rate = "" if row.tokens_per_s is None else f" · {row.tokens_per_s:.1f} tok/s"
    kv = "" if row.kv_used_share is None else f" · KV {row.kv_used_share:.0%}"
    return f"{row.running} run, {row.queued or 0} wait{rate}{kv}"


def _ways(topology: Topology, found: Sequence[Row]) -> Table:
    """Round trips: what nodes measured, and what the topology asked for."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("round trip", "measured", "asked"):
        table.add_column(column, justify="left" if column == "round trip" else "right")
    ways = [(row.node, far, ms) for row in found for far, ms in row.rtt_ms]
    for near, far, ms in ways[:WAYS_MAX]:
        asked = asked_ms(topology, near, far)
        told = "" if asked is None else f"{asked:.1f} ms"
        table.add_row(f"{near} → {far}", f"{ms:.1f} ms", told)
    return table


def asked_ms(topology: Topology, one: str, other: str) -> float | None:
    """The round trip that the topology asks for; None if one of them is not in it."""
    if one not in topology.nodes or other not in topology.nodes:
        return None
    there, back = topology.shape(one, other), topology.shape(other, one)
    return (there.delay_s + back.delay_s) * 1e3


def _faults(stats: Stats | None) -> Text:
    if stats is None:
        return Text("the router does not answer", "bold red")
    told = [_fault(path) for path in stats["paths"] if OPERATOR not in (path["from"], path["to"])]
    faults = [fault for fault in told if fault]
    if not faults:
        return Text("no faults", "green")
    shown = faults[:WAYS_MAX]
    more = f"\n… and {len(faults) - len(shown)} more" if len(faults) > len(shown) else ""
    return Text("\n".join(shown) + more, "bold red")


def _fault(path: Mapping[str, Any]) -> str:
    """What is done to a path beyond the topology; empty if nothing is."""
    way = f"{path['from']} → {path['to']}"
    if path["cut"]:
        return f"{way}: partition"
    if not path["changed"]:
        return ""
    parts = [f"{path['delay_ms']:g} ms"]
    parts += [f"jitter {path['jitter_ms']:g} ms"] if path["jitter_ms"] else []
    parts += [f"loss {path['loss']:.1%}"] if path["loss"] else []
    parts += [f"{path['mbit_per_s']:g} Mbit/s"] if path["mbit_per_s"] else []
    parts += [f"reorder {path['reorder']:.1%}"] if path["reorder"] else []
    return f"{way}: {', '.join(parts)}"


def links_table(stats: Stats) -> Group:
    """Every path that was used or changed, one line each; below it the router."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("from", "to", "delay", "packets", "dropped", ""):
        table.add_column(column)
    for path in sorted(stats["paths"], key=lambda path: (path["from"], path["to"])):
        dropped = ", ".join(f"{count} {reason}" for reason, count in path["drops"].items())
        fault = _fault(path).partition(": ")[2]
        delay = f"{path['delay_ms']:g} ms"
        ends = (path["from"], path["to"])
        table.add_row(*ends, delay, str(path["packets"]), dropped, Text(fault, "bold red"))
    return Group(table, _router(stats))


def _router(stats: Stats | None) -> Text:
    if stats is None or "relayed" in stats:
        return Text("")
    dropped = sum(stats["dropped"].values())
    return Text(
        f"router: {stats['packets_per_s']:.0f} packets/s, {stats['cpu_share']:.1%} of a CPU, "
        f"late {stats['late_p99_ms']:.2f} ms (p99), {stats['underway']} under way, "
        f"{dropped} dropped",
        "dim",
    )
