"""The JSON objects of an answer: choices, logprobs, usage, and our `firstlight`.

`Chat` and `Completions` say the same things in two shapes; whatever tells an answer (`sse` in
pieces, `reply` at once) speaks through them.
"""

from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol

from firstlight.edge_node.answer import Ask, ChoiceStats, Event, TokenText
from firstlight.shared.types import FinishReason

Object = dict[str, object]
_LOGPROB_MIN = -9999.0
"""JSON has no −∞; OpenAI's API says this."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What is alike for all choices of one request."""

    id: str
    model: str
    created: int
    """Unix seconds."""
    seed: int
    """As the client would send it again."""
    edge: str
    edge_region: str
    protocol: str
    """h1, h2 or h3."""


@dataclass(frozen=True, slots=True)
class Served:
    """One choice's stream id, and where its statistics are."""

    stream: str
    stats: Callable[[], ChoiceStats]


@dataclass(slots=True)
class Whole:
    """One choice, put together from its events."""

    text: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    tokens: list[TokenText] = field(default_factory=list)
    finish: FinishReason | None = None

    def add(self, event: Event) -> None:
        """Append one event."""
        self.text.append(event.text)
        self.ids.extend(event.ids)
        self.tokens.extend(event.tokens)
        self.finish = event.finish or self.finish


class Dialect(Protocol):
    """How an endpoint spells a choice."""

    id_prefix: str
    object: str
    chunk_object: str

    def head(self, index: int) -> Object:
        """The choice in its first chunk."""
        ...

    def piece(self, index: int, text: str, tokens: Sequence[TokenText]) -> Object:
        """The choice in a chunk of text."""
        ...

    def last(self, index: int, finish: FinishReason) -> Object:
        """The choice in its last chunk."""
        ...

    def whole(self, index: int, choice: Whole) -> Object:
        """The choice in a body."""
        ...

    def later(self) -> "Dialect":
        """For a client that has the beginning."""
        ...


class Chat:
    """`/v1/chat/completions`."""

    id_prefix = "chatcmpl-"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, token_bytes: Callable[[int], bytes], logprobs: bool) -> None:
        self._token_bytes, self._logprobs = token_bytes, logprobs

    def head(self, index: int) -> Object:
        """Role, and empty content."""
        delta: Object = {"role": "assistant", "content": "", "refusal": None}
        return self._chunk(index, delta, None, None)

    def piece(self, index: int, text: str, tokens: Sequence[TokenText]) -> Object:
        """Content, and logprobs if asked for."""
        return self._chunk(index, {"content": text}, self._lines(tokens), None)

    def last(self, index: int, finish: FinishReason) -> Object:
        """Empty delta."""
        return self._chunk(index, {}, None, finish)

    def whole(self, index: int, choice: Whole) -> Object:
        """A message."""
        content = "".join(choice.text)
        return {
            "index": index,
            "message": {
                "role": "assistant",
                "content": content,
                "refusal": None,
                "annotations": [],
            },
            "logprobs": self._lines(choice.tokens),
            "finish_reason": choice.finish,
        }

    def later(self) -> "Chat":
        """The same: no text stands before the answer's own."""
        return self

    def _chunk(
        self, index: int, delta: Object, logprobs: Object | None, finish: FinishReason | None
    ) -> Object:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}

    def _lines(self, tokens: Iterable[TokenText]) -> Object | None:
        if not self._logprobs:
            return None
        return {"content": [self._line(token) for token in tokens], "refusal": None}

    def _line(self, token: TokenText) -> Object:
        chosen = token.logprobs.chosen if token.logprobs else _LOGPROB_MIN
        top = token.logprobs.top if token.logprobs else ()
        best = [_entry(self._token_bytes(other), logprob) for other, logprob in top]
        return {**_entry(token.bytes, chosen), "top_logprobs": best}


