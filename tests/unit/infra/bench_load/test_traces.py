"""Two formats of traces, and what is wrong with a line."""

import os
from pathlib import Path

import pytest

from firstlight.infra.bench.load.schedule import Arrival
from firstlight.infra.bench.load.traces import parse
from firstlight.shared.errors import ConfigError

BESIDE = Path(__file__).parents[5] / "shared" / "data" / "traces"
SAMPLES = Path(os.environ.get("FIRSTLIGHT_TRACES", BESIDE))
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
GOOD = '{"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [0, 12]}'


def parsed(*lines: str) -> list[Arrival]:
    return list(parse(lines, "t"))


def test_a_mooncake_line_is_milliseconds_lengths_and_blocks() -> None:
    assert parsed(GOOD, "", GOOD) == [Arrival(1.5, 600, 7, (0, 12))] * 2


def test_an_azure_line_is_a_date_and_two_lengths() -> None:
    first, second = parsed(
        f"\ufeff{HEADER}\r", "2023-11-16 18:15:46.6805900,374,44\r", "2023-11-16 18:15:50,396,0"
    )
    assert (first.tokens_in, first.tokens_out, first.blocks) == (374, 44, ())
    assert second.at_s - first.at_s == pytest.approx(3.31941)
    assert second.tokens_out == 1  # nothing can be asked for less


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "an object expected"),
        ('{"timestamp": -1, "input_length": 1, "output_length": 1}', "timestamp"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "timestamp"),
        (f'{{"timestamp": {10**400}, "input_length": 1, "output_length": 1}}', "timestamp"),
        ('{"timestamp": true, "input_length": 1, "output_length": 1}', "timestamp"),
        ('{"timestamp": 1, "input_length": 1.5, "output_length": 1}', "input_length"),
        ('{"timestamp": 1, "input_length": 1}', "output_length"),
        ('{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": "ab"}', "hash_ids"),
        ('{"timestamp": 1, "input_length": 512, "output_length": 1, "hash_ids": [1, 2]}', "many"),
        ("[" * 100_000, "recursion"),
        ("x" * (2 << 20), "longer than"),
    ],
)
def test_a_wrong_mooncake_line_is_named_by_its_number(line: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"t:3: .*{said}"):
        parsed(GOOD, "", line)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("2023-11-16 18:15:46,1", "3 fields"),
        ("yesterday,1,1", "TIMESTAMP"),
        ("2023-11-16 18:15:46,-1,1", "ContextTokens"),
        ("2023-11-16 18:15:46,1,²", "GeneratedTokens"),
        (f"2023-11-16 18:15:46,1,{10**30}", "GeneratedTokens"),
    ],
)
def test_a_wrong_azure_line_is_named_by_its_number(line: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"t:2: .*{said}"):
        parsed(HEADER, line)


def test_a_file_that_is_no_trace_says_what_was_expected() -> None:
    with pytest.raises(ConfigError, match="t:1: neither"):
        parsed("a,b,c")


@pytest.mark.parametrize(
    ("name", "count", "tokens_in"),
    [
        ("mooncake_conversation.jsonl", 12031, 144_793_823),
        ("azure_2023_conv.csv", 19366, 22_361_870),
    ],
)
def test_the_published_samples_are_read_whole(name: str, count: int, tokens_in: int) -> None:
    if not (SAMPLES / name).exists():
        pytest.skip(f"there is no {SAMPLES / name}; FIRSTLIGHT_TRACES names the folder")
    with (SAMPLES / name).open() as lines:
        rows = list(parse(lines, name))
    assert len(rows) == count
    assert sum(row.tokens_in for row in rows) == tokens_in
