"""An edge process from start to end.

Loads the tokenizer, joins the load balancers, keeps warm links to the cores that they name, serves
HTTP/3 and TCP, says that it is ready; and when told to stop, lets running answers finish.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import SystemRandom

from firstlight.edge_node import meter
from firstlight.edge_node.config import EdgeSettings, is_loopback
from firstlight.edge_node.control import EdgeControl, load_of
from firstlight.edge_node.drafting import drafters_of
from firstlight.edge_node.history import edge_figures, note_refused
from firstlight.edge_node.http.fronts import Fronts
from firstlight.edge_node.journal import Journal
from firstlight.edge_node.openai.routes import create_app
from firstlight.edge_node.pipeline import Pipeline
from firstlight.edge_node.resume import Seals
from firstlight.edge_node.route import CoreRouter
from firstlight.edge_node.tenants import Salts, Tenants
from firstlight.edge_node.timeline import Timelines
from firstlight.edge_node.upstream.pool import LinkPool
from firstlight.edge_node.view import MeshMemory
from firstlight.shared import lifecycle, rpc, telemetry
from firstlight.shared.clock import monotonic_s
from firstlight.shared.config import state_dir
from firstlight.shared.door import failing
from firstlight.shared.engine.timed_ids import whole_texts
from firstlight.shared.geography.desk import Desk
from firstlight.shared.geography.geoip import Geoip
from firstlight.shared.geography.signing import load_signer
from firstlight.shared.geography.site import guess_rtt_ms
from firstlight.shared.history_file import History, history_of, sampling
from firstlight.shared.keys import read_keys
from firstlight.shared.model_files import default_model_path
from firstlight.shared.redis_client import connect
from firstlight.shared.routing.cost import RTT_PRIOR_MS
from firstlight.shared.routing.work import typical_weight
from firstlight.shared.text.chat import ChatEncoder, load_chat_template
from firstlight.shared.text.tokenizer import Tokenizer, load_tokenizer
from firstlight.shared.tls import front_files, node_files
from firstlight.shared.types import Demand, NodeInfo, Report, Role

WEIGHED_MAX = 64
"""Cores whose speed says what an answer's token weighs."""


async def main(settings: EdgeSettings, stop: asyncio.Event) -> None:
    """Serve until `stop`, then drain. Raises `ConfigError` for what cannot be served."""
    with history_of(settings.history, settings.node, Role.EDGE) as history:
        async with failing(settings.faults):
            await _main(settings, stop, history)


