"""What a client may send, checked: types by pydantic, strictly; then what no field says alone.

Unknown fields are ignored, as OpenAI's own servers and vLLM do. A field that we know but cannot
serve (tools, JSON schemas, audio …) is an error naming it: an answer that quietly lacks what was
asked for is worse. Extensions beside OpenAI's fields have vLLM's names; ours live in `firstlight`.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
)
from pydantic_core import ErrorDetails, from_json

from firstlight.shared.errors import RequestError
from firstlight.shared.types import Priority, Sampling

N_MAX = 8
PROMPTS_MAX = 16
STOPS_MAX = 4
STOP_CHARS_MAX = 256
LOGPROBS_MAX = 20
BIASES_MAX = 1024
MESSAGES_MAX = 2048
COMPLETION_TOKENS = 16
"""`max_tokens` of `/v1/completions` when absent, as in OpenAI's API."""
_INT64 = 1 << 63
_SHOWN_CHARS_MAX = 60

PRIORITIES = {
    "interactive": Priority.INTERACTIVE,
    "batch": Priority.BATCH,
    "best_effort": Priority.BEST_EFFORT,
}
"""What a client may claim. `CRITICAL` is the operator's to give."""

B = TypeVar("B", bound=BaseModel)
Penalty = Annotated[float, Field(ge=-2, le=2)]
StopText = Annotated[str, Field(min_length=1, max_length=STOP_CHARS_MAX)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 32)]
Tokens = Annotated[int, Field(ge=1, lt=1 << 31)]


def _few_biases(value: object) -> object:
    # Before any entry is looked at: pydantic would make an error for each of a million.
    if isinstance(value, dict) and len(value) > BIASES_MAX:
        raise ValueError(f"at most {BIASES_MAX} entries expected, not {len(value)}")
    return value


class _Body(BaseModel):
    model_config = ConfigDict(
        extra="ignore", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=()
    )


class StreamOptions(_Body):
    """How a stream is told."""

    include_usage: bool | None = None


def _lists(value: object) -> object:
    """One choice may say its ids without a list around them."""
    flat = isinstance(value, list) and not (value and isinstance(value[0], list))
    return [value] if flat else value


class Resume(_Body):
    """Go on with a stream that broke off: what its first chunk said, and what came of it."""

    cap: Annotated[str, Field(max_length=256)]
    seed: Annotated[int, Field(ge=-_INT64, lt=_INT64)]
    ids: (
        Annotated[
            list[Annotated[list[TokenId], Field(fail_fast=True)]],
            Field(fail_fast=True, max_length=N_MAX * PROMPTS_MAX),
            BeforeValidator(_lists),
        ]
        | None
    ) = None
    """Of each choice, the first `offset` ids."""
    streams: (
        Annotated[
            list[Annotated[str, Field(max_length=64)]],
            Field(fail_fast=True, min_length=1, max_length=N_MAX * PROMPTS_MAX),
        ]
        | None
    ) = None
    """In place of `ids`, where edges keep a journal: of each choice, the id of its stream."""
    offsets: (
        Annotated[
            list[Annotated[int, Field(ge=0, lt=1 << 31)]],
            Field(fail_fast=True, max_length=N_MAX * PROMPTS_MAX),
        ]
        | None
    ) = None
    """With `streams`: the last `offset` of each."""
    numerics_class: Annotated[str, Field(max_length=256)] | None = Field(None, alias="class")


class FirstlightOptions(_Body):
    """Our own knobs."""

    hints: Literal["on", "off"] | None = None
    priority: Literal["interactive", "batch", "best_effort"] | None = None
    ignore_eos: bool | None = None
    resume: Resume | None = None


