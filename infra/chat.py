"""`firstlight chat`: ask one question, stream the answer, and say where the time went.

`ask` is also what the demo and the tests ask with.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from firstlight.infra.client.client import open_client
from firstlight.infra.client.history import AnswerHistory
from firstlight.infra.client.response import Client, HttpVersion, Marks, StreamResponse
from firstlight.infra.client.sse import Event
from firstlight.infra.nearest import nearest_edges
from firstlight.infra.reply import Reply, api_error
from firstlight.infra.running import known_ca, read_running, server_url
from firstlight.shared.clock import monotonic_s
from firstlight.shared.config import state_dir
from firstlight.shared.errors import FirstlightError, PeerError
from firstlight.shared.history_file import History, history_of

RESUMES_MAX = 4
CONNECT_S, CONNECT_ALONE_S = 1.5, 5.0
"""For a connection to an edge: when there are others that can be asked, and when there are not."""
RESUME_WAIT_S = 0.5
"""Between attempts once every edge was asked."""
_ERROR_BODY_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Question:
    """What to ask; None leaves a value to the API's default."""

    text: str
    api: Literal["chat", "completions"] = "chat"
    """`completions`: the text is a prompt to be gone on with, without a chat's template."""
    model: str = "auto"
    """`auto` leaves the choice to the edge."""
    seed: int | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    hints: bool = True
    ignore_eos: bool = False
    """Go on to `max_tokens` even if the model would end earlier."""

    @property
    def path(self) -> str:
        """Where it is asked."""
        return "/v1/chat/completions" if self.api == "chat" else "/v1/completions"

    def body(self, resume: Mapping[str, Any] | None = None) -> bytes:
        """The request body, streaming; `resume` asks for the rest."""
        chat = {"messages": [{"role": "user", "content": self.text}]}
        asked = chat if self.api == "chat" else {"prompt": self.text}
        fields: dict[str, Any] = {
            "model": self.model,
            **asked,
            "stream": True,
            "seed": self.seed,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }
        fields = {name: value for name, value in fields.items() if value is not None}
        extra: dict[str, Any] = {"hints": "on" if self.hints else "off"}
        if self.ignore_eos:
            extra["ignore_eos"] = True
        if resume is not None:
            extra["resume"] = resume
        return json.dumps(fields | {"firstlight": extra}).encode()


@dataclass(frozen=True, slots=True)
class Asked:
    """A complete answer with what this end measured."""

    reply: Reply
    headers: Mapping[str, str]
    begun_s: float
    marks: Marks
    ended_s: float
    resumed: int = 0
    """How often the connection was lost, and the rest asked for."""

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
            "id": reply.id,
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
            "resumed": self.resumed,
            "request_id": self.headers.get("x-request-id"),
        }


def _ms(since_s: float, until_s: float | None) -> float | None:
    return None if until_s is None else round((until_s - since_s) * 1000, 2)


def _rounded(parts: object) -> dict[str, Any]:
    if not isinstance(parts, Mapping):
        return {}
    return {k: round(v, 2) if isinstance(v, float) else v for k, v in parts.items()}


OnText = Callable[[str, Reply], None]
Connect = Callable[[str], AbstractAsyncContextManager[Client]]
"""A client of the edge at a URL, for one request."""


class _Told(Exception):
    """An edge said so: it would not be different elsewhere."""

    def __init__(self, error: FirstlightError) -> None:
        self.error = error


