"""`firstlight simulate`: rules against each other on a trace, and what came of it."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from firstlight.infra.bench.load.schedule import BLOCK_TOKENS, Arrival, replayed
from firstlight.infra.bench.load.traces import parse
from firstlight.infra.bench.machine import heading
from firstlight.infra.bench.outputs import check_output
from firstlight.infra.sim.contest import Course, contest, workers
from firstlight.infra.sim.core import CoreSpec
from firstlight.infra.sim.faults import parse_fault
from firstlight.infra.sim.matrix import MATRICES, Matrix, azure, written
from firstlight.infra.sim.report import Told, page, table
from firstlight.infra.sim.rules import chosen
from firstlight.infra.sim.setup import Setup
from firstlight.infra.sim.workload import fit, generated
from firstlight.shared.engine.steptable import TABLES
from firstlight.shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    trace: Path
    load: float
    policies: str
    seeds: tuple[int, ...]
    requests: int | None
    generate: bool
    matrix: str
    cores: int
    edges: int
    table: str
    pool_tokens: int
    host_tokens: int
    places: int
    waiting: int
    chunk: int
    jitter_ms: float
    loss: float
    diurnal: float
    faults: tuple[str, ...]
    speed: float | None
    tune_requests: int
    jobs: int
    html: Path | None
    as_json: bool


def run_simulate(options: Options) -> int:
    """The command. Raises `ConfigError`."""
    rules = chosen(options.policies)
    if options.html is not None:
        check_output(options.html)
    setup = Setup(
        matrix=_matrix(options),
        cores=options.cores,
        edges=options.edges,
        spec=CoreSpec(
            TABLES[options.table],
            pool_tokens=options.pool_tokens,
            host_tokens=options.host_tokens,
            sequences_max=options.places,
            waiting_max=options.waiting,
            prefill_chunk=options.chunk,
        ),
        faults=tuple(parse_fault(text) for text in options.faults),
    )
    course = Course(_arrivals(options), setup, options.load, options.diurnal, options.speed)
    told_of = heading()
    print(told_of, flush=True)
    with workers(options.jobs) as spread:
        results = contest(
            course, rules, options.seeds, tune_requests=options.tune_requests, spread=spread
        )
    told = Told(
        heading=told_of,
        course=course,
        trace=options.trace.name + (", generated" if options.generate else ""),
        seeds=options.seeds,
        tune_requests=options.tune_requests,
        results=results,
    )
    print("\n".join(table(told)), flush=True)
    if options.html is not None:
        try:
            options.html.write_text(page(told), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{options.html} cannot be written: {error.strerror}") from error
    if options.as_json:
        print(json.dumps(told.as_object()), flush=True)
    return 0


def _matrix(options: Options) -> Matrix:
    known = MATRICES.get(options.matrix)
    if known is None and options.matrix[:1].isdigit():
        known = written(options.matrix)
    matrix = known or azure(tuple(name.strip() for name in options.matrix.split(",")))
    return replace(matrix, jitter_ms=options.jitter_ms, loss=options.loss)


def _arrivals(options: Options) -> tuple[Arrival, ...]:
    try:
        with options.trace.open() as lines:
            limit = None if options.generate else options.requests
            arrivals = replayed(parse(lines, options.trace.name), 1.0, limit, None)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"trace {options.trace} cannot be read: {error}") from error
    if options.generate:
        count = options.requests or len(arrivals)
        arrivals = generated(fit(arrivals), count, Random(f"{options.seeds[0]} generated"))
    room = options.pool_tokens // BLOCK_TOKENS * BLOCK_TOKENS
    for arrival in arrivals:
        if arrival.tokens_in + arrival.tokens_out > room:
            raise ConfigError(
                f"a request of {arrival.tokens_in} and {arrival.tokens_out} tokens in a pool of "
                f"{room}: --pool-tokens"
            )
    return arrivals
