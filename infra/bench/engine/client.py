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

from firstlight.infra.bench.engine.figures import Timing
from firstlight.infra.client.sse import EventReader
from firstlight.infra.reply import api_error
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import FirstlightError, PeerError

ANSWER_S = 300.0
"""The longest wait for the next bytes of an answer."""
CONNECT_S = 10.0
_REFUSED = (400, 422)
_GO_ON: tuple[dict[str, Any], ...] = (
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
    details: dict[str, Any] = field(default_factory=dict)
    """Our own servers' `firstlight` objects, later ones over earlier ones."""

    @property
    def timing(self) -> Timing:
        """For figures. A server that tells no usage is taken to send a token an event."""
        tokens = len(self.events_s) if self.usage_tokens is None else self.usage_tokens
        return Timing(self.sent_s, tuple(self.events_s), tokens)

    def feed(self, data: str, now: float) -> None:
        """Take the data of one event. Raises the error that it carries, or `PeerError`."""
        try:
            chunk = json.loads(data)
            choices = chunk.get("choices") or [{}]
            text, usage = choices[0].get("text"), chunk.get("usage")
        except (ValueError, AttributeError, LookupError, TypeError) as error:
            raise PeerError(f"the stream carried what is no chunk: {data[:80]!r}") from error
        if "error" in chunk:
            raise api_error(None, data)
        if text:
            self.events_s.append(now)
            self.text += text
        if usage:
            self.usage_tokens = usage.get("completion_tokens")
        self.details |= chunk.get("firstlight") or {}


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
        for fields in _GO_ON:
            self._go_on = fields
            response = await self._probe()
            if response.status_code == 200:
                break
            if response.status_code not in _REFUSED or not fields:
                said = api_error(response.status_code, response.content)
                raise PeerError(f"{self.url}/completions: {said.message}")
        self.takes_seed = (await self._probe(seed=1)).status_code not in _REFUSED

    async def _probe(self, **fields: Any) -> httpx.Response:
        body = self._body("Hello", 1, fields) | {"stream": False}
        del body["stream_options"]
        try:
            return await self._http.post(f"{self.url}/completions", json=body)
        except httpx.HTTPError as error:
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
            FirstlightError: it was refused, broke off, or brought no text.

        """
        body = self._body(prompt, max_tokens, fields)
        answer, reader = Answer(monotonic_s()), EventReader()
        try:
            async with self._http.stream("POST", f"{self.url}/completions", json=body) as response:
                if response.status_code != 200:
                    raise api_error(response.status_code, await response.aread())
                async for piece in response.aiter_raw():
                    now = monotonic_s()
                    for event in reader.feed(piece):
                        if event.data == "[DONE]":
                            continue
                        before = len(answer.events_s)
                        answer.feed(event.data, now)
                        if len(answer.events_s) > before:
                            on_text()
        except (httpx.HTTPError, ValueError) as error:
            raise PeerError(f"{self.url}: {_said(error)}") from error
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
        response = await http.get(f"{url}/models")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise PeerError(f"no server answers at {url}/models: {_said(error)}") from error
    try:
        return str(response.json()["data"][0]["id"])
    except (ValueError, LookupError, TypeError) as error:
        said = f"HTTP {response.status_code}, {response.text[:200]!r}"
        raise PeerError(f"{url}/models names no model: {said}") from error


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_BODY_CHARS_MAX]