class SamplingBody(_Body):
    """What both endpoints share. None is the same as absent."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    n: Annotated[int, Field(ge=1, le=N_MAX)] | None = None
    max_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    """0 and -1 keep all."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], BeforeValidator(_few_biases)]
        | None
    ) = None
    seed: Annotated[int, Field(ge=-_INT64, lt=_INT64)] | None = None
    stop: StopText | Annotated[list[StopText], Field(max_length=STOPS_MAX)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    firstlight: FirstlightOptions | None = None
    prompt_cache_key: object = None
    user: object = None
    response_format: object = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings, none twice."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(dict.fromkeys(given))

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class Part(_Body):
    """A part of a message's content. Only text can be served."""

    type: str
    text: str | None = None


class Message(_Body):
    """One turn of a chat."""

    role: str
    content: str | Annotated[list[Part], Field(fail_fast=True)] | None = None
    tool_calls: object = None
    function_call: object = None
    audio: object = None


class ChatBody(SamplingBody):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MESSAGES_MAX)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAX)] | None = None
    tools: object = None
    tool_choice: object = None
    functions: object = None
    function_call: object = None
    modalities: object = None
    audio: object = None
    prediction: object = None
    web_search_options: object = None


Ids = Annotated[list[TokenId], Field(fail_fast=True, min_length=1)]
IdLists = Annotated[list[Ids], Field(fail_fast=True, min_length=1, max_length=PROMPTS_MAX)]
Texts = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=PROMPTS_MAX)]


def _prompt_shape(prompt: object) -> str:
    """Which of its four shapes a prompt was meant to have, by its first item."""
    if not isinstance(prompt, list):
        return "text"
    first = prompt[0] if prompt else ""
    return "texts" if isinstance(first, str) else "id lists" if isinstance(first, list) else "ids"


class CompletionBody(SamplingBody):
    """`POST /v1/completions`."""

    prompt: Annotated[
        Annotated[str, Tag("text")]
        | Annotated[Texts, Tag("texts")]
        | Annotated[Ids, Tag("ids")]
        | Annotated[IdLists, Tag("id lists")],
        Discriminator(_prompt_shape),
    ]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=LOGPROBS_MAX)] | None = None
    suffix: object = None
    best_of: object = None

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """One entry a prompt."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return self.prompt


_UNSERVED: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("response_format", (None, {"type": "text"})),
    ("tools", (None, [])),
    ("tool_choice", (None, "none")),
    ("functions", (None, [])),
    ("function_call", (None, "none")),
    ("modalities", (None, ["text"])),
    ("audio", (None,)),
    ("prediction", (None,)),
    ("web_search_options", (None,)),
    ("suffix", (None, "")),
    ("best_of", (None, 1)),
)
"""Fields with the values that ask for nothing we lack."""

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def parse_chat(raw: bytes) -> ChatBody:
    """A checked body. Raises `RequestError` naming the field that is wrong."""
    body = _validate(ChatBody, raw)
    _check(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError(
            f"top_logprobs {body.top_logprobs} without logprobs: true", param="top_logprobs"
        )
    if None not in (body.max_tokens, body.max_completion_tokens) and (
        body.max_tokens != body.max_completion_tokens
    ):
        raise RequestError(
            f"max_tokens {body.max_tokens} and max_completion_tokens {body.max_completion_tokens} "
            "contradict each other",
            param="max_completion_tokens",
        )
    return body


def parse_completion(raw: bytes) -> CompletionBody:
    """A checked body. Raises `RequestError` naming the field that is wrong."""
    body = _validate(CompletionBody, raw)
    _check(body)
    if body.echo and body.logprobs is not None:
        raise RequestError("logprobs of an echoed prompt are not served", param="logprobs")
    return body


def chat_messages(body: ChatBody) -> list[dict[str, object]]:
    """Messages as a template wants them: role and one text each."""
    return [_message(message, f"messages.{i}") for i, message in enumerate(body.messages)]


def sampling_of(body: ChatBody | CompletionBody, vocab: int) -> Sampling:
    """How ids are chosen; absent is OpenAI's default: temperature 1, top_p 1."""
    if isinstance(body, ChatBody):
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
    else:
        logprobs = body.logprobs
    return Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        min_p=body.min_p or 0.0,
        repetition_penalty=body.repetition_penalty or 1.0,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_biases(body.logit_bias or {}, vocab),
        logprobs=logprobs,
    )


