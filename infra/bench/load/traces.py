"""Traces of real services, line by line: Mooncake's JSONL and Azure's CSV.

Sans-IO. Mooncake: objects with `timestamp` (ms), `input_length`, `output_length`, and `hash_ids`,
one for each 512 tokens of the prompt; equal ids are equal tokens after equal beginnings. Azure: the
header `TIMESTAMP,ContextTokens,GeneratedTokens`, then a row a request, its time as a date.
A line that is neither is an error with its number: a trace that lies silently is another load.
"""

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from firstlight.infra.bench.load.schedule import BLOCK_TOKENS, Arrival
from firstlight.shared.errors import ConfigError

LINE_CHARS_MAX = 1 << 20
TOKENS_MAX = 1 << 24
"""Of a prompt or an answer; more is no length but a mistake."""
MS_MAX = 1e15
AZURE_HEADER = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
_BOM = "\ufeff"
_SHOWN_CHARS = 60


def parse(lines: Iterable[str], name: str) -> Iterator[Arrival]:
    """The arrivals of a trace called `name`, in its order; empty lines are skipped.

    Raises:
        ConfigError: a line is not what the first one promised; says its number.

    """
    row = None
    for number, line in enumerate(lines, 1):
        text = line.removeprefix(_BOM if number == 1 else "").strip()
        if not text:
            continue
        try:
            if len(text) > LINE_CHARS_MAX:
                raise ValueError(f"longer than {LINE_CHARS_MAX} characters")
            if row is None:
                row = _format_of(text)
                if row is azure_row:
                    continue
            yield row(text)
        except (ValueError, RecursionError) as error:
            shown = text[:_SHOWN_CHARS] + ("…" if len(text) > _SHOWN_CHARS else "")
            raise ConfigError(f"{name}:{number}: {error} ({shown!r})") from error


def mooncake_row(text: str) -> Arrival:
    """One line of a Mooncake trace. Raises `ValueError` for what it cannot be."""
    try:
        value: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.colno}") from error
    if not isinstance(value, dict):
        raise ValueError("an object expected")
    at_ms = value.get("timestamp")
    if isinstance(at_ms, bool) or not isinstance(at_ms, int | float) or not 0 <= at_ms <= MS_MAX:
        raise ValueError(f"timestamp should be milliseconds from 0 on, got {at_ms!r:.40}")
    tokens_in, tokens_out = (_tokens(value.get(n), n) for n in ("input_length", "output_length"))
    ids = value.get("hash_ids", [])
    if not isinstance(ids, list) or not all(type(id_) is int for id_ in ids):
        raise ValueError("hash_ids should be a list of integers")
    if len(ids) > -(-tokens_in // BLOCK_TOKENS):
        raise ValueError(f"{len(ids)} hash_ids are too many for {tokens_in} tokens")
    return Arrival(at_ms / 1e3, max(1, tokens_in), max(1, tokens_out), tuple(ids))


def azure_row(text: str) -> Arrival:
    """One line of an Azure trace. Raises `ValueError` for what it cannot be."""
    fields = [field.strip() for field in text.split(",")]
    if len(fields) != len(AZURE_HEADER):
        raise ValueError(f"{len(AZURE_HEADER)} fields expected, got {len(fields)}")
    try:
        at = datetime.fromisoformat(fields[0])
    except ValueError as error:
        raise ValueError(f"TIMESTAMP should be a date and time, got {fields[0]!r:.40}") from error
    # Zones matter only if rows differ in them; without one a row counts as the others do.
    since = datetime(1970, 1, 1, tzinfo=at.tzinfo)
    sizes = (_tokens(_whole(f), n) for f, n in zip(fields[1:], AZURE_HEADER[1:], strict=True))
    tokens_in, tokens_out = sizes
    return Arrival((at - since).total_seconds(), max(1, tokens_in), max(1, tokens_out))


def _format_of(first: str) -> Any:
    if first.startswith("{"):
        return mooncake_row
    if [field.strip() for field in first.split(",")] == AZURE_HEADER:
        return azure_row
    raise ValueError(
        f"neither an object of a Mooncake trace nor Azure's header {','.join(AZURE_HEADER)}"
    )


def _whole(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


def _tokens(value: object, name: str) -> int:
    if type(value) is not int or not 0 <= value <= TOKENS_MAX:
        raise ValueError(f"{name} should be tokens from 0 to {TOKENS_MAX}, got {value!r:.40}")
    return value
