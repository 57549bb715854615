"""`firstlight chat`: ask one question, stream the answer, and say where the time went.

`ask` is also what the demo and the tests ask with.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Console

from firstlight.infra.client.client import open_client
from firstlight.infra.client.response import HttpVersion, Marks, StreamResponse
from firstlight.infra.nearest import nearest_edge
from firstlight.infra.reply import Reply, api_error
from firstlight.infra.running import read_running
from firstlight.shared.clock import monotonic_s
from firstlight.shared.config import state_dir
from firstlight.shared.errors import ConfigError, PeerError

_ERROR_BODY_BYTES_MAX = 64 * 1024
_THIS_MACHINE = {"127.0.0.1", "localhost"}


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask; None leaves a value to the API's default."""

    text: str
    model: str = "auto"
    """`auto` leaves the choice to the edge."""
    seed: int | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    hints: bool = True
    ignore_eos: bool = False
    """Go on to `max_tokens` even if the model would end earlier."""

    def body(self) -> bytes:
        """The request body for `/v1/chat/completions`, streaming."""
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": self.text}],
            "stream": True,
            "seed": self.seed,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }
        fields = {name: value for name, value in fields.items() if value is not None}
        extra: dict[str, Any] = {"hints": "on" if self.hints else "off"}
        if self.ignore_eos:
            extra["ignore_eos"] = True
        return json.dumps(fields | {"firstlight": extra}).encode()


@dataclass(frozen=True, slots=True)
class Asked:
    """A complete answer with what this end measured."""

    reply: Reply
    headers: Mapping[str, str]
    begun_s: float
    marks: Marks
    ended_s: float

    def summary(self) -> dict[str, Any]:
        """What `--json` prints. Times in ms; `client_…` was measured here, the rest by the edge."""
        reply, details, marks = self.reply, self.reply.details, self.marks
        since = self.begun_s
        client_ms = {
            "client_connect": _ms(since, marks.connected_s),
            "client_headers": _ms(since, marks.headers_s),
            "client_first_token": _ms(since, reply.first_token_s),
            "client_total": _ms(since, self.ended_s),
        }
        tokens_per_s = reply.tokens_per_s()
        return {
            "text": reply.text,
            "token_ids": reply.token_ids,
            "finish_reason": reply.finish_reason,
            "model": reply.model,
            **{name: details.get(name) for name in ("seed", "class", "protocol")},
            **{name: details.get(name) for name in ("edge", "core", "region")},
            "ttft_ms": _rounded(details.get("ttft_ms")) | client_ms,
            "tpot_ms": details.get("tpot_ms"),
            "tokens_per_s": None if tokens_per_s is None else round(tokens_per_s, 1),
            "hints": reply.hint_totals(),
            "moved": details.get("moved"),
            "continuation": details.get("continuation"),
            "request_id": self.headers.get("x-request-id"),
        }


def _ms(since_s: float, until_s: float | None) -> float | None:
    return None if until_s is None else round((until_s - since_s) * 1000, 2)


def _rounded(parts: object) -> dict[str, Any]:
    if not isinstance(parts, Mapping):
        return {}
    return {k: round(v, 2) if isinstance(v, float) else v for k, v in parts.items()}


OnText = Callable[[str, Reply], None]


async def ask(
    url: str,
    question: Question,
    *,
    http: HttpVersion = "3",
    ca_file: Path | None = None,
    key: str | None = None,
    on_text: OnText = lambda text, reply: None,
) -> Asked:
    """Ask the edge at `url`, read the answer to its end; `on_text` sees each piece as it arrives.

    Raises the API's error, or `PeerError` if the stream ends before the answer does.
    """
    headers = {"content-type": "application/json", "accept": "text/event-stream"}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    begun_s = monotonic_s()
    async with open_client(url, http, ca_file=ca_file) as client:
        body = question.body()
        async with client.stream("POST", "/v1/chat/completions", headers, body) as response:
            reply = await _read(response, on_text)
            return Asked(reply, response.headers, begun_s, response.marks, monotonic_s())


async def _read(response: StreamResponse, on_text: OnText) -> Reply:
    if response.status != 200:
        raise api_error(response.status, await _body(response))
    reply = Reply()
    try:
        async for event in response.events():
            on_text(reply.feed(event.data, monotonic_s()), reply)
    except ValueError as e:
        raise PeerError(f"the stream cannot be read: {e}") from e
    reply.close()
    return reply


async def _body(response: StreamResponse) -> bytes:
    body = b""
    async for chunk in response.chunks():
        body += chunk
        if len(body) > _ERROR_BODY_BYTES_MAX:
            break
    return body[:_ERROR_BODY_BYTES_MAX]


def run_chat(
    question: Question,
    *,
    url: str | None,
    http: HttpVersion,
    ca_file: Path | None,
    key: str | None,
    as_json: bool,
) -> int:
    """The command: the text goes to standard output, then a line of figures to standard error."""
    return asyncio.run(_chat(question, url, http, ca_file, key, as_json))


async def _chat(
    question: Question,
    url: str | None,
    http: HttpVersion,
    ca_file: Path | None,
    key: str | None,
    as_json: bool,
) -> int:
    if url is None:
        mesh = read_running(state_dir())
        url, ca_file = (await nearest_edge(mesh)).edge.url, ca_file or Path(mesh.ca_file)
    else:
        url = url.rstrip("/").removesuffix("/v1")  # as other clients are given it
        ca_file = ca_file or _known_ca(url)
    show = (lambda text, reply: None) if as_json else _show
    asked = await ask(url, question, http=http, ca_file=ca_file, key=key, on_text=show)
    if as_json:
        print(json.dumps(asked.summary(), ensure_ascii=False))
    else:
        print(flush=True)
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            summary_line(asked.summary()), style="dim"
        )
    return 0


def _known_ca(url: str) -> Path | None:
    """The CA of the mesh that runs here, if the URL is one of its edges."""
    with suppress(ConfigError):
        mesh = read_running(state_dir())
        asked = urlsplit(url)
        ports = {urlsplit(edge.url).port for edge in mesh.edges}
        if asked.hostname in _THIS_MACHINE and asked.port in ports:
            return Path(mesh.ca_file)
    return None


def _show(text: str, reply: Reply) -> None:
    del reply
    sys.stdout.write(text)
    sys.stdout.flush()


def summary_line(summary: Mapping[str, Any]) -> str:
    """One line about an answer for people."""
    hints, ttft = summary["hints"], summary["ttft_ms"]["client_first_token"]
    parts = [
        f"{len(summary['token_ids'])} tokens",
        f"first token {ttft:.0f} ms" if ttft is not None else "",
        f"{summary['tokens_per_s']} tokens/s" if summary["tokens_per_s"] else "",
        f"{hints['accepted']} of {hints['offered']} hinted tokens accepted",
        f"{summary['protocol']} {summary['edge']} → {summary['core']} ({summary['region']})",
        f"seed {summary['seed']}",
        f"moved {summary['moved']}×" if summary["moved"] else "",
    ]
    return " · ".join(part for part in parts if part)
