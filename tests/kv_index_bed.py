"""The bed of tests of the KV index: a real server, cores' views of it, and what stands between."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from firstlight.core_node.kv.index import IndexConfig, KvIndex, connect_index
from firstlight.core_node.kv.index_keys import Holder
from firstlight.infra.children import Child
from firstlight.infra.ports import free_ports
from firstlight.infra.valkey import ValkeyPlan, start_valkey, wait_answering
from firstlight.shared import redis_client, telemetry
from firstlight.shared.redis_client import Client, Command, RedisConfig

EPOCH = 7
NAMESPACE = "0123456789abcdef"
NODES = ("one", "two", "three")
CHAIN = [random.Random(number).randbytes(16) for number in range(64)]
LOGGER = "firstlight.kv.index"


class Server:
    """A server that can be ended and started again at its port."""

    def __init__(self, run: Path, more: str = "") -> None:
        (port,) = free_ports(1, random.SystemRandom())
        self.plan = ValkeyPlan("valkey", "eu", "127.0.0.1", port)
        self._run, self._more = run, more
        self._children: list[Child] = []
        self.start()

    @property
    def config(self) -> IndexConfig:
        """For who knows the password."""
        password_file = self.plan.password_file(self._run)
        return IndexConfig(RedisConfig(self.plan.url, password_file), timeout_s=0.25)

    def start(self) -> None:
        self._children.append(start_valkey(self.plan, self._run, more=self._more))
        wait_answering(self._children[-1], self.plan)

    def signal(self, number: int) -> None:
        self._children[-1].process.send_signal(number)

    def end(self) -> None:
        for child in self._children:
            child.kill()
            child.wait(10)
            child.close()


@asynccontextmanager
async def running(
    config: IndexConfig, node: str, *, epoch: int = EPOCH, leave: bool = True
) -> AsyncIterator[KvIndex]:
    """A node's index that lives; `leave=False`: it dies at the end without a word."""
    client = connect_index("kv.index", config)
    index = KvIndex(
        client, namespace=NAMESPACE, node=node, epoch=epoch, peers=lambda: NODES, config=config
    )
    stop = asyncio.Event()
    task = asyncio.create_task(index.run(stop))
    try:
        yield index
    finally:
        if leave:
            stop.set()
        else:
            task.cancel()
        await asyncio.wait((task,))
        await index.close()
        assert task.cancelled() or task.exception() is None


async def until(condition: Callable[[], Awaitable[Any]], timeout_s: float = 30.0) -> Any:
    """What the condition gives once it is true."""
    deadline = monotonic() + timeout_s
    while not (value := await condition()):
        assert monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.02)
    return value


async def found(index: KvIndex, hashes: list[bytes]) -> tuple[Holder, ...]:
    """The holders, once there are any."""
    holders: tuple[Holder, ...] = await until(lambda: index.lookup(hashes))
    return holders


async def lost(index: KvIndex, hashes: list[bytes]) -> None:
    """Until there is no holder."""

    async def nobody() -> bool:
        return await index.lookup(hashes) == ()

    await until(nobody)


@asynccontextmanager
async def talking(config: IndexConfig) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Says one command to the server, as an operator would."""
    client: Client | None = redis_client.connect("redis", config.redis, timeout_s=5.0)
    assert client is not None

    async def say(*words: str | bytes | int) -> Any:
        commands: list[Command] = [words]
        (reply,) = await redis_client.ask(client, commands, timeout_s=5.0)
        return reply

    yield say
    await client.aclose()


def fates() -> dict[str, float]:
    values = {fate: telemetry.KV_INDEX_LOOKUPS.labels(fate=fate) for fate in ("hit", "miss", "off")}
    return {fate: counter._value.get() for fate, counter in values.items()}


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


class Relay:
    """Stands between a client and the server: counts, cuts after so many bytes, or talks rot."""

    def __init__(self, config: IndexConfig, port: int, behind: int) -> None:
        redis = replace(config.redis, url=f"redis://127.0.0.1:{port}")
        self.config = replace(config, redis=redis)
        self.cut_after: int | None = None
        """Bytes of replies to the next question; then the connection ends."""
        self.garbage = b""
        """What comes instead of a reply."""
        self.turns = 0
        self.connections = 0
        self._behind = behind
        self._asked = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._behind)
        up = asyncio.create_task(self._up(reader, back))
        try:
            while data := await there.read(1 << 16):
                self._asked = False
                if self.garbage:
                    data = self.garbage
                if self.cut_after is not None:
                    data = data[: self.cut_after]
                writer.write(data)
                await writer.drain()
                if self.cut_after is not None:
                    self.cut_after = None
                    break
        except OSError:
            pass
        finally:
            up.cancel()
            await asyncio.wait((up,))
            back.close()
            writer.close()

    async def _up(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                self.turns += not self._asked
                self._asked = True
                back.write(data)
                await back.drain()
        except OSError:
            pass
        back.close()


@asynccontextmanager
async def relayed(server: Server) -> AsyncIterator[Relay]:
    tasks: set[asyncio.Task[None]] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(relay.serve(reader, writer)))

    (port,) = free_ports(1, random.SystemRandom())
    relay = Relay(server.config, port, server.plan.port)
    listening = await asyncio.start_server(serve, "127.0.0.1", port)
    try:
        yield relay
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
