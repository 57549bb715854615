"""The OpenAI API as an ASGI app: paths, and from a body to what the mesh is asked.

    bytes ─► schema ─► Ask (tokenized, checked against the model) ─► Reply ─► sse | one body

Bodies are read and checked here, so that every error has OpenAI's shape.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from firstlight.edge_node.answer import AnswerSource, Ask
from firstlight.edge_node.journal import Journal
from firstlight.edge_node.middleware import (
    MARKS,
    TIMELINE,
    Access,
    AccessCounts,
    EdgeMiddleware,
    Marks,
    note_failure,
)
from firstlight.edge_node.openai.affinity import session_of
from firstlight.edge_node.openai.edges import SendOn, edge_routes
from firstlight.edge_node.openai.errors import http_error
from firstlight.edge_node.openai.objects import Chat, Completions, Dialect, Origin
from firstlight.edge_node.openai.reply import Reply, error_response
from firstlight.edge_node.openai.schema import (
    COMPLETION_TOKENS,
    PRIORITIES,
    ChatBody,
    CompletionBody,
    Resume,
    chat_messages,
    parse_chat,
    parse_completion,
    sampling_of,
)
from firstlight.edge_node.openai.sessions import Call, Pace, Sessions
from firstlight.edge_node.openai.streams import Streams, key_of
from firstlight.edge_node.openai.timelines import timeline_route
from firstlight.edge_node.resume import Seals
from firstlight.edge_node.stream_log import IdempotencyKey, StreamsConfig
from firstlight.edge_node.tenants import Tenants
from firstlight.edge_node.timeline import Timeline, Timelines
from firstlight.shared.clock import monotonic_s, unix_s
from firstlight.shared.errors import (
    Cancelled,
    CapacityError,
    FirstlightError,
    NotFoundError,
    RequestError,
    TooLargeError,
)
from firstlight.shared.geography.desk import Desk
from firstlight.shared.types import Priority, check_ids

_SEED_BITS = 53
"""Of a seed that we draw: what JavaScript can send back unharmed."""
_DISCARDED_SHARE_MAX = 4
"""A body of up to this many times the limit is read, and thrown away, before it is refused."""
_INLINE_BYTES_MAX = 16 << 10
"""Bodies above this are tokenized beside the event loop."""
AUTO = "auto"
"""The name that leaves the choice of a model to us."""
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class TextTokenizer(Protocol):
    """What the API needs of a tokenizer."""

    @property
    def vocab(self) -> int:
        """Number of ids."""
        ...

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Ids of a text; `special` reads control tokens in it as such."""
        ...

    def decode(self, ids: Sequence[int], /) -> str:
        """Text of ids."""
        ...

    def token_bytes(self, token: int, /) -> bytes:
        """Exact bytes of an id; none for a control token."""
        ...


T = TypeVar("T")
EncodeChat = Callable[[Sequence[dict[str, object]]], Sequence[int]]
"""Messages, each with `role` and `content`, to prompt ids. Control tokens in content stay text."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model that clients may name."""

    id: str
    context_max: int
    """Tokens of prompt and answer together."""
    created: int = 0
    """Unix seconds."""
    owned_by: str = "firstlight"


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """Bounds of one request."""

    body_bytes_max: int = 2 << 20
    choices_max: int = 32
    """Prompts × n."""
    budget_s: float = 600.0
    pace: Pace = field(default_factory=Pace)