def _biases(given: dict[str, float], vocab: int) -> tuple[tuple[int, float], ...]:
    biases: dict[int, float] = {}
    for key, bias in given.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < vocab):
            raise RequestError(
                f"logit_bias key {_shown(key)}: a token id from 0 to {vocab - 1} expected",
                param="logit_bias",
            )
        biases[int(key)] = bias
    return tuple(sorted(biases.items()))


def _message(message: Message, where: str) -> dict[str, object]:
    role = _ROLES.get(message.role)
    if role is None:
        raise RequestError(
            f"role {_shown(message.role)}: one of {', '.join(_ROLES)} expected",
            param=f"{where}.role",
        )
    for field in ("tool_calls", "function_call", "audio"):
        if getattr(message, field) not in (None, []):
            raise RequestError(f"{field} of a message is not served", param=f"{where}.{field}")
    if message.content is None and role != "assistant":
        raise RequestError(
            f"content null of a {message.role} message: text expected", param=f"{where}.content"
        )
    if isinstance(message.content, list):
        texts = [_text(part, f"{where}.content.{i}") for i, part in enumerate(message.content)]
        return {"role": role, "content": "".join(texts)}
    return {"role": role, "content": message.content or ""}


def _text(part: Part, where: str) -> str:
    if part.type != "text":
        raise RequestError(
            f"content part of type {_shown(part.type)}: this model reads text only",
            param=f"{where}.type",
        )
    if part.text is None:
        raise RequestError("a text part without text", param=f"{where}.text")
    return part.text


def _check(body: SamplingBody) -> None:
    for field, served in _UNSERVED:
        value = getattr(body, field, None)
        # `True == 1` in Python, but not in JSON.
        if value not in served or isinstance(value, bool):
            raise RequestError(f"{field} {_shown(value)} is not served", param=field)
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options without stream: true", param="stream_options")


def _validate(model: type[B], raw: bytes) -> B:
    try:
        # Refuses bad UTF-8, lone surrogates, NaN, and nesting deeper than 200, each with its place.
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise RequestError(f"the body is {_kind(value)}: a JSON object expected")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _first_error(
            value, error.errors(include_url=False, include_context=False, include_input=False)
        ) from None


def _first_error(value: object, details: Sequence[ErrorDetails]) -> RequestError:
    """One error from pydantic's list: the field furthest in, with every reason given for it."""
    places = [(_place(value, detail), detail["msg"]) for detail in details]
    # A union reports each of its branches; the one that went deepest is the one that was meant.
    first = places[0][0][:1]
    place = max((place for place, _ in places if place[:1] == first), key=len)
    reasons = dict.fromkeys(reason for other, reason in places if other == place)
    param = ".".join(str(step)[:_SHOWN_CHARS_MAX] for step in place)
    found: Any = value
    for step in place:
        found = found.get(step, _ABSENT) if isinstance(step, str) else found[step]
    shown = "" if found is _ABSENT else f" {_shown(found)}"
    return RequestError(f"{param}{shown}: {' or '.join(reasons)}", param=param or None)


_ABSENT = object()


def _place(value: object, detail: ErrorDetails) -> tuple[str | int, ...]:
    """The path of an error in the body: pydantic's, without the names of union branches."""
    place: list[str | int] = []
    found: Any = value
    for step in detail["loc"]:
        if _holds(found, step):
            place.append(step)
            found = found[step]
    if detail["type"] == "missing":
        place.append(detail["loc"][-1])
    return tuple(place)


def _holds(value: object, step: int | str) -> bool:
    if isinstance(value, list):
        return isinstance(step, int) and step < len(value)
    return isinstance(value, dict) and step in value


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, dict | list) else _kind(value)
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "…"


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")
