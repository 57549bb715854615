"""One asynchronous client of any server with OpenAI's API: streams, and when their text arrived.

Cheap on purpose, since it shares the machine with what it measures: one connection pool, and of
each event only what is looked at here. What a server refuses (`ignore_eos`, `seed`) is found out
once, by a short request, so that a later refusal is a failure and not a reason to ask again.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from firstlight.infra.bench.timing import Timing
from firstlight.infra.client.sse import EventReader
from firstlight.infra.reply import api_error
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import FirstlightError, PeerError

ANSWER_S = 300.0
"""The longest wait for the next bytes of an answer."""
CONNECT_S = 10.0
WHOLE_ANSWER_S = 1800.0
"""The longest that one may take, however steadily its bytes come."""
ANSWER_BYTES_MAX = 64 << 20
"""The most that is read of one; the longest here has some hundred KB."""
REFUSED = (400, 422)
GO_ON: tuple[dict[str, Any], ...] = (
    {"ignore_eos": True, "firstlight": {"ignore_eos": True}},
    {"ignore_eos": True},
    {},
)
"""Ways of asking for an answer that does not end early, the best first."""
_BODY_CHARS_MAX = 2000


@dataclass(slots=True)
class Answer:
    """A complete answer and when it came."""

    sent_s: float
    events_s: list[float] = field(default_factory=list)
    text: str = ""
    usage_tokens: int | None = None
    prompt_tokens: int | None = None
    """Of the prompt, as the server counted them."""
    cached_tokens: int | None = None
    """Of the prompt, those that the server says it had already."""
    complete: bool = False
    """Whether its end has come: a finish reason, or `[DONE]`."""
    last_s: float | None = None
    """When the latest event came, with text or without."""
    details: dict[str, Any] = field(default_factory=dict)
    """Our own servers' `firstlight` objects, later ones over earlier ones."""

    @property
    def timing(self) -> Timing:
        """For figures. A server that tells no usage is taken to send a token an event."""
        tokens = len(self.events_s) if self.usage_tokens is None else self.usage_tokens
        return Timing(self.sent_s, tuple(self.events_s), tokens)

    def feed(self, data: str, now: float) -> None:
        """Take the data of one event. Raises the error that it carries, or `PeerError`."""
        self.last_s = now
        if data.strip() == "[DONE]":
            self.complete = True
            return
        chunk = _object(data)
        if "error" in chunk:
            raise api_error(None, data)
        choices, usage = chunk.get("choices") or [{}], chunk.get("usage") or {}
        details = chunk.get("firstlight") or {}
        first = choices[0] if isinstance(choices, list) else None
        if not (isinstance(first, dict) and isinstance(usage, dict) and isinstance(details, dict)):
            raise _no_chunk(data)
        text = _text(first)
        tokens, prompt, cached = _counts(usage)
        if not isinstance(text, str) or not all(map(_is_count, (tokens, prompt, cached))):
            raise _no_chunk(data)
        if text:
            self.events_s.append(now)
            self.text += text
        self.usage_tokens = self.usage_tokens if tokens is None else tokens
        self.prompt_tokens = self.prompt_tokens if prompt is None else prompt
        self.cached_tokens = self.cached_tokens if cached is None else cached
        self.complete = self.complete or first.get("finish_reason") is not None
        self.details |= details


def _text(choice: dict[str, Any]) -> object:
    """What a choice adds, in the shape of a completion or of a chat (thoughts are text too)."""
    delta = choice.get("delta") or {}
    if not isinstance(delta, dict):
        return None
    return choice.get("text") or delta.get("content") or delta.get("reasoning_content") or ""


