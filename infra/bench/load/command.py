"""`firstlight bench load`: an open-loop load on any server with OpenAI's API, and what came of it.

One server, or two in turn (A B A B) with the same schedule. Blocks have the same lengths, times
and sharing, but words of their own: nothing is asked that a cache could have kept from the block
before, not even if both names lead to one server.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from math import isfinite
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

from firstlight.infra.bench.load.compare import Ratio, ratios
from firstlight.infra.bench.load.figures import Sla
from firstlight.infra.bench.load.progress import Watcher
from firstlight.infra.bench.load.prompts import TracePrompts, Vocabulary
from firstlight.infra.bench.load.report import Asked, Report, Schedule, Side, block
from firstlight.infra.bench.load.report_html import page
from firstlight.infra.bench.load.report_table import table
from firstlight.infra.bench.load.run import Load, Stop, cold_ones, run_load
from firstlight.infra.bench.load.schedule import Arrival, Cut, fitted, poisson, replayed, steady
from firstlight.infra.bench.load.target import Api, Target, Where, reach
from firstlight.infra.bench.load.traces import parse
from firstlight.infra.bench.machine import heading
from firstlight.infra.bench.outputs import check_output
from firstlight.infra.client.response import HttpVersion
from firstlight.infra.running import known_ca, read_running
from firstlight.shared.clock import unix_s
from firstlight.shared.config import state_dir
from firstlight.shared.errors import ConfigError, FirstlightError, PeerError
from firstlight.shared.lifecycle import loop_factory
from firstlight.shared.model_files import default_model_path
from firstlight.shared.text.tokenizer import load_tokenizer

CHAT_TOKENS = 64
"""Room for what a chat's template adds."""
DURATION_S = 30.0
LEARN_S = 60.0
"""For a server that says who it is, and answers one token."""
_CODES = {"SIGINT": 130, "SIGTERM": 143}


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    url: str | None = None
    against: str | None = None
    against_http: HttpVersion | None = None
    against_model: str | None = None
    against_key: str | None = None
    blocks: int = 2
    http: HttpVersion = "1"
    api: Api = "completions"
    model: str | None = None
    key: str | None = None
    ca: Path | None = None
    rate: float | None = None
    arrivals: str = "poisson"
    duration_s: float | None = None
    tokens_in: int = 200
    tokens_out: int = 64
    trace: Path | None = None
    speed: float = 1.0
    limit: int | None = None
    tokens_in_max: int | None = None
    tokens_out_max: int | None = None
    tokenizer: Path | None = None
    connections: str = "warm"
    outstanding_max: int = 512
    timeout_s: float = 120.0
    sla: Sla = field(default_factory=Sla)
    seed: int = 1
    json: str | None = None
    html: Path | None = None


def run_load_command(options: Options) -> int:
    """The command. Raises `FirstlightError` for what cannot be measured."""
    _check_numbers(options)
    for out in (options.html, options.json):
        if out is not None and out != "-":
            check_output(Path(out))
    asked = _wheres(options)
    wanted = _arrivals(options)
    words = Vocabulary(load_tokenizer(options.tokenizer or default_model_path()))
    told, begun_unix_s = heading(), unix_s()
    say = sys.stderr if options.json == "-" else sys.stdout
    print(told, file=say, flush=True)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        arrivals, sides, cut_short = runner.run(_measure(options, asked, wanted, words))
    if not any(side.runs for side in sides):
        raise SystemExit(_CODES.get(cut_short or "", 1))
    report = Report(
        heading=told,
        begun_unix_s=begun_unix_s,
        cut_short=cut_short,
        schedule=_schedule(options, arrivals),
        sla=options.sla,
        sides=sides,
        ratios=_ratios(options, sides),
    )
    print("\n" + "\n".join(table(report)), file=say, flush=True)
    _write(options, report)
    if cut_short is not None:
        return _CODES.get(cut_short, 1)
    return 0 if all(any(r.answered for r in side.records) for side in sides) else 1


