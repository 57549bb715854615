"""The `firstlight` command: every error is one line, every heavy import waits for its command.

Exit codes: 0 done, 1 an error, 2 wrong usage, 130 interrupted. `--debug` before the command shows
the traceback of an error.
"""

import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer

import firstlight
from firstlight.infra import geoip
from firstlight.infra.bench.load.arguments import load
from firstlight.infra.lab import command as lab
from firstlight.infra.sim.arguments import simulate
from firstlight.shared.errors import ConfigError, FirstlightError

INTERRUPTED, TERMINATED = 130, 143
ID_CHARS_MAX = 200

app = typer.Typer(
    name="firstlight",
    help="A geo-routed inference mesh: edges near users, cores that run the model.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

bench = typer.Typer(help="Measure.", rich_markup_mode=None)
app.add_typer(bench, name="bench")
app.add_typer(lab.app, name="lab")
app.add_typer(geoip.app, name="geoip")
bench.command("load")(load)
app.command("simulate")(simulate)

Ca = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        metavar="FILE",
        help="CA that signed the edge. Default for edges of the local mesh: its own.",
    ),
]
Key = Annotated[str | None, typer.Option(help="API key. The local mesh asks for none.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one object and nothing else.")]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="YAML; FIRSTLIGHT_SECTION__KEY overrides it."),
]
PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Print the settings in force and exit.")
]
WithParent = Annotated[
    bool, typer.Option("--with-parent", help="End when standard input reaches its end.")
]


class Terminated(BaseException):
    """SIGTERM arrived; raised so that whatever runs is cleaned up on the way out."""


def _show_version(asked: bool) -> None:
    if asked:
        print(f"firstlight {firstlight.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    del version, debug  # `run` looks for --debug itself, so that it also covers usage errors


@app.command()
def demo() -> int:
    """Start a mesh, ask it, kill a core in mid-answer, clean up."""
    from firstlight.infra.demo import run_demo

    return run_demo()


@app.command()
def up() -> int:
    """Start a mesh and leave it running until Ctrl-C."""
    from firstlight.infra.up import run_up

    return run_up()


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> int:
    """Show the nodes of the local mesh, their load and round trips, once."""
    from firstlight.infra.live import run_status

    return run_status(as_json=as_json)


@app.command()
def doctor(
    config: Config = None,
    role: Annotated[
        Literal["edge", "core", "lb"] | None, typer.Option(help="Whose settings to look at.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> int:
    """Look at this machine and a node's settings; say what is wrong and what to do."""
    from firstlight.infra.doctor import run_doctor
    from firstlight.shared.types import Role

    return run_doctor(config, Role(role) if role else None, as_json=as_json)


@app.command()
def edge(
    config: Config = None, print_config: PrintConfig = False, with_parent: WithParent = False
) -> int:
    """Run an edge node: the OpenAI API over HTTP/3, 2 and 1.1."""
    from firstlight.infra.roles import run_edge

    return run_edge(config, print_config=print_config, with_parent=with_parent)


@app.command()
def core(
    config: Config = None, print_config: PrintConfig = False, with_parent: WithParent = False
) -> int:
    """Run a core node: the target model, behind gRPC."""
    from firstlight.infra.roles import run_core

    return run_core(config, print_config=print_config, with_parent=with_parent)


@app.command()
def lb(
    config: Config = None, print_config: PrintConfig = False, with_parent: WithParent = False
) -> int:
    """Run a global load balancer: who is where, and how loaded."""
    from firstlight.infra.roles import run_lb

    return run_lb(config, print_config=print_config, with_parent=with_parent)


@app.command()
def dns(
    config: Config = None, print_config: PrintConfig = False, with_parent: WithParent = False
) -> int:
    """Answer a PowerDNS name server: which edges are near a client."""
    from firstlight.infra.roles import run_dns

    return run_dns(config, print_config=print_config, with_parent=with_parent)


@app.command()
def chat(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The question; - reads it from stdin.")
    ],
    url: Annotated[
        str | None, typer.Option(help="Edge, like https://127.0.0.1:8443. Default: the local mesh.")
    ] = None,
    model: Annotated[str, typer.Option(help="`auto` leaves the choice to the edge.")] = "auto",
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=2, help="0 is greedy. Default: the API's, 1.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="At most so many tokens.")] = None,
    hints: Annotated[
        Literal["on", "off"], typer.Option(help="Whether the edge drafts for the core.")
    ] = "on",
    http: Annotated[
        Literal["1", "2", "3"] | None,
        typer.Option(help="HTTP version. Default: 3, or over TCP where there is no UDP."),
    ] = None,
    ca: Ca = None,
    key: Key = None,
    as_json: AsJson = False,
    history: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where a judge finds what came.")
    ] = None,
) -> int:
    """Ask a question and stream the answer."""
    from firstlight.infra.chat import Question, run_chat

    asked = sys.stdin.read() if text == "-" else text
    if not asked.strip():
        raise ConfigError("the question is empty")
    _check_key(key)
    question = Question(
        text=asked,
        model=model,
        seed=seed,
        temperature=temperature,
        max_tokens=max_tokens,
        hints=hints == "on",
    )
    return run_chat(
        question, url=url, http=http, ca_file=ca, key=key, as_json=as_json, history=history
    )


@app.command()
def explain(
    id: Annotated[
        str, typer.Argument(metavar="ID", help="An answer's id, or the id of one of its streams.")
    ],
    url: Annotated[
        str | None, typer.Option(help="Edge to ask. Default: all edges of the local mesh.")
    ] = None,
    ca: Ca = None,
    key: Key = None,
    as_json: AsJson = False,
) -> int:
    """Say what happened to a request, and where its time went."""
    from firstlight.infra.explain import run_explain

    if not id.strip():
        raise ConfigError("the id is empty")
    if not id.isascii() or not id.isprintable() or len(id) > ID_CHARS_MAX:
        raise ConfigError(f"this is no id: up to {ID_CHARS_MAX} plain characters expected")
    _check_key(key)
    return run_explain(id.strip(), url=url, ca_file=ca, key=key, as_json=as_json)


@app.command()
def route(
    edge: Annotated[str, typer.Option(metavar="NODE", help="Name of the edge.")],
    prompt_tokens: Annotated[int, typer.Option(min=1, max=1 << 24, help="Of the request.")] = 100,
    model: Annotated[str, typer.Option(help="Default: any.")] = "",
    url: Annotated[
        str | None, typer.Option(help="Load balancer. Default: the local mesh's.")
    ] = None,
    ca: Ca = None,
    as_json: AsJson = False,
) -> int:
    """Show where an edge would send a request now, and why."""
    from firstlight.infra.route import check_edge, run_route

    return run_route(
        check_edge(edge),
        prompt_tokens=prompt_tokens,
        model=model,
        url=url,
        ca_file=ca,
        as_json=as_json,
    )


@app.command()
def trace(
    core: Annotated[
        str,
        typer.Argument(metavar="CORE", help="A core of the local mesh, or an admin address."),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to. Default: steps.json.")
    ] = None,
) -> int:
    """Save what a core's latest steps did, as a trace for ui.perfetto.dev."""
    from firstlight.infra.trace import run_trace

    return run_trace(core, out=out)


@app.command()
def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="A core or an edge, by name.")],
    undo: Annotated[bool, typer.Option("--undo", help="It is not to drain any more.")] = False,
    at: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Admin address of a load balancer."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> int:
    """Send new requests elsewhere while there is somewhere else; what runs goes on."""
    from firstlight.infra.drain import run_drain

    return run_drain(node, undo=undo, at=at, as_json=as_json)