def _counts(usage: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Tokens of the answer, of the prompt, and how many of these were cached; as they stand."""
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return usage.get("completion_tokens"), usage.get("prompt_tokens"), cached


class Server:
    """A server that answers. Made by `open_server`."""

    def __init__(self, http: httpx.AsyncClient, url: str, model: str) -> None:
        self._http, self.url, self.model = http, url, model
        self._go_on: dict[str, Any] = {}
        self.takes_seed = True
        """Whether it answers requests that name a seed."""
        self.numerics_class: str | None = None
        """Of its last answer; None of a server that has none."""

    async def learn(self) -> None:
        """Find out what it takes. Raises `PeerError` if it takes none of it."""
        for fields in GO_ON:
            self._go_on = fields
            status, said = await self._probe()
            if status == 200:
                _check_completion(f"{self.url}/completions", said)
                break
            if status not in REFUSED or not fields:
                error = api_error(status, said)
                raise PeerError(f"{self.url}/completions: {error.message}")
        self.takes_seed = (await self._probe(seed=1))[0] not in REFUSED

    async def _probe(self, **fields: Any) -> tuple[int, bytes]:
        body = self._body("Hello", 1, fields) | {"stream": False}
        del body["stream_options"]
        try:
            return await _reply(self._http, "POST", f"{self.url}/completions", body)
        except (httpx.HTTPError, OSError) as error:
            raise PeerError(f"{self.url}/completions: {_said(error)}") from error

    def _body(self, prompt: str, max_tokens: int, fields: dict[str, Any]) -> dict[str, Any]:
        told = {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return told | stream | self._go_on | fields

    async def ask(
        self,
        prompt: str,
        max_tokens: int,
        *,
        on_text: Callable[[], None] = lambda: None,
        **fields: Any,
    ) -> Answer:
        """One stream to its end; `on_text` is called at each event with text.

        Raises:
            FirstlightError: it was refused, broke off, brought no text, or did not end.

        """
        body = self._body(prompt, max_tokens, fields)
        answer = Answer(monotonic_s())
        try:
            async with (
                asyncio.timeout(WHOLE_ANSWER_S),
                self._http.stream("POST", f"{self.url}/completions", json=body) as response,
            ):
                if response.status_code != 200:
                    raise api_error(response.status_code, await _body_of(response))
                await _follow(response, answer, on_text)
        except TimeoutError as error:
            count = len(answer.events_s)
            raise PeerError(
                f"{self.url}: no end of an answer in {WHOLE_ANSWER_S:g} s, after {count} events"
            ) from error
        except (httpx.HTTPError, OSError, ValueError) as error:
            raise PeerError(f"{self.url}: {_said(error)}") from error
        if not answer.complete:
            raise PeerError(f"{self.url}: an answer broke off after {len(answer.events_s)} events")
        if not answer.events_s:
            raise PeerError(f"{self.url}: an answer without text")
        self.numerics_class = answer.details.get("class", self.numerics_class)
        return answer

    async def ask_all(
        self, prompts: Sequence[str], max_tokens: int, fields: Sequence[dict[str, Any]] = ()
    ) -> list[Answer | FirstlightError]:
        """All at once; of each its answer, or why there is none. `fields`: more of each body."""
        more = fields or [{}] * len(prompts)
        tasks = [
            asyncio.create_task(self.attempt(prompt, max_tokens, **extra))
            for prompt, extra in zip(prompts, more, strict=True)
        ]
        return list(await asyncio.gather(*tasks))

    async def attempt(
        self, prompt: str, max_tokens: int, **fields: Any
    ) -> Answer | FirstlightError:
        """`ask`, with the error as a value."""
        try:
            return await self.ask(prompt, max_tokens, **fields)
        except FirstlightError as error:
            return error


@asynccontextmanager
async def open_server(
    url: str, *, model: str | None = None, key: str | None = None, verify: ssl.SSLContext | bool
) -> AsyncIterator[Server]:
    """The server at `url` (…/v1). Raises `PeerError` if none is there or it does not answer."""
    url = url.rstrip("/")
    async with httpx.AsyncClient(
        verify=verify,
        headers={"authorization": f"Bearer {key}"} if key else {},
        timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        trust_env=False,
    ) as http:
        server = Server(http, url, model or await _first_model(http, url))
        await server.learn()
        yield server


async def _first_model(http: httpx.AsyncClient, url: str) -> str:
    try:
        status, said = await _reply(http, "GET", f"{url}/models")
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise PeerError(f"no server answers at {url}/models: {_said(error)}") from error
    try:
        return str(json.loads(said)["data"][0]["id"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        shown = f"HTTP {status}, {_shown(said)}"
        raise PeerError(f"{url}/models names no model: {shown}") from error


async def _follow(response: httpx.Response, answer: Answer, on_text: Callable[[], None]) -> None:
    """Feed a stream to an answer. Raises `PeerError` for one that is too long, or no stream."""
    reader, size = EventReader(), 0
    async for piece in response.aiter_raw():
        now, size = monotonic_s(), size + len(piece)
        if size > ANSWER_BYTES_MAX:
            raise PeerError(f"{response.url}: an answer of more than {ANSWER_BYTES_MAX} bytes")
        for event in reader.feed(piece):
            before = len(answer.events_s)
            answer.feed(event.data, now)
            if len(answer.events_s) > before:
                on_text()


async def _reply(
    http: httpx.AsyncClient, method: str, url: str, body: dict[str, Any] | None = None
) -> tuple[int, bytes]:
    """Status and body of what is no stream."""
    async with (
        asyncio.timeout(WHOLE_ANSWER_S),
        http.stream(method, url, json=body) as response,
    ):
        return response.status_code, await _body_of(response)


async def _body_of(response: httpx.Response) -> bytes:
    """All of it, or its first `ANSWER_BYTES_MAX`."""
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) >= ANSWER_BYTES_MAX:
            break
    return bytes(body[:ANSWER_BYTES_MAX])


def _check_completion(where: str, said: bytes) -> None:
    """Raise `PeerError` unless this is what a completion looks like."""
    try:
        json.loads(said)["choices"][0]["text"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise PeerError(f"{where} answers with no completion: {_shown(said)}") from error


def _object(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _no_chunk(data) from error
    if not isinstance(chunk, dict):
        raise _no_chunk(data)
    return chunk


def _no_chunk(data: str) -> PeerError:
    return PeerError(f"the stream carried what is no chunk: {data[:80]!r}")


def _is_count(value: object) -> bool:
    """A number of tokens, or none told."""
    return value is None or (type(value) is int and value >= 0)


def _shown(said: bytes) -> str:
    return repr(said[:200].decode("utf-8", "replace"))


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_BODY_CHARS_MAX]
