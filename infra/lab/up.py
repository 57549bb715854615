"""`firstlight lab up`: a laboratory that stays until Ctrl-C, with its map."""

import asyncio
import threading
from pathlib import Path
from random import Random

from rich.console import Console

from firstlight.infra.lab.fault_door import serving
from firstlight.infra.lab.faults import Faults
from firstlight.infra.lab.lab import Lab, start_lab
from firstlight.infra.lab.map import watch
from firstlight.infra.lab.relays import CANNOT
from firstlight.infra.lab.topology import OPERATOR
from firstlight.shared.config import state_dir

_CHECK_S = 0.5

_HINT = """\
In another terminal:
  firstlight lab shell {place} -- firstlight chat "Why is the sky blue?"
  firstlight lab shell {place}                       # a shell there
  firstlight lab fault partition {edge} {core}       # then: firstlight lab fault heal
  firstlight lab fault freeze {core}                 # then the same with --end
Ctrl-C ends it."""


def run_up(topology: Path, *, relay: bool) -> int:
    """The command: Ctrl-C is its normal end; `ConfigError` if something dies by itself."""
    console = Console(highlight=False, soft_wrap=True)
    if relay:
        console.print(f"Relays on loopback: {CANNOT}.", markup=False)
    lab = start_lab(
        topology, state_dir(), lambda line: console.print(line, markup=False), relay=relay
    )
    faults = Faults(lab, None, Random(lab.topology.seed))
    try:
        console.print(_hint(lab), markup=False)
        with serving(faults, lab.run):
            _watch(lab)
    except KeyboardInterrupt:
        pass
    finally:
        faults.close()
        left_over = lab.stop()
        console.print(f"\nStopped; {left_over} processes left over.")
    return 1 if left_over else 0


def _hint(lab: Lab) -> str:
    edges, cores = lab.topology.of_role("edge"), lab.topology.of_role("core")
    place = (lab.topology.of_role("client") or edges)[0]
    return _HINT.format(place=place, edge=edges[0], core=cores[0])


def _watch(lab: Lab) -> None:
    """Until something dies. A file or a pipe gets no map."""
    screen = Console(highlight=False)
    if screen.is_terminal and not screen.is_dumb_terminal:
        with lab.inside(OPERATOR):
            asyncio.run(watch(screen, lab))
        lab.check_alive()
    never = threading.Event()
    while not never.wait(_CHECK_S):
        lab.check_alive()
