"""Databases that say where an address is: read, checked, watched; missing or broken is a state.

Every `*.mmdb` in one directory is used, in the order of names: an address has the first place that
is exact, else the first at all. A file is copied before it is mapped, into memory that nobody else
can shorten: cutting a mapped file short kills the process that reads it. A file that cannot be used
leaves the one before it in force, if there was one, and says so in `states`.
"""

import itertools
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any

import maxminddb
from maxminddb.const import MODE_AUTO, MODE_MEMORY

from firstlight.shared import telemetry
from firstlight.shared.clock import unix_s
from firstlight.shared.errors import ConfigError
from firstlight.shared.geography.records import place_of
from firstlight.shared.geography.subnets import Address, Network
from firstlight.shared.routing.geo import Place

DATABASES_MAX = 8
FILE_BYTES_MAX = 1 << 30
CHECKED_NETWORKS = 2000
CHECKED_ADDRESSES = 512
BUILT_UNIX_S_MAX = 1 << 36
"""A build time beyond it is nonsense, not a clock that is wrong."""
DB_IP = "IP Geolocation by DB-IP", "https://db-ip.com", "CC BY 4.0"
MAXMIND = "This product includes GeoLite data created by MaxMind", "https://www.maxmind.com", ""

logger = logging.getLogger("firstlight.geoip")


@dataclass(frozen=True, slots=True)
class GeoipConfig:
    """Where the databases are."""

    directory: Path | None = None
    """Every `*.mmdb` in it is used; null: `geoip` in the state directory."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """What must be shown where a database is used."""

    text: str
    url: str
    license: str


@dataclass(frozen=True, slots=True)
class Found:
    """Where an address is, by which record."""

    place: Place
    network: Network
    """All addresses in it have this record."""
    database: str


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """A file, and whether it serves."""

    file: str
    kind: str
    """As the file calls itself; empty if it was never read."""
    built_unix_s: int | None
    fault: str | None
    """Why the file that lies there is not used. With a build time, one before it still is."""


class UnreadableError(ConfigError):
    """The file could not be read now: nothing is known of what is in it."""


class Database:
    """One database in private memory. Raises `ConfigError` for one that cannot be used."""

    def __init__(self, path: Path, *, called: Path | None = None) -> None:
        """`called` is what errors call it; else `path`."""
        self.name, said = path.name, called or path
        self._reader = _opened(path, said)
        try:
            self.kind, self.built_unix_s, self.ip_version = _metadata(self._reader, said)
            self._check(said)
        except BaseException:
            self._reader.close()
            raise

    @property
    def attribution(self) -> Attribution:
        """DB-IP's files call themselves `city ipv4` and the like, or by their name."""
        mine = "DBIP" in self.kind.upper() or self.kind.lower().startswith(("city", "country"))
        return Attribution(*(DB_IP if mine else MAXMIND))

    def find(self, address: Address) -> Found | None:
        """Raises whatever a broken file makes the reader raise."""
        if isinstance(address, IPv6Address) and self.ip_version == 4:
            return None
        record, bits = self._reader.get_with_prefix_len(address)
        place = place_of(record)
        if place is None:
            return None
        return Found(place, ip_network((address, bits), strict=False), self.name)

    def _check(self, path: Path) -> None:
        """Walk and probe: what raises, or knows no place at all, is not used."""
        known = 0
        try:
            for _, record in itertools.islice(self._reader, CHECKED_NETWORKS):
                known += place_of(record) is not None
            for address in _probes(self.ip_version):
                known += self.find(address) is not None
        except Exception as error:
            raise ConfigError(f"{path}: corrupt: {error}") from None
        if not known:
            raise ConfigError(f"{path}: knows no place of {CHECKED_NETWORKS} networks")


