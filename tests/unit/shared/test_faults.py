"""What a node does to itself when asked to fail, and who may ask."""

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from firstlight.shared.clock import monotonic_s, unix_s
from firstlight.shared.door import OPERATORS_MAX, answer_line, door, failing
from firstlight.shared.errors import ConfigError
from firstlight.shared.faults import CLOCK, SWITCHES, Failing

CORE = (*SWITCHES, CLOCK)


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_on_until_it_is_told_off(name: str) -> None:
    state = Failing(CORE)
    state.command({"do": name})
    assert [one for one in SWITCHES if getattr(state, one)] == [name]
    state.command({"do": name, "on": False})
    assert not any(getattr(state, one) for one in SWITCHES)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({}, "do: None, expected one of hang, refuse, silent, clock"),
        ({"do": "explode"}, "do: 'explode', expected one of"),
        ({"do": "hang", "on": "yes"}, "on: 'yes', expected true or false"),
        ({"do": "hang", "shift_s": 1}, "shift_s: unknown key, expected do and on"),
        ({"do": "clock"}, "shift_s: None, expected seconds"),
        ({"do": "clock", "shift_s": True}, "shift_s: True, expected seconds"),
        ({"do": "clock", "shift_s": float("nan")}, "shift_s: nan, expected seconds"),
        ({"do": "clock", "shift_s": 1e12}, "at most either way"),
        ({"do": "clock", "shift_s": 10**400}, "at most either way"),
    ],
)
def test_what_no_node_can_do_is_refused_and_nothing_is_done(
    said: dict[str, Any], problem: str
) -> None:
    state = Failing(CORE)
    with pytest.raises(ConfigError, match=problem):
        state.command(said)
    assert state == Failing(CORE)


def test_an_edge_cannot_hang_an_engine_that_it_has_not() -> None:
    with pytest.raises(ConfigError, match="do: 'hang', expected one of clock"):
        Failing().command({"do": "hang"})


def test_the_end_takes_everything_back() -> None:
    shifts: list[float] = []
    state = Failing(CORE, on_shift=shifts.append)
    for said in ({"do": "hang"}, {"do": "silent"}, {"do": "clock", "shift_s": -5}):
        state.command(said)
    state.end()
    state.end()
    assert not any(getattr(state, one) for one in SWITCHES)
    assert shifts == [-5.0, 0.0]


async def asked(path: Path, *lines: bytes) -> list[dict[str, Any]]:
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        answers = []
        for line in lines:
            writer.write(line + b"\n")
            answers.append(json.loads(await reader.readline()))
        return answers
    finally:
        writer.close()


async def test_a_node_without_the_setting_has_nothing_that_could_fail_it() -> None:
    async with failing(None, CORE) as state:
        assert state is None


async def test_a_node_is_told_through_its_door_and_is_well_when_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "node.faults"
    async with failing(path, CORE) as state:
        assert state is not None
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        said = await asked(path, b'{"do": "hang"}', b"[]", b"{", b'{"do": "hang", "on": 1}')
        assert [one["ok"] for one in said] == [True, False, False, False]
        assert said[2]["error"] == "not JSON"
        assert state.hang
    assert not state.hang
    assert not path.exists()


async def test_a_shifted_clock_is_the_dates_alone(tmp_path: Path) -> None:
    path = tmp_path / "node.faults"
    dates, since_s = [unix_s()], monotonic_s()
    async with failing(path):
        assert await asked(path, b'{"do": "clock", "shift_s": 7200}') == [{"ok": True}]
        dates.append(unix_s())
    dates.append(unix_s())
    passed_s = monotonic_s() - since_s
    assert 7200 <= dates[1] - dates[0] <= 7200 + passed_s + 1
    assert 0 <= dates[2] - dates[0] <= passed_s + 1


async def test_one_operator_too_many_is_hung_up_on(tmp_path: Path) -> None:
    path = tmp_path / "node.faults"
    async with door(path, dict):
        many = [await asyncio.open_unix_connection(path) for _ in range(OPERATORS_MAX)]
        for reader, writer in many:
            writer.write(b"{}\n")
            assert await reader.readline() == b'{"ok": true}\n'
        late, closed = await asyncio.open_unix_connection(path)
        assert await late.read() == b""
        for writer in (closed, *(writer for _, writer in many)):
            writer.close()


async def test_a_door_that_cannot_be_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"faults: .*no/such: No such file"):
        async with failing(tmp_path / "no" / "such"):
            pass


def test_an_error_of_ours_is_an_answer() -> None:
    def refuse(said: dict[str, Any]) -> dict[str, Any]:
        raise ConfigError(f"not {said['do']}")

    assert json.loads(answer_line(b'{"do": "x"}', refuse)) == {"ok": False, "error": "not x"}


async def test_a_bug_behind_a_command_is_told_and_the_door_stays_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(said: dict[str, Any]) -> dict[str, Any]:
        if said["do"] == "stumble":
            raise ValueError("empty range")
        return {}

    async with door(tmp_path / "door", stumble):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "door")
        writer.write(b'{"do": "stumble"}\n{"do": "walk"}\n')
        answers = [json.loads(await reader.readline()) for _ in range(2)]
        writer.close()
    assert answers == [{"ok": False, "error": "ValueError('empty range')"}, {"ok": True}]
    assert "empty range" in caplog.text