async def ask(
    url: str,
    question: Question,
    *,
    others: Sequence[str] = (),
    http: HttpVersion = "3",
    ca_file: Path | None = None,
    key: str | None = None,
    on_text: OnText = lambda text, reply: None,
    history: History | None = None,
    connect: Connect | None = None,
) -> Asked:
    """Ask the edge at `url`, read the answer to its end; `on_text` sees each piece as it arrives.

    When the connection is lost, the rest is asked for at the edges `others` in turn, then at all
    again, `RESUMES_MAX` times in all; what an edge refuses or reports as an error is final, but for
    a 5xx to such a request. Raises the API's error, or `PeerError` if the answer's end cannot be
    had. `history` is told what came. `connect` gives the clients, if they shall not be new ones.
    """
    reply, urls = Reply(), [url, *others]
    if connect is None:
        patience_s = CONNECT_S if others else CONNECT_ALONE_S
        connect = partial(open_client, http=http, ca_file=ca_file, connect_timeout_s=patience_s)
    if history is None:
        return await _ask(urls, question, reply, connect, key, on_text, None)
    story = AnswerHistory(history)

    def seen(text: str, reply: Reply) -> None:
        story.received(reply)
        on_text(text, reply)

    with story.telling(reply):
        return await _ask(urls, question, reply, connect, key, seen, story)


async def _ask(
    urls: Sequence[str],
    question: Question,
    reply: Reply,
    connect: Connect,
    key: str | None,
    on_text: OnText,
    story: AnswerHistory | None,
) -> Asked:
    headers = {"content-type": "application/json", "accept": "text/event-stream"}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    begun_s = monotonic_s()
    first: Marks | None = None
    answered: Mapping[str, str] = {}
    for attempt in range(RESUMES_MAX + 1):
        body = question.body(reply.resume())
        if story is not None:
            story.asked(reply)
        try:
            async with (
                connect(urls[attempt % len(urls)]) as client,
                client.stream("POST", question.path, headers, body) as response,
            ):
                first, answered = first or response.marks, response.headers
                await _read(response, reply, on_text, resuming=attempt > 0)
        except _Told as told:
            raise told.error from None
        except PeerError:
            last = attempt == RESUMES_MAX or (reply.resume() is None and len(urls) == 1)
            if last and not reply.complete:
                raise
        if first is not None and reply.complete:
            return Asked(reply, answered, begun_s, first, monotonic_s(), attempt)
        if attempt >= len(urls) - 1:
            await asyncio.sleep(RESUME_WAIT_S)
    raise AssertionError("the last attempt returns or raises")


async def _read(response: StreamResponse, reply: Reply, on_text: OnText, *, resuming: bool) -> None:
    """Read into `reply`. Raises `PeerError` if the stream ends before the answer."""
    if response.status != 200:
        error = api_error(response.status, await _body(response))
        if resuming and response.status >= 500:  # it may be just starting
            raise PeerError(error.message)
        raise _Told(error)
    events = response.events()
    while (event := await _next(events)) is not None:
        try:
            text = reply.feed(event.data, monotonic_s())
        except FirstlightError as error:
            raise _Told(error) from error
        on_text(text, reply)
    reply.close()


async def _next(events: AsyncIterator[Event]) -> Event | None:
    try:
        return await anext(events, None)
    except ValueError as error:
        raise _Told(PeerError(f"the stream cannot be read: {error}")) from error


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
    history: Path | None = None,
) -> int:
    """The command: the text goes to standard output, then a line of figures to standard error."""
    with history_of(history, "client", "client") as story:
        return asyncio.run(_chat(question, url, http, ca_file, key, as_json, story))


async def _chat(
    question: Question,
    url: str | None,
    http: HttpVersion,
    ca_file: Path | None,
    key: str | None,
    as_json: bool,
    history: History | None,
) -> int:
    others: list[str] = []
    if url is None:
        mesh = read_running(state_dir())
        url, *others = [measured.edge.url for measured in await nearest_edges(mesh)]
        ca_file, key = ca_file or Path(mesh.ca_file), key or mesh.key or None
    else:
        url = server_url(url)
        ca_file = ca_file or known_ca(url)
    show = (lambda text, reply: None) if as_json else _show
    asked = await ask(
        url,
        question,
        others=others,
        http=http,
        ca_file=ca_file,
        key=key,
        on_text=show,
        history=history,
    )
    if as_json:
        print(json.dumps(asked.summary(), ensure_ascii=False))
    else:
        print(flush=True)
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            summary_line(asked.summary()), style="dim"
        )
    return 0


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
        f"resumed {summary['resumed']}×" if summary["resumed"] else "",
    ]
    return " · ".join(part for part in parts if part)