class Geoip:
    """The databases of a directory. `refresh` now and then, off the event loop."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.generation = 0
        """Grows whenever what is known changes."""
        self._serving: dict[str, Database] = {}
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._faults: dict[str, str] = {}
        self._missing: str | None = None
        telemetry.GEOIP_AGE_SECONDS.set_function(lambda: self.age_s() or 0.0)

    def refresh(self) -> None:
        """Look at the directory, load what is new. Never raises; says each fault once."""
        paths = self._files()
        for name in {*self._seen, *self._serving, *self._faults} - {path.name for path in paths}:
            self._forget(name)
        for path in paths:
            self._refresh_one(path)
        missing = None if self._serving or self._faults else f"no database in {self.directory}"
        if missing and missing != self._missing:
            logger.warning("%s: clients have no place until one is installed", missing)
        self._missing = missing
        telemetry.GEOIP_DATABASES.labels(state="serving").set(len(self._serving))
        telemetry.GEOIP_DATABASES.labels(state="faulty").set(len(self._faults))

    def find(self, address: Address) -> Found | None:
        """Where an address is, as exactly as any database says. A database that raises is left."""
        best: Found | None = None
        for name, database in tuple(self._serving.items()):
            try:
                found = database.find(address)
            except Exception as error:
                self._break(name, f"corrupt: {error}")
                continue
            if found is not None and (best is None or found.place.exact):
                best = found
                if found.place.exact:
                    break
        telemetry.GEOIP_LOOKUPS.labels(found=_fate(best)).inc()
        return best

    def states(self) -> tuple[DatabaseState, ...]:
        """Every file that is there, or serves, by name."""
        names = sorted({*self._serving, *self._faults})
        return tuple(
            DatabaseState(
                name,
                self._serving[name].kind if name in self._serving else "",
                self._serving[name].built_unix_s if name in self._serving else None,
                self._faults.get(name),
            )
            for name in names
        )

    def detail(self) -> str | None:
        """What is wrong with the databases, for people; None if nothing is."""
        faults = [f"{name}: {fault}" for name, fault in sorted(self._faults.items())]
        return "; ".join(faults) or self._missing

    def attributions(self) -> tuple[Attribution, ...]:
        """What must be shown, each once."""
        return tuple(dict.fromkeys(one.attribution for one in self._serving.values()))

    def age_s(self) -> float | None:
        """Since the oldest database in use was built; None without one."""
        built = min((one.built_unix_s for one in self._serving.values()), default=None)
        return None if built is None else max(0.0, unix_s() - built)

    def _files(self) -> list[Path]:
        try:
            found = sorted(self.directory.glob("*.mmdb"))
        except OSError as error:
            logger.warning("%s: %s", self.directory, error)
            return []
        return [path for path in found if not path.name.startswith(".")][:DATABASES_MAX]

    def _refresh_one(self, path: Path) -> None:
        try:
            status = path.stat()
        except OSError:
            return  # gone again: the next look forgets it
        signature = status.st_mtime_ns, status.st_size, status.st_ino
        if self._seen.get(path.name) == signature:
            return
        self._seen[path.name] = signature
        try:
            database = Database(path)
        except ConfigError as error:
            if isinstance(error, UnreadableError):  # a disk that is full, a right that lacks
                del self._seen[path.name]
            if self._faults.get(path.name) != error.message:
                still = "the one before it serves on" if path.name in self._serving else "not used"
                logger.warning("%s (%s)", error, still)
            self._faults[path.name] = error.message
            return
        self._serving = dict(sorted({**self._serving, path.name: database}.items()))
        self._faults.pop(path.name, None)
        self.generation += 1
        logger.info("%s: %s, built %d", path, database.kind, database.built_unix_s)

    def _break(self, name: str, fault: str) -> None:
        logger.warning("%s: %s (not used any more)", name, fault)
        self._serving = {key: value for key, value in self._serving.items() if key != name}
        self._faults[name] = fault
        self.generation += 1

    def _forget(self, name: str) -> None:
        self._seen.pop(name, None)
        self._faults.pop(name, None)
        if name in self._serving:
            self._serving = {key: value for key, value in self._serving.items() if key != name}
            self.generation += 1


def _fate(found: Found | None) -> str:
    if found is None:
        return "nothing"
    return "city" if found.place.exact else "country"


def _opened(path: Path, said: Path) -> maxminddb.Reader:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"{said}: larger than {FILE_BYTES_MAX} bytes")
        with path.open("rb") as source, tempfile.TemporaryFile() as private:
            shutil.copyfileobj(source, private, 1 << 20)
            private.flush()
            where = f"/proc/self/fd/{private.fileno()}"
            if os.path.exists(where):
                return maxminddb.open_database(where, MODE_AUTO)
            return maxminddb.open_database(path, MODE_MEMORY)
    except OSError as error:
        raise UnreadableError(f"{said}: {error.strerror or error}") from None
    except ConfigError:
        raise
    except Exception:  # the file is hostile: anything may come, in many classes
        raise ConfigError(f"{said}: corrupt, or no MaxMind DB file") from None


def _metadata(reader: maxminddb.Reader, path: Path) -> tuple[str, int, int]:
    try:
        data: Any = reader.metadata()
        kind, built, version = data.database_type, data.build_epoch, data.ip_version
    except Exception as error:
        raise ConfigError(f"{path}: corrupt metadata: {error}") from None
    if not isinstance(kind, str) or not any(
        word in kind.lower() for word in ("city", "country", "enterprise")
    ):
        raise ConfigError(
            f"{path}: of type {str(kind)[:80]!r}, expected one of cities or countries"
        )
    if version not in (4, 6):
        raise ConfigError(f"{path}: of IP version {version}, expected 4 or 6")
    if not isinstance(built, int) or not 0 < built < BUILT_UNIX_S_MAX:
        raise ConfigError(f"{path}: built at {built}, expected seconds since 1970")
    return kind, built, version


def _probes(version: int) -> Iterator[Address]:
    """Addresses all over the space that is in use, always the same."""
    for i in range(CHECKED_ADDRESSES):
        spread = i * 0x9E3779B1 % (1 << 32)
        yield ip_address(spread) if version == 4 else IPv6Address((0x2 << 124) | (spread << 93))
