"""PowerDNS's remote backend over a Unix socket: one JSON object a line, question and answer.

    {"method": "lookup", "parameters": {"qname": "x.example.", "qtype": "ANY", "real-remote": …}}
    {"result": [{"qname": …, "qtype": "A", "content": …, "ttl": 20, "scopeMask": 24}]}

A `false` for a look-up would become "no such name". So whatever goes wrong, from a line that is no
question to a table that nobody has told yet, breaks the connection: the name server says SERVFAIL,
and comes back with the next question.
"""

import asyncio
import json
import logging
import os
import socket
import stat
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from firstlight.global_lb.dns import (
    Record,
    Trouble,
    Zone,
    choose,
    fit_to_name,
    is_steered,
    lookup,
    scope_bits,
)
from firstlight.global_lb.dns_near import Fit
from firstlight.global_lb.dns_table import Steered, Table
from firstlight.shared import telemetry
from firstlight.shared.clock import monotonic_s
from firstlight.shared.complaints import Complaints
from firstlight.shared.errors import ConfigError
from firstlight.shared.geography.geoip import Geoip
from firstlight.shared.geography.subnets import TEXT_CHARS_MAX, Network, subnet_of
from firstlight.shared.routing.geo import Place

LINE_BYTES_MAX = 64 << 10
CONNECTIONS_MAX = 64
KEPT_MAX = 10_000
DOMAIN_ID = 1

logger = logging.getLogger("firstlight.dns")

_Asked = tuple[str, str, Network, int, int]
_Alike = tuple[str, str, int, int, tuple[str, ...]]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Answers:
    """Answers to lines of the protocol. Raises `Trouble` where the connection shall break."""

    def __init__(self, zone: Zone, table: Callable[[], Table | None], geoip: Geoip) -> None:
        self._zone, self._table, self._geoip = zone, table, geoip
        self._kept: OrderedDict[_Asked, bytes] = OrderedDict()
        self._chosen: OrderedDict[tuple[int, _Where], tuple[Steered, ...]] = OrderedDict()
        """By epoch and place, for networks that agree on nothing of their own."""
        self._lines: OrderedDict[_Alike, bytes] = OrderedDict()
        """By name, type, epoch, scope and the edges that are named."""
        self._fit: tuple[Table, Fit] | None = None

    def reply(self, line: bytes) -> bytes:
        """The answer to one line."""
        try:
            question = json.loads(line)
            method, parameters = question["method"], question.get("parameters", {})
            if method == "lookup":
                return self._lookup(parameters)
            return _line(self._result(method, parameters))
        except Trouble:
            telemetry.DNS_LOOKUPS.labels(fate="failed").inc()
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            telemetry.DNS_LOOKUPS.labels(fate="failed").inc()
            raise Trouble(f"not a question: {type(error).__name__}: {error}") from None

    def _result(self, method: str, parameters: Mapping[str, Any]) -> object:
        match method:
            case "initialize":
                return True
            case "getAllDomains":
                return [self._domain()]
            case "getDomainInfo":
                name = str(parameters["name"]).rstrip(".").lower()
                return self._domain() if name == self._zone.name else False
            case "getAllDomainMetadata":
                return {}
            case "getDomainMetadata":
                return []
        return False  # transfers, keys, updates: we have none

    def _domain(self) -> dict[str, object]:
        name = f"{self._zone.name}."
        return {
            "id": DOMAIN_ID,
            "zone": name,
            "masters": [],
            "notified_serial": 1,
            "serial": 1,
            "last_check": 0,
            "kind": "native",
        }

    def _lookup(self, parameters: Mapping[str, Any]) -> bytes:
        name, qtype = parameters["qname"], parameters["qtype"]
        if not isinstance(name, str) or not isinstance(qtype, str):
            raise Trouble("qname or qtype is no text")
        told = str(parameters.get("real-remote") or parameters.get("remote"))
        client = _network(told[: TEXT_CHARS_MAX + 1])
        if client is None:
            raise Trouble(f"the client's network {told[:80]!r} is none")
        table = self._table()
        epoch = 0 if table is None else table.epoch
        asked = name.lower(), qtype, client, epoch, self._geoip.generation
        answer = _remember(self._kept, asked, lambda: self._made(table, name, qtype, client))
        (_EMPTY if answer == _NOTHING else _ANSWERED).inc()
        return answer

    def _made(self, table: Table | None, name: str, qtype: str, client: Network) -> bytes:
        chosen: tuple[Steered, ...] = ()
        scope = 0
        if is_steered(self._zone, name, qtype):
            chosen, scope = self._choose(table, client), scope_bits(client)
        nodes = tuple(one.edge.info.node for one in chosen)
        epoch = 0 if table is None else table.epoch
        alike = name.lower(), qtype, epoch, scope, nodes

        def line() -> bytes:
            records = lookup(self._zone, name, qtype, client, lambda: chosen)
            return _line([_record(one) for one in records])

        return _remember(self._lines, alike, line)

    def _choose(self, table: Table | None, client: Network) -> tuple[Steered, ...]:
        if table is None or self._fit is None or self._fit[0] is not table:
            fit = fit_to_name(self._zone, table)
            assert table is not None
            self._fit = table, fit
        known, fit = self._fit
        found = self._geoip.find(client.network_address)
        where = None if found is None else _coarse(found.place)
        place = None if where is None else Place(*where)
        if agreed := known.agreed.get(client):
            return choose(fit, agreed, place)
        return _remember(self._chosen, (known.epoch, where), lambda: choose(fit, {}, place))


