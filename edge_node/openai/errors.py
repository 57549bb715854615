"""How an error looks to a client of the OpenAI API: its status, headers and body, by its class."""

import json
from math import ceil

from firstlight.shared.errors import CapacityError, FirstlightError, PeerError, RequestError

_RETRY_AFTER_S = 1.0
"""For a 429 or 503 that does not know better."""
_RETRYABLE = (CapacityError, PeerError)


def error_object(error: FirstlightError) -> dict[str, object]:
    """The value under `error`, alike in a body and in a stream."""
    return {
        "message": error.message,
        "type": error.openai_type,
        "param": error.param,
        "code": error.code or (None if isinstance(error, RequestError) else error.kind.value),
    }


def error_body(error: FirstlightError) -> bytes:
    """The whole body. A character that UTF-8 cannot carry becomes `?`."""
    text = json.dumps({"error": error_object(error)}, ensure_ascii=False)
    return text.encode("utf-8", "replace")


def error_headers(error: FirstlightError) -> dict[str, str]:
    """`retry-after` where later may work, `x-should-retry: false` where it cannot."""
    headers = {"content-type": "application/json"}
    if error.http_status in (429, 503):
        wait_s = error.retry_after_s if error.retry_after_s is not None else _RETRY_AFTER_S
        headers["retry-after"] = str(max(1, ceil(wait_s)))
        headers["retry-after-ms"] = str(max(1, ceil(wait_s * 1000)))
    if not isinstance(error, _RETRYABLE):
        headers["x-should-retry"] = "false"
    if error.http_status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def http_error(status: int, detail: str, code: str | None = None) -> FirstlightError:
    """An error known by its status alone: the web framework's (404, 405 and kin), and 409."""
    kind = RequestError if status < 500 else FirstlightError
    error: FirstlightError = kind(detail, code=code)
    error.http_status = status
    return error