class Api:
    """The handlers, with what they need."""

    def __init__(
        self,
        source: AnswerSource,
        tokenizer: TextTokenizer,
        encode_chat: EncodeChat,
        models: Callable[[], Sequence[ModelEntry]],
        tenants: Tenants,
        streams: Streams,
        limits: ApiLimits,
        entropy: random.Random,
        timelines: Timelines,
    ) -> None:
        self._source, self._tokenizer, self._encode_chat = source, tokenizer, encode_chat
        self._models, self._tenants, self._limits = models, tenants, limits
        self._streams = streams
        self._entropy, self._timelines = entropy, timelines

    async def chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        tenant = self._begin(request, Chat.id_prefix)
        raw = await _read(request, self._limits.body_bytes_max)
        key = key_of(request, tenant, raw)
        body = parse_chat(raw)
        model = self._model(body.model, "model")
        messages = chat_messages(body)
        prompt = await _beside(len(raw), lambda: self._encode_chat(messages))
        wanted = body.max_completion_tokens or body.max_tokens
        dialect = Chat(self._tokenizer.token_bytes, bool(body.logprobs))
        prompts = [(tuple(prompt), "messages")]
        return await self._reply(request, tenant, key, body, model, prompts, wanted, dialect)

    async def completions(self, request: Request) -> Response:
        """`POST /v1/completions`: `n` choices to each prompt."""
        tenant = self._begin(request, Completions.id_prefix)
        raw = await _read(request, self._limits.body_bytes_max)
        key = key_of(request, tenant, raw)
        body = parse_completion(raw)
        model = self._model(body.model, "model")
        given = body.prompts
        count = len(given) * (body.n or 1)
        if count > self._limits.choices_max:
            raise RequestError(
                f"{len(given)} prompts × n {body.n or 1} = {count} choices, "
                f"at most {self._limits.choices_max} expected",
                param="n",
            )
        prompts = await _beside(len(raw), lambda: [self._ids(prompt) for prompt in given])
        named = [
            (ids, "prompt" if len(given) == 1 else f"prompt.{i}") for i, ids in enumerate(prompts)
        ]
        wanted = body.max_tokens or COMPLETION_TOKENS
        resumed = body.firstlight is not None and body.firstlight.resume is not None
        if body.echo and resumed and count > 1:  # which of them were echoed is not known
            raise RequestError(
                f"echo of {count} choices cannot be resumed", param="firstlight.resume"
            )
        echoes = self._echoes(given, body.n or 1) if body.echo and not resumed else ()
        dialect = Completions(self._tokenizer.token_bytes, body.logprobs is not None, echoes)
        return await self._reply(request, tenant, key, body, model, named, wanted, dialect)

    async def list_models(self, request: Request) -> Response:
        """`GET /v1/models`."""
        self._tenant(request)
        data = [_model_object(model) for model in self._models()]
        return JSONResponse({"object": "list", "data": data})

    async def get_model(self, request: Request) -> Response:
        """`GET /v1/models/{id}`."""
        self._tenant(request)
        return JSONResponse(_model_object(self._model(request.path_params["model"], "model")))

    def _tenant(self, request: Request) -> str:
        return self._tenants.of(request.headers.get("authorization"))

    def _begin(self, request: Request, id_prefix: str) -> str:
        """The tenant of a request for an answer, whose timeline, and id, begin here."""
        tenant, marks = self._tenant(request), request.scope[MARKS]
        answer = f"{id_prefix}{self._entropy.getrandbits(128):032x}"
        request.scope[TIMELINE] = self._timelines.begin(answer, tenant, marks.received_s)
        return tenant

    def _model(self, name: str, param: str) -> ModelEntry:
        served = self._models()
        if not served:
            raise CapacityError("no core is linked yet", retry_after_s=1.0)
        for model in served:
            if name in (model.id, AUTO):
                return model
        raise NotFoundError(
            f"the model {name[:80]!r} is not served here; these are: "
            f"{', '.join(model.id for model in served)}",
            param=param,
            code="model_not_found",
        )

    def _ids(self, prompt: str | list[int]) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self._tokenizer.encode(prompt, special=True))
        return tuple(prompt)

    def _echoes(self, prompts: Sequence[str | list[int]], n: int) -> list[str]:
        texts = [p if isinstance(p, str) else self._tokenizer.decode(p) for p in prompts]
        return [text for text in texts for _ in range(n)]

    async def _reply(
        self,
        request: Request,
        tenant: str,
        key: IdempotencyKey | None,
        body: ChatBody | CompletionBody,
        model: ModelEntry,
        prompts: Sequence[tuple[tuple[int, ...], str]],
        wanted: int | None,
        dialect: Dialect,
    ) -> Reply:
        """`prompts`: (ids, name of the field that they are from)."""
        marks: Marks = request.scope[MARKS]
        timeline: Timeline = request.scope[TIMELINE]
        options = body.firstlight
        resume = options.resume if options else None
        seed = self._seed(body, resume)
        for ids, param in prompts:
            self._check_prompt(ids, param, model)
        ask = Ask(
            tenant=tenant,
            model=model.id,
            prompts=tuple(ids for ids, _ in prompts),
            sampling=sampling_of(body, self._tokenizer.vocab),
            seed=seed % (1 << 64),
            max_tokens=wanted,
            context_max=model.context_max,
            n=body.n or 1,
            stop=body.stops,
            ignore_eos=bool(options and options.ignore_eos),
            hints=not (options and options.hints == "off"),
            priority=PRIORITIES[options.priority]
            if options and options.priority
            else Priority.INTERACTIVE,
            budget_s=self._limits.budget_s,
            session=session_of(tenant, body),
            received_s=marks.received_s,
            timeline=timeline,
        )
        if resume is not None:
            ask = await self._streams.resumed(ask, resume, stream=bool(body.stream))
        count, tokens = len(ask.prompts) * ask.n, sum(map(len, ask.prompts))
        timeline.note(
            "tokenized", monotonic_s(), prompt_tokens=tokens, model=model.id, choices=count
        )
        origin = Origin(
            id=timeline.id,
            model=model.id,
            created=int(unix_s()),
            seed=seed,
            edge=self._source.edge,
            edge_region=self._source.region,
            protocol=marks.protocol,
        )
        call = Call(
            self._source,
            ask,
            dialect,
            origin,
            self._streams.seals.seal,
            stream=bool(body.stream),
            include_usage=body.include_usage,
            pace=self._limits.pace,
        )
        return self._streams.reply(call, key)

    def _seed(self, body: ChatBody | CompletionBody, resume: Resume | None) -> int:
        if resume is not None:
            if body.seed not in (None, resume.seed):
                raise RequestError(
                    f"seed {body.seed}, but firstlight.resume.seed {resume.seed}", param="seed"
                )
            return resume.seed
        return self._entropy.getrandbits(_SEED_BITS) if body.seed is None else body.seed

    def _check_prompt(self, ids: tuple[int, ...], param: str, model: ModelEntry) -> None:
        if not ids:
            raise RequestError("an empty prompt: at least one token expected", param=param)
        if (wrong := check_ids(ids, self._tokenizer.vocab)) is not None:
            raise RequestError(
                f"token id {ids[wrong]} at {wrong}: from 0 to {self._tokenizer.vocab - 1} expected",
                param=param,
            )
        if len(ids) >= model.context_max:
            raise RequestError(
                f"the prompt has {len(ids)} tokens, but {model.id} has room for "
                f"{model.context_max}, one of the answer included",
                param=param,
                code="context_length_exceeded",
            )