@app.command()
def judge(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Histories of one run, and its run.json.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one object.")] = False,
) -> int:
    """Say whether a run kept its promises. Exit code 0: all held, 1: violated, 2: incomplete."""
    from firstlight.infra.judge.command import run_judge

    return run_judge(directories, as_json=as_json)


@bench.callback()
def _bench() -> None:
    """Measure: every figure comes with its command and machine."""


@bench.command()
def engine(
    url: Annotated[
        str | None,
        typer.Option(help="Server, like http://127.0.0.1:8000/v1. Default: a mesh of its own."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="What requests call it. Default: the server's first.")
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="Key of the server at --url.")] = None,
    pid: Annotated[
        int | None, typer.Option(min=1, help="Process of that server, for memory and CPU.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=256, help="Of our core. Default: one a CPU.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="After one warm-up.")] = 3,
    only: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Some scenarios, like single_32,prefix.")
    ] = None,
    classes: Annotated[
        str, typer.Option(metavar="NAME,…", help="Weights whose perplexity is measured.")
    ] = "bf16,auto",
    peer: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="Start this server too; {port} becomes its port."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="The last line is one object.")] = False,
) -> int:
    """Measure an engine under load: first tokens, speed, gaps, memory, whether texts stay."""
    from firstlight.infra.bench.engine.command import Options, run_engine

    _check_key(api_key)
    return run_engine(
        Options(
            url=url,
            model=model,
            key=api_key,
            pid=pid,
            threads=threads or os.cpu_count() or 1,
            repeats=repeats,
            only=only,
            classes=classes,
            peer=peer,
            seed=seed,
            as_json=as_json,
        )
    )


def _check_key(key: str | None) -> None:
    if key is not None and not key.strip():
        raise ConfigError("the key is empty")


def main() -> None:
    """Entry point: run the command line and exit with its code."""
    signal.signal(signal.SIGTERM, _raise_terminated)
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run the command that `arguments` name; returns the exit code, raises nothing."""
    try:
        code = app(arguments or ["--help"], standalone_mode=False, prog_name="firstlight")
    except BaseException as e:
        if "--debug" in arguments and isinstance(e, Exception):
            traceback.print_exc()
        return _report(e)
    return code if isinstance(code, int) else 0


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated


def _report(error: BaseException) -> int:
    """Say what went wrong in one line; returns the exit code."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return INTERRUPTED
    if isinstance(error, Terminated):
        return TERMINATED
    if isinstance(error, BrokenPipeError):  # the reader of our output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    print(f"firstlight: {_one_line(error)}", file=sys.stderr)
    return 2 if _is_usage(error) else 1


def _one_line(error: BaseException) -> str:
    if isinstance(error, FirstlightError):
        said = "; ".join(error.message.splitlines())
    elif _is_usage(error):
        said = f"{error.format_message()} (see --help)"  # type: ignore[attr-defined]
    elif isinstance(error, OSError):
        said = str(error)
    elif isinstance(error, ModuleNotFoundError) and not _is_ours(error.name):
        said = (
            f"this command needs {error.name}, which is not installed: "
            f"in Firstlight's folder, pip install '.[ROLE]' brings it, with edge, core, lb or demo "
            "as the ROLE"
        )
    else:
        said = f"unexpected {type(error).__name__}: {error} (run with --debug for the traceback)"
    return " ".join(said.split())


def _is_ours(module: str | None) -> bool:
    return module is None or module.partition(".")[0] == firstlight.__name__


def _is_usage(error: BaseException) -> bool:
    """Whether an option or argument was wrong; by shape, since typer may bring its own click."""
    return hasattr(error, "format_message") and getattr(error, "exit_code", None) == 2