class Completions:
    """`/v1/completions`. `echoes` holds the prompt's text by choice if it is to be repeated."""

    id_prefix = "cmpl-"
    object = "text_completion"
    chunk_object = "text_completion"

    def __init__(
        self, token_bytes: Callable[[int], bytes], logprobs: bool, echoes: Sequence[str] = ()
    ) -> None:
        self._token_bytes, self._logprobs, self._echoes = token_bytes, logprobs, echoes
        self._offsets: dict[int, _CharCount] = {}

    def head(self, index: int) -> Object:
        """The prompt, or empty text."""
        return self._choice(index, self._echo(index), None, None)

    def piece(self, index: int, text: str, tokens: Sequence[TokenText]) -> Object:
        """Text, and logprobs if asked for."""
        return self._choice(index, text, self._columns(index, tokens), None)

    def last(self, index: int, finish: FinishReason) -> Object:
        """Empty text."""
        return self._choice(index, "", None, finish)

    def whole(self, index: int, choice: Whole) -> Object:
        """All of the text."""
        text = self._echo(index) + "".join(choice.text)
        return self._choice(index, text, self._columns(index, choice.tokens), choice.finish)

    def later(self) -> "Completions":
        """Without the prompts."""
        return Completions(self._token_bytes, self._logprobs)

    def _echo(self, index: int) -> str:
        return self._echoes[index] if self._echoes else ""

    def _choice(
        self, index: int, text: str, logprobs: Object | None, finish: FinishReason | None
    ) -> Object:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def _columns(self, index: int, tokens: Sequence[TokenText]) -> Object | None:
        if not self._logprobs:
            return None
        count = self._offsets.setdefault(index, _CharCount())
        return {
            "tokens": [_text(token.bytes) for token in tokens],
            "token_logprobs": [
                _finite(token.logprobs.chosen) if token.logprobs else None for token in tokens
            ],
            "top_logprobs": [
                {
                    _text(self._token_bytes(other)): _finite(logprob)
                    for other, logprob in (token.logprobs.top if token.logprobs else ())
                }
                for token in tokens
            ],
            "text_offset": [count.add(token.bytes) for token in tokens],
        }


class _CharCount:
    """At which character of the text each token begins."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._chars = 0

    def add(self, raw: bytes) -> int:
        begin = self._chars
        self._chars += len(self._decoder.decode(raw))
        return begin


def usage(ask: Ask, choices: Sequence[ChoiceStats]) -> Object:
    """Token counts. `choices`: statistics of each, prompt by prompt."""
    prompt = sum(len(ids) for ids in ask.prompts)
    completion = sum(stats.completion_tokens for stats in choices)
    # A prompt counts once, so its first choice says what of it was cached before the request.
    cached = sum(stats.cached_tokens for stats in choices[:: ask.n])
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def served_by(origin: Origin, served: Served) -> Object:
    """`firstlight` of a first chunk: what a client needs to go on with this stream elsewhere."""
    stats = served.stats()
    return {
        "stream": served.stream,
        "seed": origin.seed,
        "class": stats.numerics_class,
        "edge": origin.edge,
        "edge_region": origin.edge_region,
        "core": stats.core,
        "region": stats.region,
        "protocol": origin.protocol,
    }


def how_served(origin: Origin, served: Served) -> Object:
    """`firstlight` of a last chunk or a body: who served it, how fast, what hints were worth."""
    stats = served.stats()
    return {
        **served_by(origin, served),
        "ttft_ms": {name: round(ms, 3) for name, ms in asdict(stats.ttft_ms).items()},
        "tpot_ms": round(stats.tpot_ms, 3),
        "hints": {source: asdict(count) for source, count in sorted(stats.hints.items())},
        "moved": stats.moved,
        "continuation": stats.continuation,
        "cached_tokens": stats.cached_tokens,
    }


def body(
    dialect: Dialect,
    origin: Origin,
    choices: Sequence[tuple[Served, Whole]],
    counts: Object,
) -> Object:
    """The whole answer. `firstlight` tells of the first choice; if several, each has its own."""
    told = [{**how_served(origin, served), "ids": whole.ids} for served, whole in choices]
    spelled = [dialect.whole(index, whole) for index, (_, whole) in enumerate(choices)]
    if len(spelled) > 1:
        spelled = [{**s, "firstlight": t} for s, t in zip(spelled, told, strict=True)]
    return {
        "id": origin.id,
        "object": dialect.object,
        "created": origin.created,
        "model": origin.model,
        "system_fingerprint": fingerprint(choices[0][0]),
        "choices": spelled,
        "usage": counts,
        "firstlight": told[0],
    }


def fingerprint(served: Served) -> str | None:
    """OpenAI's name for what we call the numerics class."""
    name = served.stats().numerics_class
    return f"fp_{name}" if name else None


def _entry(raw: bytes, logprob: float) -> Object:
    return {"token": _text(raw), "logprob": _finite(logprob), "bytes": list(raw)}


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _finite(logprob: float) -> float:
    return max(logprob, _LOGPROB_MIN)