def create_app(
    source: AnswerSource,
    tokenizer: TextTokenizer,
    encode_chat: EncodeChat,
    models: Callable[[], Sequence[ModelEntry]],
    tenants: Tenants,
    seals: Seals,
    *,
    streams: StreamsConfig | None = None,
    journal: Journal | None = None,
    limits: ApiLimits | None = None,
    not_ready: Callable[[], str | None] = lambda: None,
    metrics: Callable[[], bytes] | None = None,
    counts: AccessCounts | None = None,
    on_access: Callable[[Access], None] | None = None,
    on_failure: Callable[[FirstlightError], None] | None = None,
    entropy: random.Random | None = None,
    timelines: Timelines | None = None,
    desk: Desk | None = None,
) -> Starlette:
    """The app for both listeners.

    `not_ready` says why this node should get no requests now, or None. `metrics` gives Prometheus'
    text; without it there is no `/metrics`. `entropy` draws seeds and ids: the system's by default.
    `timelines` remembers what happened to requests. `on_failure` hears of each request that is
    refused before it is sent off. `desk` says which edges there are.
    """
    timelines = Timelines() if timelines is None else timelines
    kept = Streams(
        tenants, seals, tokenizer.vocab, Sessions(streams or StreamsConfig(), journal), journal
    )
    api = Api(
        source,
        tokenizer,
        encode_chat,
        models,
        tenants,
        kept,
        limits or ApiLimits(),
        entropy or random.SystemRandom(),
        timelines,
    )
    routes = [
        Route("/v1/chat/completions", api.chat, methods=["POST"]),
        Route("/v1/completions", api.completions, methods=["POST"]),
        Route("/v1/streams/{stream}", kept.get, methods=["GET"]),
        Route("/v1/models", api.list_models, methods=["GET"]),
        Route("/v1/models/{model:path}", api.get_model, methods=["GET"]),
        timeline_route(timelines, tenants, source.edge),
        *([] if desk is None else edge_routes(desk)),
        *_operations(not_ready, metrics),
    ]
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(
                EdgeMiddleware,
                counts=counts or AccessCounts(),
                on_access=on_access,
                on_failure=on_failure,
            ),
            *([] if desk is None else [Middleware(SendOn, desk=desk)]),
        ],
        exception_handlers={FirstlightError: _on_error, HTTPException: _on_error},
    )
    app.router.redirect_slashes = False
    return app


