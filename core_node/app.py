"""A core process from start to end. Start reading here.

Loads the model, starts the engine's thread, serves the links, joins the load balancers, says that
it is ready; and when told to stop, finishes what runs, or hands it to other cores.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from random import Random

import grpc.aio

from firstlight.core_node.admin import Admin
from firstlight.core_node.backends.backend import Backend, Batch
from firstlight.core_node.backends.failing import FailingBackend, HangingRunner
from firstlight.core_node.backends.native import NativeBackend
from firstlight.core_node.backends.timed import load_timed
from firstlight.core_node.config import CoreSettings
from firstlight.core_node.history import CoreHistory, core_figures
from firstlight.core_node.kv.disk import DiskTier
from firstlight.core_node.kv.index import connect_index
from firstlight.core_node.kv.memory import KvMemory
from firstlight.core_node.kv.seal import BlockSeals
from firstlight.core_node.loaded import Loaded
from firstlight.core_node.meter import Meter
from firstlight.core_node.server import LinkServer
from firstlight.shared import lifecycle, rpc
from firstlight.shared.config import state_dir
from firstlight.shared.door import failing
from firstlight.shared.engine.plan import Runner
from firstlight.shared.errors import ConfigError, DiedError
from firstlight.shared.faults import CLOCK, SWITCHES, Failing
from firstlight.shared.history_file import History, history_of, sampling
from firstlight.shared.join import Joiner
from firstlight.shared.keys import read_keys
from firstlight.shared.tls import NodeFiles, node_files
from firstlight.shared.types import NodeInfo, Role

DISK_CLOSE_S = 3.0
"""How long a core that stops waits for what is on its way to the disk."""
CLOSE_S = 0.2
"""How long links may take to close by themselves."""


async def main(settings: CoreSettings, stop: asyncio.Event) -> None:
    """Serve until `stop`, then drain. Raises `ConfigError`, or `DiedError` if the engine fails."""
    with history_of(settings.history, settings.node, Role.CORE) as history:
        async with failing(settings.faults, (*SWITCHES, CLOCK)) as state:
            await _main(settings, stop, history, state)


async def _main(
    settings: CoreSettings, stop: asyncio.Event, history: History | None, state: Failing | None
) -> None:
    if settings.drafting.oracle is not None and settings.model.timed is None:
        raise ConfigError("drafting.oracle is given, expected null: it foretells model.timed alone")
    host, _ = rpc.split_address(settings.listen)
    files = node_files(
        settings.tls,
        Role.CORE,
        settings.node,
        _names(settings, host),
        default_directory=state_dir() / "tls",
    )
    rpc.check_free(settings.listen)  # now, not after the model is loaded
    index = connect_index("kv.index", settings.kv.index)
    mac_keys = read_keys(
        "kv.mac_key_file",
        settings.kv.mac_key_file,
        default=(settings.tls.directory or state_dir() / "tls") / "block.key",
    )
    loaded = await asyncio.to_thread(_load, settings, state)
    seals = BlockSeals(mac_keys, loaded.namespace)
    disk = await asyncio.to_thread(_open_disk, settings, seals, loaded.engine.block_bytes)
    backend = NativeBackend(
        loaded.engine,
        loaded.offer,
        hint_ids_max=loaded.hint_ids_max,
        drafting=settings.drafting,
        foretold=loaded.foretold,
        below=disk,
        prepare=loaded.prepare,
    )
    info = NodeInfo(
        node=settings.node,
        role=Role.CORE,
        incarnation=lifecycle.incarnation(),
        region=settings.region,
        address=settings.advertise or settings.listen,
        numerics_class=loaded.numerics_class,
        models=loaded.offer.models,
        tokenizer_hash=loaded.offer.tokenizer_hash,
        context_max=loaded.offer.context_max,
        place=settings.site.place,
        failure_domain=settings.site.failure_domain,
    )
    memory = KvMemory(
        settings.kv.index,
        index,
        info,
        backend,
        disk=disk,
        seals=seals,
        block_bytes=loaded.engine.block_bytes,
        ways=settings.kv.ways,
        connect=partial(rpc.channel, files=files, peer_role=Role.CORE),
    )
    try:
        await _serve(settings, stop, backend, memory, info, files, history, state)
    finally:
        if disk is not None:
            await asyncio.to_thread(disk.close, DISK_CLOSE_S)


def _load(settings: CoreSettings, state: Failing | None) -> Loaded:
    """Off the event loop, and after all that can be checked without: torch takes seconds."""

    def around(runner: Runner) -> Runner:
        return runner if state is None else HangingRunner(runner, state)

    if settings.model.timed is not None:
        return load_timed(settings.model, settings.engine, around)
    from firstlight.core_node.loading import load_engine

    return load_engine(settings.model, settings.engine, around)


def _open_disk(settings: CoreSettings, seals: BlockSeals, block_bytes: int) -> DiskTier | None:
    if settings.kv.disk.directory is None:
        return None
    return DiskTier(settings.kv.disk, seals=seals, block_bytes=block_bytes)


async def _serve(
    settings: CoreSettings,
    stop: asyncio.Event,
    backend: NativeBackend,
    memory: KvMemory,
    info: NodeInfo,
    files: NodeFiles,
    history: History | None = None,
    state: Failing | None = None,
) -> None:
    meter = Meter(info.models[0])
    story = None if history is None else CoreHistory(history, info.numerics_class)
    seen: Backend = backend if state is None else FailingBackend(backend, state)
    server = LinkServer(seen, info, meter, history=story)
    admin = Admin(backend, meter, server.load, memory.disk_blocks, node=info.node)

    def deliver(batch: Batch) -> None:
        server.deliver(batch)
        memory.deliver(batch)

    def add_to(listening: grpc.aio.Server) -> None:
        server.add_to(listening)
        memory.service.add_to(listening)

    loop = asyncio.get_running_loop()
    failed: asyncio.Future[BaseException] = loop.create_future()
    listening = await rpc.server(settings.listen, files, add_to)
    backend.start(loop, deliver, failed.set_result)
    try:
        if settings.advertise is None:
            host = settings.listen.rpartition(":")[0]
            server.info = replace(info, address=f"{host}:{listening.port}")
        async with (
            memory.serving(stop),
            sampling(history, partial(core_figures, backend, server, memory.disk_blocks)),
            _admin(settings.admin, admin) as where,
            _joiner(settings, server, memory, files).member(stop),
        ):
            lifecycle.ready(settings.node, server.info.address, **where)
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait((stopping, failed), return_when=asyncio.FIRST_COMPLETED)
            if not failed.done():
                draining = asyncio.create_task(server.drain(settings.drain_s))
                await asyncio.wait((draining, failed), return_when=asyncio.FIRST_COMPLETED)
                if draining.done():
                    draining.result()
                draining.cancel()
            stopping.cancel()
            if failed.done():
                await _give_up(server, failed.result())
    finally:
        await listening.server.stop(CLOSE_S)
        if state is not None:
            state.end()  # an engine that hangs could not end
        backend.stop()


async def _give_up(server: LinkServer, error: BaseException) -> None:
    """The engine is not to be trusted any more: send all that runs elsewhere, and end."""
    message = f"core {server.info.node}: the engine failed: {type(error).__name__}: {error}"
    server.fail_all(DiedError(message))
    await server.flush()
    raise DiedError(message)


@asynccontextmanager
async def _admin(address: str | None, admin: Admin) -> AsyncIterator[dict[str, str]]:
    """The admin listener, if there is to be one; yields where it is, for the ready line."""
    if address is None:
        yield {}
        return
    port = await admin.start(address)
    try:
        yield {"admin": f"{address.rpartition(':')[0]}:{port}"}
    finally:
        await admin.stop()


def _joiner(
    settings: CoreSettings, server: LinkServer, memory: KvMemory, files: NodeFiles
) -> Joiner:
    return Joiner(
        server.info,
        files,
        settings.load_balancers,
        load=server.load,
        sketch=lambda: memory.sketch,
        on_view=memory.seen,
        on_drain=server.tell_drain,
        rng=Random(f"{settings.node} {server.info.incarnation}"),
    )


def _names(settings: CoreSettings, host: str) -> list[str]:
    """What the development certificate is made for; `ConfigError` for an address of no use."""
    if settings.advertise is not None:
        advertised, _ = rpc.split_address(settings.advertise)
        return sorted({host, advertised, "localhost"} - {""})
    try:
        wildcard = ip_address(host).is_unspecified
    except ValueError:
        wildcard = False
    if wildcard and settings.load_balancers:
        raise ConfigError(f"advertise is null, but edges cannot reach a core at {settings.listen}")
    return sorted({host, "localhost"})
