"""`firstlight bench engine`: what an engine does under load, ours and others by the same client.

Always through an OpenAI-compatible HTTP API with streams. Without a URL a mesh of one core and one
edge is started, and asked as any client would ask it; a peer is measured after it, with the same
prompts. All runs one after the other, nothing beside it but who else uses the machine, and what
they took is told.
"""

import asyncio
import json
import signal
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext
from typing import Any

from firstlight.infra.bench.engine import processes
from firstlight.infra.bench.engine.client import open_server
from firstlight.infra.bench.engine.measure import PERPLEXITY, Report, chosen, measure
from firstlight.infra.bench.engine.own import own_mesh
from firstlight.infra.bench.engine.peer import peer_command, running_peer
from firstlight.infra.bench.engine.prompts import Prompts
from firstlight.infra.bench.engine.report import as_object, ratio, table
from firstlight.infra.bench.machine import heading
from firstlight.shared.config import state_dir
from firstlight.shared.errors import ConfigError
from firstlight.shared.lifecycle import loop_factory
from firstlight.shared.model_files import default_model_path
from firstlight.shared.text.tokenizer import load_tokenizer

TERMINATED = 143
"""Exit code after SIGTERM, as of every command."""


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    url: str | None = None
    model: str | None = None
    key: str | None = None
    pid: int | None = None
    threads: int = 1
    repeats: int = 3
    only: str | None = None
    classes: str = "bf16,auto"
    peer: str | None = None
    seed: int = 1
    as_json: bool = False


def run_engine(options: Options) -> int:
    """The command. Raises `FirstlightError` for what cannot be measured."""
    parts, classes = chosen(options.only), _classes(options)
    if options.peer is not None:
        peer_command(options.peer, 0)
    print(heading(), flush=True)
    prompts = Prompts(load_tokenizer(default_model_path()), options.seed)
    ours = _theirs(options, parts, prompts) if options.url else _own(options, parts, prompts)
    peer = _peer(options, parts, prompts) if options.peer is not None else None
    perplexities = _perplexities(classes, options.threads) if PERPLEXITY in parts else {}
    print()
    for line in table(ours, peer):
        print(line)
    if perplexities:
        told = ", ".join(f"{name} {value:.4f}" for name, value in perplexities.items())
        print(f"perplexity  {told}, ratio {ratio(perplexities)}")
    if options.as_json:
        found: dict[str, Any] = as_object(ours, perplexities)
        print(json.dumps(found | ({"peer": as_object(peer, {})} if peer else {})), flush=True)
    return 0 if ours.sound else 1


def _classes(options: Options) -> list[str]:
    """Classes of weights whose perplexity is wanted; none of a server whose model is not here."""
    names = [name.strip() for name in options.classes.split(",") if name.strip()]
    unknown = [name for name in names if name not in ("auto", "q4", "q8", "bf16", "f32")]
    if unknown or not names:
        raise ConfigError(f"--classes {options.classes!r}: some of auto, q4, q8, bf16, f32 wanted")
    return [] if options.url else names


def _own(options: Options, parts: tuple[str, ...], prompts: Prompts) -> Report:
    if not set(parts) - {PERPLEXITY}:
        return Report()
    with own_mesh(state_dir(), options.threads, _say) as own:
        _say(f"ours at {own.url}, {options.threads} threads")
        report = _measure(own.url, options, parts, prompts, verify=own.verify, pids=own.pids)
        edge = processes.memory_mb([own.edge])
        report.memory_mb = {
            **processes.memory_mb([own.core]),
            "edge_rss": edge["rss"],
            "edge_pss": edge["pss"],
        }
    return report


def _theirs(options: Options, parts: tuple[str, ...], prompts: Prompts) -> Report:
    assert options.url is not None
    pids = None if options.pid is None else (options.pid,)
    report = _measure(options.url, options, parts, prompts, verify=True, pids=pids)
    if pids is not None:
        report.memory_mb = processes.memory_mb(pids)
    return report


def _peer(options: Options, parts: tuple[str, ...], prompts: Prompts) -> Report:
    assert options.peer is not None
    with running_peer(options.peer, state_dir()) as peer:
        _say(f"the peer at {peer.url}")
        alone = Options(repeats=options.repeats)
        report = _measure(peer.url, alone, parts, prompts, verify=True, pids=(peer.pid,))
        report.memory_mb = processes.memory_mb((peer.pid,))
    return report


def _measure(
    url: str,
    options: Options,
    parts: tuple[str, ...],
    prompts: Prompts,
    *,
    verify: SSLContext | bool,
    pids: tuple[int, ...] | None,
) -> Report:
    async def measured() -> Report:
        async with open_server(url, model=options.model, key=options.key, verify=verify) as server:
            return await measure(server, parts, options.repeats, prompts, pids=pids, say=_say)

    return _to_its_end(measured())


def _to_its_end(work: Coroutine[None, None, Report]) -> Report:
    """Run it on a loop that SIGTERM ends in order, so that what was started is ended too."""

    async def ending() -> Report:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    before = signal.getsignal(signal.SIGTERM)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(ending())
    except asyncio.CancelledError:
        raise SystemExit(TERMINATED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _perplexities(classes: list[str], threads: int) -> dict[str, float]:
    from firstlight.infra.bench.engine.perplexity import perplexities

    if not classes:
        return {}
    path: Path = default_model_path()
    _say(f"perplexity of {path.name} with weights {', '.join(classes)}")
    return perplexities(path, classes, threads)


def _say(line: str) -> None:
    print(line, flush=True)
