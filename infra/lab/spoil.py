"""Blocks on a core's disk that are not what was written any more, picked by a seed."""

import os
from itertools import pairwise
from pathlib import Path
from random import Random

from firstlight.infra.lab.fault_plan import How
from firstlight.shared.errors import ConfigError

SUFFIX = ".kv"


def corrupt(directory: Path, how: How, blocks: int, rng: Random) -> list[str]:
    """Spoil so many blocks, all if there are fewer; returns their names. Raises `ConfigError`.

    `flip` changes one bit anywhere in a file, `truncate` cuts it anywhere, `swap` gives two files
    each other's names. A file of which nothing is left, since it was cut before, is no block.
    """
    try:
        names = sorted(
            path.name
            for path in directory.iterdir()
            if path.suffix == SUFFIX and path.stat().st_size
        )
        least = 2 if how == "swap" else 1
        if len(names) < least:
            raise ConfigError(f"corrupt: {len(names)} blocks in {directory}, expected {least}")
        picked = rng.sample(names, min(len(names), max(blocks, least)))
        if how == "swap":
            _rotate([directory / name for name in picked])
        for name in picked if how != "swap" else ():
            (_flip if how == "flip" else _truncate)(directory / name, rng)
    except OSError as error:
        raise ConfigError(f"corrupt: {error.filename}: {error.strerror}") from error
    return picked


def _flip(path: Path, rng: Random) -> None:
    place, bit = rng.randrange(path.stat().st_size), rng.randrange(8)
    with path.open("r+b", buffering=0) as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ (1 << bit)]))


def _truncate(path: Path, rng: Random) -> None:
    os.truncate(path, rng.randrange(path.stat().st_size))


def _rotate(paths: list[Path]) -> None:
    """Each takes the next one's name; of two, each other's."""
    away = paths[0].with_suffix(".away")
    paths[0].rename(away)
    for to, source in pairwise(paths):
        source.rename(to)
    away.rename(paths[-1])
