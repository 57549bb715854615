"""`firstlight chat`: ask one question, stream the answer, and say where the time went.

`ask` is also what the demo and the tests ask with.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from firstlight.infra.client.answer import AnyEdge, Call, Connected, Source, beginning
from firstlight.infra.client.client import open_client
from firstlight.infra.client.history import AnswerHistory
from firstlight.infra.client.response import Client, HttpVersion, Marks
from firstlight.infra.client.sse import Event
from firstlight.infra.nearest import edges_of
from firstlight.infra.reply import Reply, api_error
from firstlight.infra.running import known_ca, read_running, server_url
from firstlight.shared.clock import monotonic_s
from firstlight.shared.config import state_dir
from firstlight.shared.errors import PeerError
from firstlight.shared.history_file import History, history_of

CONNECT_S, CONNECT_ALONE_S = 1.5, 5.0
"""For a connection to an edge: when there are others that can be asked, and when there are not."""


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


class InTurn:
    """Edges that somebody else has chosen, one after another."""

    def __init__(self, urls: Sequence[str], connect: Connect) -> None:
        self._urls, self._connect = urls, connect
        self._asked = 0

    @property
    def count(self) -> int:
        """How many edges there are."""
        return len(self._urls)

    @asynccontextmanager
    async def connection(self, lost: Sequence[str]) -> AsyncIterator[Connected]:
        """The next, whichever is lost. Raises `PeerError`."""
        del lost
        url = self._urls[self._asked % len(self._urls)]
        self._asked += 1
        async with self._connect(url) as client:
            yield Connected(url, client)


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
    """Ask the edge at `url`, and where it is lost, the edges `others` in turn; see `ask_any`.

    `connect` gives the clients, if they shall not be new ones.
    """
    if connect is None:
        patience_s = CONNECT_S if others else CONNECT_ALONE_S
        connect = partial(open_client, http=http, ca_file=ca_file, connect_timeout_s=patience_s)
    source = InTurn([url, *others], connect)
    return await ask_any(source, question, key=key, on_text=on_text, history=history)


async def ask_any(
    source: Source,
    question: Question,
    *,
    key: str | None = None,
    on_text: OnText = lambda text, reply: None,
    history: History | None = None,
) -> Asked:
    """Ask an edge, read the answer to its end; `on_text` sees each piece as it arrives.

    When the connection is lost, the rest is asked for at another edge; what an edge refuses or
    reports as an error is final, but for a 5xx to such a request. Raises the API's error, or
    `PeerError` if the answer's end cannot be had. `history` is told what came.
    """
    reply = Reply()
    if history is None:
        return await _ask(source, question, reply, key, on_text, lambda: None)
    story = AnswerHistory(history)

    def seen(text: str, reply: Reply) -> None:
        story.received(reply)
        on_text(text, reply)

    def asked() -> None:
        reply.resume()  # what comes again is not here
        story.asked(reply)

    with story.telling(reply):
        return await _ask(source, question, reply, key, seen, asked)


async def _ask(
    source: Source,
    question: Question,
    reply: Reply,
    key: str | None,
    on_text: OnText,
    on_attempt: Callable[[], None],
) -> Asked:
    headers = {"content-type": "application/json", "accept": "text/event-stream"}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    call = Call("POST", question.path, headers, question.body())
    begun_s = monotonic_s()
    answer = AnyEdge(source, call, on_attempt=on_attempt)
    async with answer as response:
        if response.status != 200:
            raise api_error(response.status, await beginning(response))
        events = response.events()
        while (event := await _next(events)) is not None:
            on_text(reply.feed(event.data, monotonic_s()), reply)
        reply.close()
    resumed = answer.attempts - 1
    return Asked(reply, response.headers, begun_s, response.marks, monotonic_s(), resumed)


async def _next(events: AsyncIterator[Event]) -> Event | None:
    try:
        return await anext(events, None)
    except ValueError as error:
        raise PeerError(f"the stream cannot be read: {error}") from error


def run_chat(
    question: Question,
    *,
    url: str | None,
    http: HttpVersion | None,
    ca_file: Path | None,
    key: str | None,
    as_json: bool,
    history: Path | None = None,
) -> int:
    """The command: the text goes to standard output, then a line of figures to standard error.

    Without `http` it is HTTP/3, at a mesh that runs here TCP where there is no UDP.
    """
    with history_of(history, "client", "client") as story:
        return asyncio.run(_chat(question, url, http, ca_file, key, as_json, story))


async def _chat(
    question: Question,
    url: str | None,
    http: HttpVersion | None,
    ca_file: Path | None,
    key: str | None,
    as_json: bool,
    history: History | None,
) -> int:
    show = (lambda text, reply: None) if as_json else _show
    if url is None:
        mesh = read_running(state_dir())
        async with edges_of(mesh, ca_file=ca_file, only=http) as edges:
            key = key or mesh.key or None
            asked = await ask_any(edges, question, key=key, on_text=show, history=history)
    else:
        url = server_url(url)
        ca_file = ca_file or known_ca(url)
        asked = await ask(
            url, question, http=http or "3", ca_file=ca_file, key=key, on_text=show, history=history
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