async def _measure(
    options: Options, asked: list[Where], wanted: tuple[Arrival, ...], words: Vocabulary
) -> tuple[tuple[Arrival, ...], list[Side], str | None]:
    """All blocks, one after the other; the arrivals as the servers can take them."""
    stop, sides, arrivals = Stop(), list[Side](), wanted
    with _on_signals(stop.ask), Watcher() as watcher:
        contexts = []
        for where in asked:
            if (target := await _connect(where, stop)) is None:
                return arrivals, sides, stop.why
            async with target.connections:
                sides.append(_side(target))
                contexts.append(target.context_tokens)
        arrivals = fitted(wanted, _cut(options, contexts))
        pairs = list(zip(asked, sides, strict=True))
        count = options.blocks if len(pairs) > 1 else 1
        for number, (pair, (where, side)) in enumerate(product(range(count), pairs)):
            watcher.begin(f"{side.name} {pair + 1}/{count}")
            load = _load(options, TracePrompts(words, arrivals, options.seed, number), arrivals)
            try:
                target = await _connect(replace(where, model=side.target.model), stop)
            except FirstlightError as error:
                if not number:
                    raise
                stop.ask(error.message)  # what was measured so far is worth telling
                break
            if target is None:
                break
            async with target.connections:
                side.runs.append(await run_load(target, load, stop, watcher.show))
    return arrivals, sides, stop.why


async def _connect(where: Where, stop: Stop) -> Target | None:
    """The server, and what it takes; None if `stop` asked before that was known."""
    connecting = asyncio.create_task(_reach_and_learn(where))
    asked = asyncio.create_task(stop.wait(None))
    try:
        await asyncio.wait((connecting, asked), return_when=asyncio.FIRST_COMPLETED)
        return connecting.result() if connecting.done() else None
    finally:
        asked.cancel()
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)


async def _reach_and_learn(where: Where) -> Target:
    try:
        async with asyncio.timeout(LEARN_S):
            target = await reach(where)
            try:
                await target.learn()
            except BaseException:
                await target.connections.aclose()
                raise
            return target
    except TimeoutError:
        raise PeerError(f"{where.url} did not answer a short request in {LEARN_S:g} s") from None


def _side(target: Target) -> Side:
    where = target.where
    return Side(where.name, Asked(where.url, where.http, where.api, target.model))


def _load(options: Options, prompts: TracePrompts, arrivals: tuple[Arrival, ...]) -> Load:
    cold = cold_ones(options.connections, len(arrivals), Random(f"cold/{options.seed}"))
    return Load(arrivals, prompts, cold, options.timeout_s, options.outstanding_max)


@contextmanager
def _on_signals(ask: Callable[[str], None]) -> Iterator[None]:
    """The first SIGINT or SIGTERM ends the run in order; a second one does what it always did."""
    loop = asyncio.get_running_loop()
    before = {name: signal.getsignal(getattr(signal, name)) for name in _CODES}

    def on(name: str) -> None:
        ask(name)
        back()

    def back() -> None:
        for name, handler in before.items():
            loop.remove_signal_handler(getattr(signal, name))
            signal.signal(getattr(signal, name), handler)

    for name in _CODES:
        loop.add_signal_handler(getattr(signal, name), on, name)
    try:
        yield
    finally:
        back()


def _check_numbers(options: Options) -> None:
    numbers = {
        "--rate": options.rate,
        "--speed": options.speed,
        "--duration-s": options.duration_s,
        "--timeout-s": options.timeout_s,
        "--sla-ttft-ms": options.sla.ttft_ms,
        "--sla-tpot-ms": options.sla.tpot_ms,
    }
    for name, value in numbers.items():
        if value is not None and not isfinite(value):
            raise ConfigError(f"{name} should be a finite number, got {value}")