def _remember(kept: "OrderedDict[_Key, _Value]", key: _Key, make: Callable[[], _Value]) -> _Value:
    """What is kept under `key`, or made now; the first that came goes when there is no room."""
    value = kept.get(key)
    if value is None:
        value = kept[key] = make()
        if len(kept) > KEPT_MAX:
            kept.popitem(last=False)
    return value


_Where = tuple[float, float, str, bool] | None
"""The fields of a `Place`, which are compared faster than it."""


def _coarse(place: Place) -> tuple[float, float, str, bool]:
    """The place to a tenth of a degree: 11 km change no choice, and neighbours share one."""
    return round(place.latitude, 1), round(place.longitude, 1), place.country, place.exact


_network = lru_cache(maxsize=KEPT_MAX)(subnet_of)
"""A name server asks more than once for the same client."""


def _line(result: object) -> bytes:
    return json.dumps({"result": result}, separators=(",", ":")).encode() + b"\n"


_NOTHING = _line([])
_ANSWERED, _EMPTY = (telemetry.DNS_LOOKUPS.labels(fate=fate) for fate in ("answered", "empty"))


@asynccontextmanager
async def serving(path: Path, mode: int, answers: Answers) -> AsyncIterator[None]:
    """Answer at a Unix socket while the block runs. Raises `ConfigError` if it cannot be made."""
    connections: set[asyncio.StreamWriter] = set()
    complaints = Complaints()

    def trouble(why: str) -> None:
        # Every question may meet the same one: as many lines as questions would fill a disk.
        if complaints.new("dns", why, monotonic_s()):
            logger.warning("SERVFAIL: %s", why)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(connections) >= CONNECTIONS_MAX:
            trouble(f"{CONNECTIONS_MAX} connections are the most")
            writer.close()
            return
        connections.add(writer)
        try:
            await _talk(reader, writer, answers, trouble)
        finally:
            connections.discard(writer)
            writer.close()

    _clear(path)
    try:
        server = await asyncio.start_unix_server(talk, path, limit=LINE_BYTES_MAX)
        os.chmod(path, mode)
    except OSError as error:
        raise ConfigError(f"socket {path}: {error.strerror or error}") from None
    try:
        yield
    finally:
        server.close()
        for writer in tuple(connections):
            writer.close()
        _remove(path)


async def _talk(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    answers: Answers,
    trouble: Callable[[str], None],
) -> None:
    try:
        while line := await reader.readline():
            if line.strip():
                writer.write(answers.reply(line))
                await writer.drain()
    except Trouble as error:
        trouble(str(error))
    except ValueError:
        trouble(f"a line above {LINE_BYTES_MAX} bytes")
    except ConnectionError:
        return


def _record(one: Record) -> dict[str, Any]:
    return {
        "qtype": one.qtype,
        "qname": f"{one.qname}.",
        "content": one.content,
        "ttl": one.ttl_s,
        "scopeMask": one.scope_bits,
        "domain_id": DOMAIN_ID,
        "auth": 1,
    }


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _clear(path: Path) -> None:
    """Take away the socket of a process that is gone; never anything else."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ConfigError(f"socket {path}: there is a file that is no socket")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(0.5)
            try:
                probe.connect(str(path))
            except OSError:
                path.unlink(missing_ok=True)
                return
        raise ConfigError(f"socket {path}: another process answers there")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"socket {path}: {error.strerror or error}") from None
