"""A server under load: where it is, what it takes, and one request to it from send to end.

Over the same clients as `firstlight chat`, so that what is measured is what our users' clients do.
What a server refuses (`ignore_eos`) is found out before the run: later refusals are misses.
"""

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from firstlight.infra.bench.engine.client import GO_ON, REFUSED, Answer
from firstlight.infra.bench.load.records import Reason, Record, http_reason, plain
from firstlight.infra.client.client import open_client
from firstlight.infra.client.connections import Connections
from firstlight.infra.client.response import (
    STAY,
    Client,
    HttpVersion,
    Marks,
    Response,
    StreamResponse,
)
from firstlight.infra.client.sse import EventReader
from firstlight.infra.client.tcp import tls_context
from firstlight.infra.reply import api_error
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import FirstlightError, PeerError

Api = Literal["completions", "chat"]
_PATHS = {"completions": "/completions", "chat": "/chat/completions"}
ERROR_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Where:
    """A server as it was asked for."""

    url: str
    """Base URL of its API, like https://localhost:8443/v1."""
    http: HttpVersion = "1"
    api: Api = "completions"
    model: str | None = None
    key: str | None = None
    ca: Path | None = None
    name: str = "A"
    connect_timeout_s: float = 10.0

    @property
    def server(self) -> str:
        """Scheme, host and port."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def path(self) -> str:
        """Of the API below the server; `/v1` if the URL has none."""
        return urlsplit(self.url).path.rstrip("/") or "/v1"


@dataclass(slots=True)
class Target:
    """A server and what is known of it. Made by `reach`; close its `connections`."""

    where: Where
    connections: Connections
    model: str
    context_tokens: int | None
    """As the server tells, if it does."""
    go_on: dict[str, Any] = field(default_factory=dict)
    """What keeps its answers from ending early."""

    def body(self, prompt: str, tokens_out: int) -> bytes:
        """One request, streaming."""
        return json.dumps(self._fields(prompt, tokens_out, stream=True)).encode()

    def _fields(self, prompt: str, tokens_out: int, *, stream: bool) -> dict[str, Any]:
        chat = {"messages": [{"role": "user", "content": prompt}]}
        asked = chat if self.where.api == "chat" else {"prompt": prompt}
        fields = {"model": self.model, **asked, "max_tokens": tokens_out, "temperature": 0}
        streaming = {"stream_options": {"include_usage": True}} if stream else {}
        return fields | {"stream": stream} | streaming | self.go_on

    async def learn(self) -> None:
        """Find out how its answers are kept from ending early. Raises `PeerError` if it fails."""
        for fields in GO_ON:
            self.go_on = fields
            body = json.dumps(self._fields("Hello", 1, stream=False)).encode()
            async with self.connections.warm() as client:
                response = await client.request("POST", self._path, _headers(self.where), body)
            if response.status == 200:
                return
            if response.status not in REFUSED or not fields:
                said = api_error(response.status, response.body)
                raise PeerError(f"{self.where.server}{self._path}: {said.message}")

    async def ask(self, record: Record, body: bytes, timeout_s: float) -> None:
        """Send one request and note in `record` what came when. Raises nothing of its own; a
        cancelled one stays without an end."""
        record.sent_s = monotonic_s()
        answer, open_ = Answer(record.sent_s), self._connection(record.cold)
        try:
            async with asyncio.timeout(timeout_s), open_ as client:
                wrong = await self._exchange(client, body, record, answer)
        except TimeoutError:
            wrong = (Reason.TIMEOUT, f"not complete after {timeout_s:g} s")
        except Exception as error:  # whatever a client library raises is this request's failure
            begun = record.status is not None
            wrong = (Reason.CUT if begun else Reason.CONNECTION, _said(error))
        finally:
            _note_answer(record, answer)
        if wrong is None or (answer.complete and answer.events_s):
            record.ended_s = answer.last_s  # what breaks after the end costs nobody anything
        else:
            record.missed(*wrong, monotonic_s())

    async def _exchange(
        self, client: Client, body: bytes, record: Record, answer: Answer
    ) -> tuple[str, str] | None:
        """Feed `answer`; what was wrong with it, if anything: the reason, and who said what."""
        posted = client.stream("POST", self._path, _headers(self.where), body)
        async with posted as response:
            record.status = response.status
            _note_connection(record, response.marks)
            if response.status != 200:
                return http_reason(response.status), await _error_said(response)
            reader = EventReader()
            async for chunk in response.chunks():
                now = monotonic_s()
                for event in reader.feed(chunk):
                    try:
                        answer.feed(event.data, now)
                    except Exception as error:  # an error in the stream, or what is no chunk
                        return Reason.ERROR, _said(error)
        if not answer.complete:
            return Reason.CUT, "the stream ended before the answer did"
        return None if answer.events_s else (Reason.NO_TEXT, "an answer without text")

    def _connection(self, cold: bool) -> AbstractAsyncContextManager[Client]:
        return self.connections.cold() if cold else self.connections.warm()

    @property
    def _path(self) -> str:
        return self.where.path + _PATHS[self.where.api]


async def reach(where: Where) -> Target:
    """The server, asked for its models over a connection that then is warm.

    Raises:
        PeerError: it does not answer, or names no model.
        ConfigError: the URL, the CA or the version cannot be used.

    """
    tls = tls_context(where.ca) if where.http != "3" else None

    def open_one() -> Client:
        return open_client(
            where.server,
            where.http,
            ca_file=where.ca,
            connect_timeout_s=where.connect_timeout_s,
            tls=tls,
        )

    connections = Connections(open_one, where.http)
    try:
        async with connections.warm() as client:
            response = await client.request("GET", f"{where.path}/models", _headers(where))
        model, context = _model(where, response)
    except BaseException:
        await connections.aclose()
        raise
    return Target(where, connections, model, context)


def _model(where: Where, response: Response) -> tuple[str, int | None]:
    """The model to ask for and its context: the one that was named, or the first."""
    try:
        listed = {str(one["id"]): one for one in json.loads(response.body)["data"]}
        name = where.model or next(iter(listed))
        context = listed.get(name, {}).get("max_model_len")
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration) as error:
        if where.model is not None:
            return where.model, None
        said = f"HTTP {response.status}, {response.body[:200]!r}"
        raise PeerError(f"{where.url}/models names no model: {said}") from error
    return plain(name), context if type(context) is int and context > 0 else None


def _headers(where: Where) -> dict[str, str]:
    told = {"content-type": "application/json"} | STAY
    return told | ({"authorization": f"Bearer {where.key}"} if where.key else {})


def _note_connection(record: Record, marks: Marks) -> None:
    """Whether it found a connection, or waited for one: one of its own, or one just being made."""
    found = marks.connected_s is not None and marks.connected_s < marks.started_s
    record.cold = not found
    record.connected_s = None if found else marks.connected_s


def _note_answer(record: Record, answer: Answer) -> None:
    """Counts are the server's; one that tells none is taken to send a token an event."""
    record.events_s.extend(answer.events_s)
    tokens = _count(answer.usage_tokens)
    record.tokens_out = len(answer.events_s) if tokens is None else tokens
    record.tokens_in_told = _count(answer.prompt_tokens)
    record.tokens_cached = _count(answer.cached_tokens)


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


async def _error_said(response: StreamResponse) -> str:
    body = b""
    async for chunk in response.chunks():
        body += chunk
        if len(body) > ERROR_BYTES_MAX:
            break
    return api_error(response.status, body[:ERROR_BYTES_MAX]).message


def _said(error: Exception) -> str:
    if isinstance(error, FirstlightError):
        return error.message
    return f"{type(error).__name__}: {error}"