def _wheres(options: Options) -> list[Where]:
    """Who is asked: A, and B if there is one."""
    url = options.url or f"{read_running(state_dir()).edges[0].url}/v1"
    first = _where(options, "A", url, options.http, options.model, options.key)
    if options.against is None:
        if options.against_http or options.against_model or options.against_key:
            raise ConfigError("--against-… says more of a server that --against does not name")
        return [first]
    http = options.against_http or options.http
    second = _where(options, "B", options.against, http, options.against_model, None)
    # A key is told only to the server that it was given for.
    same = options.key if second.server == first.server else None
    return [first, replace(second, key=options.against_key or same)]


def _where(
    options: Options, name: str, url: str, http: HttpVersion, model: str | None, key: str | None
) -> Where:
    try:
        parts = urlsplit(url)
        wrong = parts.scheme not in ("http", "https") or not parts.hostname or parts.query
    except ValueError as error:
        raise ConfigError(f"{url!r} is no URL: {error}") from error
    if "@" in parts.netloc:
        raise ConfigError("a URL with a name and a password in it gets into reports: use --key")
    if wrong:
        raise ConfigError(f"{url!r} is not the URL of an API, such as http://localhost:8000/v1")
    ca = options.ca or known_ca(url)
    return Where(url.rstrip("/"), http, options.api, model, key, ca, name)


def _arrivals(options: Options) -> tuple[Arrival, ...]:
    if options.trace is not None:
        if options.rate is not None:
            raise ConfigError("--rate and --trace are two schedules: give one")
        try:
            with options.trace.open(encoding="utf-8", errors="replace") as lines:
                rows = parse(lines, str(options.trace))
                return replayed(rows, options.speed, options.limit, options.duration_s)
        except OSError as error:
            raise ConfigError(f"cannot read the trace: {error}") from error
    if options.speed != 1.0:
        raise ConfigError("--speed is for traces; a --rate can be given as it is wanted")
    rate, size = options.rate or 1.0, (options.tokens_in, options.tokens_out)
    duration_s = options.duration_s or DURATION_S
    if options.arrivals == "fixed":
        found = steady(rate, duration_s, size)
    else:
        found = poisson(rate, duration_s, size, Random(options.seed))
    if not found:
        raise ConfigError(f"no request falls into {duration_s:g} s at {rate:g} a second")
    return found[: options.limit]


def _cut(options: Options, contexts: list[int | None]) -> Cut:
    """What all servers can take."""
    context = min((tokens for tokens in contexts if tokens is not None), default=None)
    if context is not None and options.api == "chat":
        context = max(2, context - CHAT_TOKENS)
    return Cut(options.tokens_in_max, options.tokens_out_max, context)


def _schedule(options: Options, arrivals: tuple[Arrival, ...]) -> Schedule:
    return Schedule(
        kind="trace" if options.trace else options.arrivals,
        trace=options.trace.name if options.trace else None,
        speed=options.speed if options.trace else None,
        requests=len(arrivals),
        duration_s=round(arrivals[-1].at_s, 3),
        tokens_in=sum(arrival.tokens_in for arrival in arrivals),
        tokens_out=sum(arrival.tokens_out for arrival in arrivals),
        connections=options.connections,
        seed=options.seed,
    )


def _ratios(options: Options, sides: list[Side]) -> list[Ratio]:
    """Over pairs of blocks that both ran to their end."""
    if len(sides) < 2:
        return []
    pairs = zip(sides[0].runs, sides[1].runs, strict=False)
    whole = [(block(a), block(b)) for a, b in pairs if not (a.cut_short or b.cut_short)]
    return ratios(whole, options.sla, options.seed)


def _write(options: Options, report: Report) -> None:
    try:
        if options.json is not None:
            text = json.dumps(report.as_object())
            if options.json == "-":
                print(text, flush=True)
            else:
                Path(options.json).write_text(text + "\n", encoding="utf-8")
        if options.html is not None:
            options.html.write_text(page(report), encoding="utf-8")
    except OSError as error:
        raise FirstlightError(f"the report cannot be written: {error}") from error
