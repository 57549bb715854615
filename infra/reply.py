"""One streamed answer as a client puts it together again: a fold over `data:` payloads.

Both `chat` and `demo` read the stream through this, so both agree on what a complete answer is: one
that had a finish reason and then `[DONE]`. Payloads and times come in, text comes out.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from firstlight.infra.client.ids import IdsTold
from firstlight.shared.errors import FirstlightError, PeerError, from_kind

_KIND_OF_TYPE = {
    "authentication_error": "auth",
    "invalid_request_error": "request",
    "rate_limit_error": "quota",
}


def api_error(status: int | None, body: bytes | str) -> FirstlightError:
    """The error that an OpenAI-shaped body stands for; `status` is None inside a stream."""
    try:
        error = json.loads(body)["error"]
        message, kind = str(error["message"]), str(error.get("type"))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        shown = body if isinstance(body, str) else body.decode("utf-8", "replace")
        message, kind = " ".join(shown.split())[:200] or "(empty body)", ""
    where = f"HTTP {status}" if status is not None else "the stream"
    return from_kind(_KIND_OF_TYPE.get(kind, "peer"), f"{where}: {message}")


@dataclass(slots=True)
class Reply:
    """An answer so far. `feed` each payload in order, then `close` when the stream has ended."""

    text: str = ""
    finish_reason: str | None = None
    id: str = ""
    """The answer's, at the edge that served it last."""
    model: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    """The chunks' `firstlight` objects, later ones over earlier ones."""
    first_token_s: float | None = None
    last_token_s: float | None = None
    done: bool = False
    told: IdsTold = field(default_factory=IdsTold)

    @property
    def token_ids(self) -> list[int]:
        """Of the answer so far. Changes as it is fed."""
        return self.told.ids

    def feed(self, payload: str, now: float) -> str:
        """Take one `data:` payload that arrived at `now`; returns the text that it adds.

        Raises `PeerError` for what is not a chunk, or the API's error if the stream carries one.
        """
        if self.done:
            raise PeerError(f"the stream went on after [DONE]: {payload[:80]!r}")
        if payload.strip() == "[DONE]":
            self.done = True
            return ""
        chunk = _object(payload)
        if "error" in chunk:
            raise api_error(None, payload)
        self.id = str(chunk.get("id", self.id))
        self.model = str(chunk.get("model", self.model))
        added = self._choice(chunk)
        self._firstlight(chunk.get("firstlight"), added, now)
        return added

    def _choice(self, chunk: Mapping[str, Any]) -> str:
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            return ""
        choice = choices[0]
        if not isinstance(choice, dict):
            raise PeerError(f"a choice should be an object, got {choice!r:.80}")
        delta = choice.get("delta") or {}
        spoken = delta.get("content") if isinstance(delta, dict) else None
        added = spoken or choice.get("text") or ""
        if choice.get("finish_reason") is not None:
            self.finish_reason = str(choice["finish_reason"])
        self.text += added
        return str(added)

    def _firstlight(self, extra: object, added: str, now: float) -> None:
        fields = dict(extra) if isinstance(extra, dict) else {}
        ids = self.told.feed(fields)
        fields.pop("ids", None)
        self.details |= fields
        if ids or added:
            self.first_token_s = now if self.first_token_s is None else self.first_token_s
            self.last_token_s = now

    def resume(self) -> dict[str, Any] | None:
        """What asks another edge for the rest; None if nothing came that there is a rest of.

        Ids whose text is not here are forgotten: they come again.
        """
        if "cap" not in self.details:
            return None
        self.told.rewind()
        told = {name: self.details.get(name) for name in ("cap", "seed", "class")}
        return {**told, "ids": self.token_ids}

    @property
    def complete(self) -> bool:
        """Whether the answer's end is here."""
        return self.finish_reason is not None and self.done

    def close(self) -> None:
        """Raise `PeerError` unless the answer is complete."""
        if not self.complete:
            count = len(self.token_ids)
            raise PeerError(f"the stream ended before the answer did, after {count} tokens")

    def tokens_per_s(self) -> float | None:
        """Decode speed as it arrived here; None below two tokens or when all came at once."""
        if self.first_token_s is None or self.last_token_s is None:
            return None
        took_s = self.last_token_s - self.first_token_s
        if len(self.token_ids) < 2 or took_s <= 0:
            return None
        return (len(self.token_ids) - 1) / took_s

    def hint_totals(self) -> dict[str, Any]:
        """`{offered, verified, accepted, by_source}` over all sources of hints."""
        sources = self.details.get("hints")
        sources = sources if isinstance(sources, dict) else {}
        by_source = {name: count for name, count in sources.items() if isinstance(count, dict)}
        totals = {
            key: sum(int(count.get(key, 0)) for count in by_source.values())
            for key in ("offered", "verified", "accepted")
        }
        return {**totals, "by_source": by_source}


def _object(payload: str) -> dict[str, Any]:
    try:
        chunk = json.loads(payload)
    except (ValueError, RecursionError) as e:
        raise PeerError(f"the stream carried what is not JSON: {payload[:80]!r}") from e
    if not isinstance(chunk, dict):
        raise PeerError(f"the stream carried {chunk!r:.80} where an object was expected")
    return chunk
