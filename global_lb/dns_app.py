"""The process beside a name server: asks its sources each second, answers from what they said."""

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from firstlight.global_lb.dns_backend import Answers, serving
from firstlight.global_lb.dns_config import DnsSettings
from firstlight.global_lb.dns_table import TableKeeper
from firstlight.shared import lifecycle, telemetry
from firstlight.shared.clock import monotonic_s
from firstlight.shared.config import state_dir
from firstlight.shared.errors import ConfigError
from firstlight.shared.geography.geoip import Geoip
from firstlight.shared.geography.signing import HEADER, STEERING, Signer, is_signed, load_signer

ASK_EVERY_S = 1.0
ANSWER_S = 0.9
BODY_BYTES_MAX = 16 << 20
GEOIP_EVERY_S = 5.0

logger = logging.getLogger("firstlight.dns")


@dataclass(slots=True)
class _Source:
    url: str
    body: bytes = b""
    document: Mapping[str, Any] = field(default_factory=dict)
    well: bool = True


class _Wrong(Exception):
    """A source's answer that cannot be used."""


class Sources:
    """Load balancers and edges, asked for the table that DNS needs."""

    def __init__(self, urls: tuple[str, ...], client: httpx.AsyncClient, signer: Signer) -> None:
        self._sources = [_Source(url.rstrip("/")) for url in dict.fromkeys(urls)]
        self._client, self._signer = client, signer

    async def ask(self) -> list[Mapping[str, Any]]:
        """The documents of all that answered in time with what they signed."""
        told = await asyncio.gather(*(self._ask(source) for source in self._sources))
        return [document for document in told if document is not None]

    async def _ask(self, source: _Source) -> Mapping[str, Any] | None:
        try:
            async with asyncio.timeout(ANSWER_S):
                document = await self._told(source)
        except (httpx.HTTPError, TimeoutError, _Wrong) as error:
            if source.well:
                logger.warning("%s: %s", source.url, str(error) or type(error).__name__)
            source.well = False
            return None
        if not source.well:
            logger.info("%s answers again", source.url)
        source.well = True
        return document

    async def _told(self, source: _Source) -> Mapping[str, Any]:
        headers = {"authorization": f"Bearer {self._signer.token}"}
        body = b""
        async with self._client.stream("GET", f"{source.url}/v1/steering", headers=headers) as got:
            if got.status_code != 200:
                raise _Wrong(f"answers {got.status_code}")
            async for chunk in got.aiter_bytes():
                body += chunk
                if len(body) > BODY_BYTES_MAX:
                    raise _Wrong(f"answers more than {BODY_BYTES_MAX} bytes")
            signature = got.headers.get(HEADER, "")
        if body == source.body:
            return source.document
        if not is_signed(signature, STEERING, body, self._signer.public):
            raise _Wrong("what it answers is not signed with our key")
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            raise _Wrong("what it answers is no JSON") from None
        if not isinstance(document, dict) or document.get("object") != "steering":
            raise _Wrong("what it answers is no table")
        source.body, source.document = body, document
        return document


async def main(settings: DnsSettings, stop: asyncio.Event) -> None:
    """Serve until `stop`. Raises `ConfigError` for what cannot be served."""
    directory = state_dir() / "tls"
    geoip = Geoip(settings.geoip.directory or state_dir() / "geoip")
    await asyncio.to_thread(geoip.refresh)
    keeper = TableKeeper()
    answers = Answers(settings.zone.zone, lambda: keeper.table, geoip)
    async with AsyncExitStack() as beside:
        sources = await beside.enter_async_context(_sources(settings, directory))
        keeping = _keep(sources, keeper, stop)
        await beside.enter_async_context(lifecycle.beside(keeping, stop))
        await beside.enter_async_context(lifecycle.beside(_watch(geoip, stop), stop))
        mode = int(settings.socket_mode, 8)
        await beside.enter_async_context(serving(settings.socket, mode, answers))
        lifecycle.ready("dns", str(settings.socket))
        await stop.wait()


@asynccontextmanager
async def _sources(settings: DnsSettings, directory: Path) -> AsyncIterator[Sources]:
    signer = load_signer(settings.keys.directory_file, directory)
    ca_file = settings.ca_file or directory / "ca" / "cert.pem"
    try:
        verify = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"ca_file: {ca_file}: {error}") from None
    async with httpx.AsyncClient(verify=verify, timeout=ANSWER_S, trust_env=False) as client:
        yield Sources(settings.sources, client, signer)


async def _keep(sources: Sources, keeper: TableKeeper, stop: asyncio.Event) -> None:
    confirmed_at = monotonic_s()
    telemetry.DNS_TABLE_AGE_SECONDS.set_function(lambda: monotonic_s() - confirmed_at)
    while not stop.is_set():
        asked_at = monotonic_s()
        told = await sources.ask()
        if told:
            confirmed_at = monotonic_s()
        if keeper.take(told, monotonic_s()) and keeper.table is not None:
            names = ", ".join(one.edge.info.node for one in keeper.table.edges)
            logger.info("table %d: %s", keeper.table.epoch, names)
            telemetry.DNS_EDGES.set(len(keeper.table.edges))
        await _wait(stop, asked_at + ASK_EVERY_S - monotonic_s())


async def _watch(geoip: Geoip, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await _wait(stop, GEOIP_EVERY_S)
        await asyncio.to_thread(geoip.refresh)


async def _wait(stop: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), max(0.0, timeout_s))
    except TimeoutError:
        return
