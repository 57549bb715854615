"""How `firstlight simulate` is typed. What it needs is imported when it runs."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def simulate(
    trace: Annotated[Path, typer.Option(metavar="FILE", help="Mooncake's JSONL or Azure's CSV.")],
    load: Annotated[
        float,
        typer.Option(min=0.001, max=50, help="Offered work without any cache hit over capacity."),
    ] = 0.75,
    policies: Annotated[
        str, typer.Option(metavar="NAME,…", help="Routing rules; `all` are all of them.")
    ] = "all",
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="So many draws, from --seed on.")] = 1,
    requests: Annotated[
        int | None, typer.Option(min=1, max=200_000, help="Only the first ones of the trace.")
    ] = None,
    generate: Annotated[
        bool, typer.Option("--generate", help="Requests like those of the trace, not its own.")
    ] = False,
    matrix: Annotated[
        str,
        typer.Option(help="`gorgo`, `azure`, places of Azure like east-us,uk-south, or 2,80;80,2."),
    ] = "gorgo",
    cores: Annotated[int, typer.Option(min=1, max=10_000, help="In each region.")] = 4,
    edges: Annotated[int, typer.Option(min=1, max=10_000, help="In each region.")] = 2,
    table: Annotated[
        Literal["h100-8b", "h100-70b", "smollm2-cpu"],
        typer.Option(help="Step times of the cores."),
    ] = "h100-8b",
    pool_tokens: Annotated[
        int, typer.Option(min=4096, max=1 << 30, help="KV that a core holds.")
    ] = 420_000,
    host_tokens: Annotated[
        int, typer.Option(min=0, max=1 << 30, help="KV that its host tier holds.")
    ] = 0,
    places: Annotated[
        int, typer.Option(min=1, max=4096, help="Sequences that a core runs at once.")
    ] = 32,
    waiting: Annotated[
        int, typer.Option(min=0, max=4096, help="Beyond those, before it refuses.")
    ] = 32,
    chunk: Annotated[
        int, typer.Option(min=16, max=1 << 20, help="Prompt tokens in a step, at most.")
    ] = 8192,
    jitter_ms: Annotated[float, typer.Option(min=0, max=10_000, help="Mean; a message.")] = 0.0,
    loss: Annotated[float, typer.Option(min=0, max=0.5, help="Of messages, as a share.")] = 0.0,
    diurnal: Annotated[
        float, typer.Option(min=0, max=1, help="How far the regions' shares swing in a run.")
    ] = 0.0,
    fault: Annotated[
        list[str] | None,
        typer.Option(metavar="WHAT", help="kill:core-3@60+20, region:seoul@100, slow:core-5@30x3"),
    ] = None,
    speed: Annotated[
        float | None, typer.Option(min=1e-6, help="Of the trace's time, in place of --load.")
    ] = None,
    tune_requests: Annotated[
        int, typer.Option(min=1, help="So many of the first choose the others' knobs.")
    ] = 1500,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Processes.")] = 1,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with plots.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The last line is one object.")] = False,
) -> int:
    """Run routing rules on a trace, in simulated time: ours, and those that others published."""
    from firstlight.infra.sim.command import Options, run_simulate

    return run_simulate(
        Options(
            trace=trace,
            load=load,
            policies=policies,
            seeds=tuple(range(seed, seed + seeds)),
            requests=requests,
            generate=generate,
            matrix=matrix,
            cores=cores,
            edges=edges,
            table=table,
            pool_tokens=pool_tokens,
            host_tokens=host_tokens,
            places=places,
            waiting=waiting,
            chunk=chunk,
            jitter_ms=jitter_ms,
            loss=loss,
            diurnal=diurnal,
            faults=tuple(fault or ()),
            speed=speed,
            tune_requests=tune_requests,
            jobs=jobs,
            html=html,
            as_json=as_json,
        )
    )
