"""How `firstlight bench load` is typed. What it needs is imported when it runs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from firstlight.shared.errors import ConfigError

Http = Literal["1", "2", "3"]


def load(
    url: Annotated[
        str | None,
        typer.Option(help="API, like http://127.0.0.1:8000/v1. Default: the local mesh's."),
    ] = None,
    http: Annotated[Http, typer.Option(help="HTTP version.")] = "1",
    api: Annotated[
        Literal["completions", "chat"], typer.Option(help="Which endpoint is asked.")
    ] = "completions",
    model: Annotated[str | None, typer.Option(help="Default: the server's first.")] = None,
    key: Annotated[str | None, typer.Option(help="API key.")] = None,
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CA that signed the server's certificate.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0.001, max=10_000, help="Requests a second. Default: 1.")
    ] = None,
    arrivals: Annotated[
        Literal["poisson", "fixed"], typer.Option(help="By chance, or evenly spaced.")
    ] = "poisson",
    duration_s: Annotated[
        float | None,
        typer.Option(min=0.001, help="Send for so long. Default: 30, or the whole trace."),
    ] = None,
    tokens_in: Annotated[int, typer.Option(min=1, max=1 << 20, help="Of each prompt.")] = 200,
    tokens_out: Annotated[int, typer.Option(min=1, max=1 << 20, help="Of each answer.")] = 64,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Replay it: Mooncake's JSONL or Azure's CSV."),
    ] = None,
    speed: Annotated[
        float, typer.Option(min=0.001, max=1000, help="The trace's time goes so many times faster.")
    ] = 1.0,
    limit: Annotated[int | None, typer.Option(min=1, help="So many requests at most.")] = None,
    max_tokens_in: Annotated[
        int | None, typer.Option(min=1, help="Longer prompts keep so many tokens.")
    ] = None,
    max_tokens_out: Annotated[
        int | None, typer.Option(min=1, help="Longer answers are asked for so many.")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="GGUF file or folder of the served model. Default: ours."
        ),
    ] = None,
    connections: Annotated[
        Literal["warm", "cold", "both"],
        typer.Option(help="Reused; a new one a request; or half of them each."),
    ] = "warm",
    outstanding_max: Annotated[
        int, typer.Option(min=1, max=100_000, help="With so many out, the next is not sent.")
    ] = 512,
    timeout_s: Annotated[
        float, typer.Option(min=0.001, help="An answer that takes longer is a miss.")
    ] = 120.0,
    sla_ttft_ms: Annotated[
        float | None, typer.Option(min=0, help="Good answers begin within this.")
    ] = None,
    sla_tpot_ms: Annotated[
        float | None, typer.Option(min=0, help="Good answers take no longer a token.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="URL", help="Compare with this API: A B A B.")
    ] = None,
    against_http: Annotated[
        Http | None, typer.Option(help="Its HTTP version. Default: the same.")
    ] = None,
    against_model: Annotated[str | None, typer.Option(help="Its model.")] = None,
    against_key: Annotated[
        str | None, typer.Option(help="Its key. Default: the same, if it is the same server.")
    ] = None,
    blocks: Annotated[int, typer.Option(min=1, max=100, help="So many of each side, in turn.")] = 2,
    seed: Annotated[int, typer.Option(help="Same seed, same load.")] = 1,
    json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write all figures there; - is stdout.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with plots there.")
    ] = None,
) -> int:
    """Put an open-loop load on a server with OpenAI's API; say what it did."""
    from firstlight.infra.bench.load.command import Options, run_load_command
    from firstlight.infra.bench.load.figures import Sla

    for given in (key, against_key):
        if given is not None and not given.strip():
            raise ConfigError("the key is empty")
    return run_load_command(
        Options(
            url=url,
            against=against,
            against_http=against_http,
            against_model=against_model,
            against_key=against_key,
            blocks=blocks,
            http=http,
            api=api,
            model=model,
            key=key,
            ca=ca,
            rate=rate,
            arrivals=arrivals,
            duration_s=duration_s,
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            trace=trace,
            speed=speed,
            limit=limit,
            tokens_in_max=max_tokens_in,
            tokens_out_max=max_tokens_out,
            tokenizer=tokenizer,
            connections=connections,
            outstanding_max=outstanding_max,
            timeout_s=timeout_s,
            sla=Sla(sla_ttft_ms, sla_tpot_ms),
            seed=seed,
            json=json,
            html=html,
        )
    )
