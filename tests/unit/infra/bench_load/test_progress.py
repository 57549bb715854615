"""A bar where somebody looks."""

from io import StringIO

import pytest
from load_records import answered, missed, run
from rich.console import Console

from firstlight.infra.bench.load.progress import Watcher


def shown(*, terminal: bool) -> str:
    file = StringIO()
    going = run([answered(), missed("cut")])
    going.planned, going.outstanding = 40, 1
    with Watcher(Console(file=file, force_terminal=terminal, width=120)) as watcher:
        watcher.begin("A [1/2]")
        watcher.show(going)
    return file.getvalue()


@pytest.mark.parametrize("said", ["A [1/2]", "1/40", "1 out, 1 missed, CPU 10%"])
def test_a_terminal_sees_how_far_it_is(said: str) -> None:
    assert said in shown(terminal=True)


def test_nothing_is_written_where_there_is_no_terminal() -> None:
    assert shown(terminal=False) == ""
