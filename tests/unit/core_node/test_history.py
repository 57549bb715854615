"""What a core notes of an assignment, from its `Open` to its one end."""

from collections.abc import Iterator
from pathlib import Path

import doubles
import pytest

from firstlight.core_node.assignments import Assignment
from firstlight.core_node.backends.backend import ABORTED, Batch, Failure
from firstlight.core_node.history import CoreHistory
from firstlight.shared.errors import CapacityError, RequestError
from firstlight.shared.history import Line, What, decode, salt_key
from firstlight.shared.history_file import History
from firstlight.shared.stream import TokenStream
from firstlight.shared.types import Commit, Done

REQUEST = doubles.request("r", prompt=range(20))
STREAM = TokenStream(REQUEST.prompt, (7,))


class Noted:
    """A core's history in a file."""

    def __init__(self, path: Path) -> None:
        self.history = History(path)
        self.core = CoreHistory(self.history, "class")

    def lines(self) -> list[Line]:
        """What was noted of streams."""
        self.history.close()
        lines = [decode(text) for text in self.history.path.read_bytes().splitlines()]
        return [line for line in lines if line.stream]


@pytest.fixture
def noted(tmp_path: Path) -> Iterator[Noted]:
    noted = Noted(tmp_path / "core.jsonl")
    yield noted
    noted.history._closing.set()


def opened(noted: Noted, handle: str = "1.1", epoch: int = 1) -> None:
    noted.core.opened(Assignment(handle, "edge", 1, "r", epoch), REQUEST, (7,))


def commit(handle: str = "1.1", ids: tuple[int, ...] = (8, 9)) -> Commit:
    stream = TokenStream(REQUEST.prompt, (7,))
    return Commit(handle, 1, stream.position, ids, stream.append(ids), cached_tokens=16)


def test_an_assignment_is_told_by_its_offsets_and_hashes(noted: Noted) -> None:
    opened(noted)
    noted.core.deliver(Batch(commits=(commit(),)))
    noted.core.deliver(Batch(done=(Done("1.1", 1),), endings=(("1.1", "length"),)))
    first, second, last = noted.lines()
    assert (first.what, first.stream, first.epoch, first.offset) == (What.OPENED, "r", 1, 1)
    assert first.hash == STREAM.chain.hex()
    assert first.facts["salt"] == salt_key(REQUEST.salt)
    assert (second.offset, second.hash) == (3, commit().chain.hex())
    assert second.facts == {"count": 2, "cached_tokens": 16}
    assert (last.what, last.offset, last.facts) == (What.ENDED, 3, {"finish": "length"})


@pytest.mark.parametrize("end", ["cancelled", "failed", "fenced"])
def test_what_comes_after_the_end_is_not_noted(noted: Noted, end: str) -> None:
    opened(noted)
    if end == "cancelled":
        noted.core.cancelled("1.1", "edge")
    elif end == "failed":
        noted.core.deliver(Batch(failures=(Failure("1.1", CapacityError("full")),)))
    else:
        noted.core.fenced("1.1")
    noted.core.deliver(Batch(commits=(commit(),), done=(Done("1.1", 1),)))
    noted.core.deliver(Batch(endings=(("1.1", ABORTED),)))
    what = {"cancelled": What.CANCELLED, "failed": What.ENDED, "fenced": What.FENCED}[end]
    assert [line.what for line in noted.lines()] == [What.OPENED, what]


def test_a_refusal_says_its_kind_and_not_its_words(noted: Noted) -> None:
    noted.core.refused("r", 3, RequestError("the prompt says hello"))
    (line,) = noted.lines()
    assert (line.what, line.epoch) == (What.REFUSED, 3)
    assert line.facts == {"kind": "request", "status": 400, "retryable": False}
