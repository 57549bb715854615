"""The border between HTTP/3 fields and ASGI messages, as pure functions and one small state
machine.

It decides which request heads are let in (what a lenient server lets through is what request
smuggling and cache poisoning are made of), writes the ASGI scope, and makes what an application
answers fit for the wire. RFC 9114 section 4 and RFC 9110 give the rules; the ASGI HTTP
specification 2.3 the messages.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

Fields = list[tuple[bytes, bytes]]
Message = Mapping[str, Any]

CONNECTION_FIELDS = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
"""Fields that mean something only on one HTTP/1.1 connection (RFC 9114 section 4.2)."""

_PSEUDO_FIELDS = (b":method", b":scheme", b":authority", b":path")
_LOWER_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BAD_IN_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_AUTHORITY = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~%!$&'()*+,;=-]+)(?::[0-9]{1,5})?")
_PATH = re.compile(rb"/[!\"$-~]*")  # visible ASCII without '#', which starts a fragment
_DIGITS = re.compile(rb"[0-9]{1,18}")
_NO_BODY_STATUSES = frozenset((204, 304))


@dataclass(frozen=True)
class Refusal:
    """A request that no application sees: the status to answer, and why."""

    status: int
    reason: str
    malformed: bool = True
    """Whether the message breaks HTTP/3 itself, so that its stream is in error."""


@dataclass(frozen=True)
class RequestHead:
    """A request head that passed every check."""

    method: str
    authority: bytes
    target: bytes
    """Path and query as sent."""
    fields: Fields
    """The fields without pseudo-fields, `host` among them, cookies joined."""
    content_length: int | None


def check_request(
    fields: Sequence[tuple[bytes, bytes]], body_bytes_max: int
) -> RequestHead | Refusal:
    """Let a decoded field section in, or say why not.

    Stricter than aioquic: `:scheme`, `:path` and `:method` exactly once, scheme https, at most one
    `content-length` and only digits in it, `host` the same as `:authority`.
    """
    pseudo, regular = _split(fields)
    if isinstance(pseudo, Refusal):
        return pseudo
    if pseudo.get(b":method") == b"CONNECT":
        return Refusal(501, "CONNECT is not served here", malformed=False)
    refusal = _check_pseudo(pseudo) or _check_regular(regular, pseudo[b":authority"])
    if refusal is not None:
        return refusal
    content_length = next(
        (int(value) for name, value in regular if name == b"content-length"), None
    )
    if content_length is not None and content_length > body_bytes_max:
        reason = f"the body is {content_length} bytes; at most {body_bytes_max} are taken"
        return Refusal(413, reason, malformed=False)
    return RequestHead(
        method=pseudo[b":method"].decode("ascii"),
        authority=pseudo[b":authority"],
        target=pseudo[b":path"],
        fields=_asgi_fields(regular, pseudo[b":authority"]),
        content_length=content_length,
    )


def _split(
    fields: Sequence[tuple[bytes, bytes]],
) -> tuple[dict[bytes, bytes] | Refusal, Fields]:
    pseudo: dict[bytes, bytes] = {}
    regular: Fields = []
    for name, value in fields:
        if _BAD_IN_VALUE.search(value) or value != value.strip(b" \t"):
            return Refusal(400, f"field {name!r} has a forbidden character or outer space"), regular
        if not name.startswith(b":"):
            if not _LOWER_TOKEN.fullmatch(name):
                return Refusal(400, f"field name {name!r} is not a lower-case token"), regular
            regular.append((name, value))
        elif regular:
            return Refusal(400, f"pseudo-field {name!r} follows a regular field"), regular
        elif name not in _PSEUDO_FIELDS:
            return Refusal(400, f"pseudo-field {name!r} is not one of a request"), regular
        elif name in pseudo:
            return Refusal(400, f"pseudo-field {name!r} is sent twice"), regular
        else:
            pseudo[name] = value
    return pseudo, regular


def _check_pseudo(pseudo: Mapping[bytes, bytes]) -> Refusal | None:
    missing = [name.decode() for name in _PSEUDO_FIELDS if name not in pseudo]
    if missing:
        return Refusal(400, f"pseudo-fields are missing: {', '.join(missing)}")
    method, path = pseudo[b":method"], pseudo[b":path"]
    if not _TOKEN.fullmatch(method):
        return Refusal(400, f":method {method!r} is not a token")
    if pseudo[b":scheme"] != b"https":
        return Refusal(400, f":scheme is {pseudo[b':scheme']!r}, not https")
    if not _AUTHORITY.fullmatch(pseudo[b":authority"]):
        return Refusal(
            400, f":authority {pseudo[b':authority']!r} is not a host with an optional port"
        )
    if not _PATH.fullmatch(path) and not (path == b"*" and method == b"OPTIONS"):
        return Refusal(400, f":path {path[:64]!r} is not an absolute path of visible ASCII")
    return None


def _check_regular(regular: Fields, authority: bytes) -> Refusal | None:
    once: set[bytes] = set()
    for name, value in regular:
        if name in CONNECTION_FIELDS or (name == b"te" and value.lower() != b"trailers"):
            return Refusal(400, f"field {name!r} belongs to a connection of HTTP/1.1")
        if name not in (b"host", b"content-length"):
            continue
        if name in once:
            return Refusal(400, f"field {name!r} is sent twice")
        once.add(name)
        if name == b"host" and value.lower() != authority.lower():
            return Refusal(400, f"host {value!r} is not the :authority {authority!r}")
        if name == b"content-length" and not _DIGITS.fullmatch(value):
            return Refusal(400, f"content-length {value!r} is not a number of digits alone")
    return None


def _asgi_fields(regular: Fields, authority: bytes) -> Fields:
    """`host` first, and cookie crumbs as one field (RFC 9114 section 4.2.1)."""
    cookies = [value for name, value in regular if name == b"cookie"]
    kept = [field for field in regular if field[0] not in (b"host", b"cookie")]
    joined = [(b"cookie", b"; ".join(cookies))] if cookies else []
    return [(b"host", authority), *kept, *joined]


def build_scope(
    head: RequestHead,
    *,
    client: tuple[str, int],
    server: tuple[str, int],
    state: Mapping[str, Any],
) -> dict[str, Any]:
    """The ASGI scope of a request.

    `spec_version` is 2.3 on purpose: from 2.4 on Starlette waits for `send` to raise instead of
    listening for `http.disconnect`, so a stream whose generator waits would outlive its client.
    """
    raw_path, _, query = head.target.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "3",
        "method": head.method,
        "scheme": "https",
        "path": unquote(raw_path.decode("ascii")),
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": head.fields,
        "client": client,
        "server": server,
        "state": dict(state),
        "extensions": {},
    }


class Response:
    """What an application may still send: `start` once, then bodies until the last.

    Raises `ValueError` for a message that HTTP forbids, and `RuntimeError` for one out of order;
    both are faults of the application, and nothing of the message has been sent.
    """

    def __init__(self, method: str) -> None:
        self.started = False
        self.complete = False
        self._bodiless = method == "HEAD"
        self._declared_bytes: int | None = None
        self._sent_bytes = 0

    def start(self, message: Message) -> Fields:
        """The field section for `http.response.start`, `:status` first."""
        if self.started:
            raise RuntimeError("http.response.start was sent twice")
        status = message["status"]
        if not isinstance(status, int) or not 200 <= status <= 599:
            raise ValueError(f"status {status!r} is not a final HTTP status")
        fields = clean_fields(message.get("headers") or ())
        lengths = {value for name, value in fields if name == b"content-length"}
        if len(lengths) > 1 or not all(_DIGITS.fullmatch(value) for value in lengths):
            raise ValueError(f"content-length of the answer is {sorted(lengths)!r}")
        self._bodiless = self._bodiless or status in _NO_BODY_STATUSES
        if status == 204:
            fields = [field for field in fields if field[0] != b"content-length"]
        elif lengths and not self._bodiless:
            self._declared_bytes = int(next(iter(lengths)))
        self.started = True
        return [(b":status", b"%d" % status), *fields]

    def body(self, message: Message) -> tuple[bytes, bool]:
        """The bytes to send for `http.response.body`, and whether they are the last."""
        if not self.started or self.complete:
            when = "after the last" if self.complete else "before http.response.start"
            raise RuntimeError(f"http.response.body was sent {when}")
        data, last = bytes(message.get("body") or b""), not message.get("more_body", False)
        total = self._sent_bytes + len(data)
        declared = self._declared_bytes
        if declared is not None and (total > declared or (last and total < declared)):
            raise ValueError(f"content-length says {declared} bytes, the body has {total}")
        self._sent_bytes = total
        self.complete = last
        return (b"" if self._bodiless else data), last


def clean_fields(fields: Iterable[tuple[bytes, bytes]]) -> Fields:
    """Response fields in lower case, without those of an HTTP/1.1 connection."""
    cleaned: Fields = []
    for raw_name, raw_value in fields:
        name, value = bytes(raw_name).lower(), bytes(raw_value).strip(b" \t")
        if not _LOWER_TOKEN.fullmatch(name):
            raise ValueError(f"response field name {name!r} is not a token")
        if _BAD_IN_VALUE.search(value):
            raise ValueError(f"response field {name!r} has a control character in its value")
        if name not in CONNECTION_FIELDS and name != b"te":
            cleaned.append((name, value))
    return cleaned


def error_answer(
    status: int, reason: str, *, retry_after_s: int | None = None
) -> tuple[Fields, bytes]:
    """Fields (with `:status`) and body of an answer that we give in place of the application."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": reason, "type": kind, "param": None, "code": None}
    body = json.dumps({"error": error}).encode()
    fields = [
        (b":status", b"%d" % status),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]
    if retry_after_s is not None:
        fields.append((b"retry-after", b"%d" % retry_after_s))
    return fields, body
