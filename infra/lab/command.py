"""`firstlight lab`: a mesh in network namespaces, with distances and faults of one's choice."""

import json
import os
import signal
from pathlib import Path
from time import sleep
from typing import Annotated, Any

import typer

from firstlight.shared.clock import monotonic_s
from firstlight.shared.config import state_dir
from firstlight.shared.errors import ConfigError

DOWN_S = 40.0
_POLL_S = 0.05

app = typer.Typer(help="A mesh with distance and faults, in network namespaces (Linux, root).")

TopologyFile = Annotated[
    Path | None,
    typer.Argument(metavar="TOPOLOGY.yaml", help="Default: the example, a far user."),
]


@app.callback()
def _lab() -> None:
    """A mesh with distance and faults, in network namespaces (Linux, root)."""


@app.command()
def up(
    topology: TopologyFile = None,
    relay: Annotated[
        bool, typer.Option("--relay", help="Without root: delay and partition, nothing else.")
    ] = False,
) -> int:
    """Start what a topology describes, with a live map, until Ctrl-C."""
    from firstlight.infra.lab.topology_file import EXAMPLE
    from firstlight.infra.lab.up import run_up

    return run_up(topology or EXAMPLE, relay=relay)


@app.command()
def run(
    scenario: Annotated[
        str, typer.Argument(metavar="SCENARIO", help="A file, or a name from docs/scenarios.md.")
    ],
    seed: Annotated[int | None, typer.Option(help="Of all lots; default: the file's.")] = None,
    histories: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep there what nodes noted, for `judge`.")
    ] = None,
    relay: Annotated[bool, typer.Option("--relay", help="Without root: see `lab up`.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one object; the table goes to standard error.")
    ] = False,
) -> int:
    """Run a script of load and faults, and judge it; exit code 0: everything held."""
    from firstlight.infra.scenario.run import Options, run_scenario

    return run_scenario(Options(scenario, seed, as_json, histories, relay))


@app.command(context_settings={"ignore_unknown_options": True})
def shell(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Whose place in the network.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND", help="Default: a shell.")
    ] = None,
) -> int:
    """A shell, or a command, at a node's place in the network."""
    from firstlight.infra.lab.shell import run_shell

    return run_shell(node, command or [], state_dir())


@app.command()
def ps(as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False) -> int:
    """The nodes of the running laboratory, their addresses and processes."""
    from firstlight.infra.lab.running import find_lab

    run, lab = find_lab(state_dir())
    if as_json:
        nodes = {
            node: {"address": lab.nodes.get(node), "pid": lab.processes.get(node)}
            for node in {**lab.nodes, **lab.processes}
        }
        print(json.dumps({"pid": lab.pid, "run": str(run), "nodes": nodes}))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("node", "address", "process"):
        table.add_column(column)
    for node in {**lab.nodes, **lab.processes}:
        table.add_row(node, lab.nodes.get(node, ""), str(lab.processes.get(node, "")))
    Console(highlight=False).print(table)
    return 0


@app.command()
def down() -> int:
    """End the running laboratory, as Ctrl-C would where it was started."""
    from firstlight.infra.lab.running import find_lab, locked

    run, lab = find_lab(state_dir())
    os.kill(lab.pid, signal.SIGTERM)
    deadline = monotonic_s() + DOWN_S
    while locked(run):
        if monotonic_s() > deadline:
            raise ConfigError(f"process {lab.pid} did not end within {DOWN_S:.0f} s")
        sleep(_POLL_S)
    return 0


@app.command()
def fault(
    do: Annotated[str, typer.Argument(metavar="WHAT", help="See docs/lab.md, Faults.")],
    source: Annotated[str, typer.Argument(metavar="WHERE", help="A node, a region, or *.")] = "*",
    target: Annotated[str, typer.Argument(metavar="TO", help="Of links: the other end.")] = "*",
    one_way: Annotated[bool, typer.Option("--one-way", help="Of links: not back as well.")] = False,
    link: Annotated[
        str | None, typer.Option(metavar="JSON", help='For set: {"loss": 0.05, "delay_ms": 70}.')
    ] = None,
    more: Annotated[
        str | None, typer.Option("--with", metavar="JSON", help='As slow needs: {"share": 0.1}.')
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="Take it back.")] = False,
) -> int:
    """Make nodes or links of the running laboratory fail, or take that back.

    Links: partition, heal, set, reset. Nodes: kill, restart, freeze, slow, memory, hang, refuse,
    silent, clock, disk, corrupt, flush; and region.
    """
    from firstlight.infra.lab.control import Control
    from firstlight.infra.lab.fault_door import ask
    from firstlight.infra.lab.running import find_lab

    run, lab = find_lab(state_dir())
    if do in ("partition", "heal", "set", "reset"):
        if end or more is not None:
            raise ConfigError(
                f"{do}: --end and --with are for nodes; `heal` and `reset` mend links"
            )
        with Control(Path(lab.control)) as control:
            count = control.change(do, source, target, one_way=one_way, link=_object("link", link))
        print(f"{do}: {count} paths")
        return 0
    if do == "link":
        raise ConfigError("link: `set FROM TO --link JSON` changes links, `reset` brings them back")
    if target != "*" or one_way or link is not None:
        raise ConfigError(f"{do}: TO, --one-way and --link are for links")
    if source == "*":
        raise ConfigError(f"{do}: it needs the name of a {'region' if do == 'region' else 'node'}")
    where = {"region" if do == "region" else "node": source}
    said = {"do": do, **where, **(_object("with", more) or {}), **({"end": True} if end else {})}
    print(f"{do}{' ended' if end else ''}: {', '.join(ask(run, said))}")
    return 0


def _object(option: str, text: str | None) -> dict[str, Any] | None:
    """What an option says in JSON. Raises `ConfigError`."""
    if text is None:
        return None
    try:
        said = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--{option} is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise ConfigError(f"--{option}: {text!r:.40}, expected an object")
    return said


@app.command()
def links(
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> int:
    """What the router of the running laboratory has done to which packets."""
    from firstlight.infra.lab.control import Control
    from firstlight.infra.lab.running import find_lab

    _, lab = find_lab(state_dir())
    with Control(Path(lab.control)) as control:
        stats = control.stats()
    if as_json:
        print(json.dumps(stats))
        return 0
    from rich.console import Console

    from firstlight.infra.lab.map import links_table

    Console(highlight=False).print(links_table(stats))
    return 0