async def _main(settings: EdgeSettings, stop: asyncio.Event, history: History | None) -> None:
    host, port = rpc.split_address(settings.listen)
    tenants = Tenants.load(settings.keys.tenants_file, loopback=is_loopback(host))
    directory = settings.tls.directory or state_dir() / "tls"
    names = _names(settings, host)
    files = node_files(settings.tls, Role.EDGE, settings.node, names, default_directory=directory)
    salts, seals = _keys(settings, directory)
    tokenizer, encode_chat = await asyncio.to_thread(_load_text, settings.tokenizer.path)
    memory, rng = MeshMemory(), SystemRandom()
    connect_core = partial(rpc.channel, files=files, peer_role=Role.CORE)
    pool = LinkPool(
        memory,
        connect_core,
        rng,
        history=history,
        config=settings.links,
        rtt_prior_ms=partial(guess_rtt_ms, settings.site, otherwise_ms=RTT_PRIOR_MS),
    )
    router = CoreRouter(
        pool,
        region=settings.region,
        tokenizer_hash=tokenizer.hash,
        rng=rng,
        sketch_of=memory.sketch,
        spill_row=lambda: memory.row(settings.region, monotonic_s()),
    )
    pipeline = Pipeline(
        edge=settings.node,
        region=settings.region,
        router=router,
        tokenizer_hash=tokenizer.hash,
        eos_ids=frozenset(tokenizer.eos_ids),
        token_bytes=tokenizer.token_bytes,
        salt_of=salts.of,
        rng=rng,
        history=history,
        drafters=drafters_of(
            settings.drafting, partial(whole_texts, tokenizer.vocab, tokenizer.token_bytes)
        ),
    )
    journal_client = connect(
        "journal.redis", settings.journal.redis, timeout_s=settings.journal.timeout_s
    )
    journal = None if journal_client is None else Journal(settings.journal, journal_client, seals)
    metrics = is_loopback(host) if settings.metrics is None else settings.metrics
    desk = _desk(settings, memory, directory)
    app = create_app(
        pipeline,
        tokenizer,
        encode_chat,
        router.models,
        tenants,
        seals,
        streams=settings.streams,
        journal=journal,
        not_ready=lambda: None if router.models() else "no core is linked yet",
        metrics=telemetry.render if metrics else None,
        on_access=meter.answered,
        on_failure=None if history is None else partial(note_refused, history),
        entropy=rng,
        timelines=Timelines(settings.timelines),
        desk=desk,
    )
    front = front_files(
        settings.front, settings.tls, settings.node, names, default_directory=directory
    )
    fronts = Fronts(app, host, port, front.cert, front.key, settings.http)
    await fronts.start()
    try:
        info = _info(settings, f"{settings.listen.rpartition(':')[0]}:{fronts.port}", tokenizer)
        load = partial(load_of, pipeline.answers, stop)
        desk.own = lambda: Report(info, 0, load(), router.round_trips())
        control = EdgeControl(
            info,
            files,
            settings.load_balancers,
            memory,
            load=load,
            rtt_ms=router.round_trips,
            demand=partial(_demand, pipeline, pool),
            rng=rng,
        )
        async with AsyncExitStack() as beside:
            await beside.enter_async_context(
                sampling(history, partial(edge_figures, pipeline.answers, pool))
            )
            if journal is not None:
                await beside.enter_async_context(lifecycle.beside(journal.run(), stop))
            await beside.enter_async_context(lifecycle.beside(desk.keep(stop), stop))
            await beside.enter_async_context(lifecycle.beside(pool.run(), stop))
            await beside.enter_async_context(control.member(stop))
            lifecycle.ready(settings.node, info.address)
            await stop.wait()
            await fronts.drain(settings.drain_s)
    finally:
        await fronts.stop()
        if journal_client is not None:
            await journal_client.aclose()


def _demand(pipeline: Pipeline, pool: LinkPool) -> Demand:
    """What arrives here, an answer's token weighed as on the cores that are linked."""
    weight = typical_weight(link.load for link in pool.links[:WEIGHED_MAX])
    return pipeline.arrivals.demand(monotonic_s(), weight=weight)


def _keys(settings: EdgeSettings, directory: Path) -> tuple[Salts, Seals]:
    keys = settings.keys
    salt, *_ = read_keys("keys.salt_file", keys.salt_file, default=directory / "salt.key")
    stream_keys = read_keys("keys.stream_file", keys.stream_file, default=directory / "stream.key")
    return Salts(salt, settings.sharing.groups), Seals(stream_keys)


def _desk(settings: EdgeSettings, memory: MeshMemory, directory: Path) -> Desk:
    geoip = Geoip(settings.geoip.directory or state_dir() / "geoip")
    signer = load_signer(settings.keys.directory_file, directory)
    return Desk(settings.node, lambda: memory.reports(monotonic_s()), geoip, signer)


def _load_text(path: Path | None) -> tuple[Tokenizer, ChatEncoder]:
    source = path or default_model_path()
    tokenizer = load_tokenizer(source)
    return tokenizer, ChatEncoder(load_chat_template(source), tokenizer)


def _names(settings: EdgeSettings, host: str) -> Sequence[str]:
    advertised = [] if settings.advertise is None else [rpc.split_address(settings.advertise)[0]]
    return sorted({host, "localhost", *advertised} - {"0.0.0.0", "::"})


def _info(settings: EdgeSettings, listening: str, tokenizer: Tokenizer) -> NodeInfo:
    return NodeInfo(
        node=settings.node,
        role=Role.EDGE,
        incarnation=lifecycle.incarnation(),
        region=settings.region,
        address=settings.advertise or listening,
        tokenizer_hash=tokenizer.hash,
        place=settings.site.place,
        failure_domain=settings.site.failure_domain,
        ips=settings.site.ips,
    )
