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
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from firstlight.global_lb.dns import Record, Trouble, Zone, choose, lookup
from firstlight.global_lb.dns_table import Steered, Table
from firstlight.shared import telemetry
from firstlight.shared.errors import ConfigError
from firstlight.shared.geography.geoip import Geoip
from firstlight.shared.geography.subnets import Network, subnet_of
from firstlight.shared.routing.geo import Place

LINE_BYTES_MAX = 64 << 10
CONNECTIONS_MAX = 64
KEPT_MAX = 10_000
DOMAIN_ID = 1

logger = logging.getLogger("firstlight.dns")

_Asked = tuple[str, str, Network, int, int]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Answers:
    """Answers to lines of the protocol. Raises `Trouble` where the connection shall break."""

    def __init__(self, zone: Zone, table: Callable[[], Table | None], geoip: Geoip) -> None:
        self._zone, self._table, self._geoip = zone, table, geoip
        self._kept: OrderedDict[_Asked, bytes] = OrderedDict()
        self._chosen: OrderedDict[tuple[int, Place | None], tuple[Steered, ...]] = OrderedDict()
        """By epoch and place, for networks that agree on nothing of their own."""

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
        client = subnet_of(told)
        if client is None:
            raise Trouble(f"the client's network {told[:80]!r} is none")
        table = self._table()
        epoch = 0 if table is None else table.epoch
        asked = name.lower(), qtype, client, epoch, self._geoip.generation
        answer = _remember(self._kept, asked, lambda: self._made(table, name, qtype, client))
        telemetry.DNS_LOOKUPS.labels(fate="empty" if answer == _NOTHING else "answered").inc()
        return answer

    def _made(self, table: Table | None, name: str, qtype: str, client: Network) -> bytes:
        records = lookup(self._zone, name, qtype, client, lambda: self._choose(table, client))
        return _line([_record(one) for one in records])

    def _choose(self, table: Table | None, client: Network) -> tuple[Steered, ...]:
        found = self._geoip.find(client.network_address)
        place = None if found is None else _coarse(found.place)
        if table is None or client in table.agreed:
            return choose(self._zone, table, client, place)
        where = table.epoch, place
        return _remember(self._chosen, where, lambda: choose(self._zone, table, client, place))


def _remember(kept: "OrderedDict[_Key, _Value]", key: _Key, make: Callable[[], _Value]) -> _Value:
    """What is kept under `key`, or made now; the first that came goes when there is no room."""
    value = kept.get(key)
    if value is None:
        value = kept[key] = make()
        if len(kept) > KEPT_MAX:
            kept.popitem(last=False)
    return value


def _coarse(place: Place) -> Place:
    """The place to a tenth of a degree: 11 km change no choice, and neighbours share one."""
    return replace(place, latitude=round(place.latitude, 1), longitude=round(place.longitude, 1))


def _line(result: object) -> bytes:
    return json.dumps({"result": result}, separators=(",", ":")).encode() + b"\n"


_NOTHING = _line([])


@asynccontextmanager
async def serving(path: Path, mode: int, answers: Answers) -> AsyncIterator[None]:
    """Answer at a Unix socket while the block runs. Raises `ConfigError` if it cannot be made."""
    connections: set[asyncio.StreamWriter] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(connections) >= CONNECTIONS_MAX:
            writer.close()
            return
        connections.add(writer)
        try:
            await _talk(reader, writer, answers)
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
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: Answers
) -> None:
    try:
        while line := await reader.readline():
            if line.strip():
                writer.write(answers.reply(line))
                await writer.drain()
    except Trouble as trouble:
        logger.warning("SERVFAIL: %s", trouble)
    except ValueError:
        logger.warning("SERVFAIL: a line above %d bytes", LINE_BYTES_MAX)
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
