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
from pathlib import Path
from typing import Any

from firstlight.global_lb.dns import Record, Trouble, Zone, lookup
from firstlight.global_lb.dns_table import Table
from firstlight.shared import telemetry
from firstlight.shared.errors import ConfigError
from firstlight.shared.geography.geoip import Geoip
from firstlight.shared.geography.subnets import Network, subnet_of

LINE_BYTES_MAX = 64 << 10
CONNECTIONS_MAX = 64
KEPT_MAX = 10_000
DOMAIN_ID = 1

logger = logging.getLogger("firstlight.dns")

_Asked = tuple[str, str, Network, int, int]


class Answers:
    """Answers to lines of the protocol. Raises `Trouble` where the connection shall break."""

    def __init__(self, zone: Zone, table: Callable[[], Table | None], geoip: Geoip) -> None:
        self._zone, self._table, self._geoip = zone, table, geoip
        self._kept: OrderedDict[_Asked, list[dict[str, Any]]] = OrderedDict()

    def reply(self, line: bytes) -> bytes:
        """The answer to one line."""
        try:
            question = json.loads(line)
            method, parameters = question["method"], question.get("parameters", {})
            result = self._result(method, parameters)
        except Trouble:
            telemetry.DNS_LOOKUPS.labels(fate="failed").inc()
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            telemetry.DNS_LOOKUPS.labels(fate="failed").inc()
            raise Trouble(f"not a question: {type(error).__name__}: {error}") from None
        return json.dumps({"result": result}, separators=(",", ":")).encode() + b"\n"

    def _result(self, method: str, parameters: Mapping[str, Any]) -> object:
        match method:
            case "lookup":
                return self._lookup(parameters)
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

    def _lookup(self, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
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
        known = self._kept.get(asked)
        if known is None:
            known = self._kept[asked] = self._made(table, name, qtype, client)
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        telemetry.DNS_LOOKUPS.labels(fate="answered" if known else "empty").inc()
        return known

    def _made(
        self, table: Table | None, name: str, qtype: str, client: Network
    ) -> list[dict[str, Any]]:
        found = self._geoip.find(client.network_address)
        place = None if found is None else found.place
        return [_record(one) for one in lookup(self._zone, table, name, qtype, client, place)]


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