def _operations(
    not_ready: Callable[[], str | None], metrics: Callable[[], bytes] | None
) -> list[Route]:
    async def livez(_: Request) -> Response:
        return JSONResponse({"status": "alive"})

    async def readyz(_: Request) -> Response:
        reason = not_ready()
        status = (
            {"status": "ready"} if reason is None else {"status": "not ready", "reason": reason}
        )
        return JSONResponse(status, 200 if reason is None else 503)

    routes = [Route("/livez", livez, methods=["GET"]), Route("/readyz", readyz, methods=["GET"])]
    if metrics is not None:
        expose = metrics

        async def exposition(_: Request) -> Response:
            return Response(expose(), media_type=_METRICS_TYPE)

        routes.append(Route("/metrics", exposition, methods=["GET"]))
    return routes


async def _on_error(request: Request, error: Exception) -> Response:
    """Every error that a handler or the router raised, in OpenAI's shape."""
    if isinstance(error, FirstlightError):
        note_failure(request.scope, error, monotonic_s())
        return error_response(error)
    assert isinstance(error, HTTPException), error
    told = http_error(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
    response = error_response(told)
    response.headers.update(error.headers or {})
    return response


async def _read(request: Request, bytes_max: int) -> bytes:
    """The body. Raises `TooLargeError` if it is, at once where that is told and absurd.

    What is somewhat too large is read to its end and thrown away: many HTTP clients do not look for
    an answer while they send, and would report a broken connection in place of our error.
    """
    told = request.headers.get("content-length", "")
    chunks, size = [], int(told) if told.isascii() and told.isdigit() and len(told) < 20 else 0
    bytes_read_max = _DISCARDED_SHARE_MAX * bytes_max
    if size <= bytes_read_max:
        size, more = 0, True
        while more and size <= bytes_read_max:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise Cancelled("the client went away before its request was here")
            chunk, more = message.get("body", b""), message.get("more_body", False)
            size += len(chunk)
            if size <= bytes_max:
                chunks.append(chunk)
            else:
                chunks.clear()
    if size > bytes_max:
        raise TooLargeError(f"a body of {size} bytes or more, at most {bytes_max} expected")
    return b"".join(chunks)


async def _beside(size_bytes: int, work: Callable[[], T]) -> T:
    """Work on a large body must not keep every other stream waiting."""
    return await asyncio.to_thread(work) if size_bytes > _INLINE_BYTES_MAX else work()


def _model_object(model: ModelEntry) -> dict[str, object]:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": model.owned_by,
        "max_model_len": model.context_max,
    }
