"""The one tree of errors, and what each means on every border it can cross.

A message says what was wrong, the value that was wrong, and what was expected. Borders (HTTP,
gRPC, the command line) map an error once, from the attributes of its class; nothing else decides
a status.
"""

from enum import StrEnum

CONFIG_CHARS_MAX = 4000


class ErrorKind(StrEnum):
    """What crosses the wire in place of the class."""

    REQUEST = "request"
    AUTH = "auth"
    NOT_FOUND = "not_found"
    TOO_LARGE = "too_large"
    QUOTA = "quota"
    CAPACITY = "capacity"
    PEER = "peer"
    DIED = "died"
    STALE = "stale"
    SLOW_CLIENT = "slow_client"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    INTERNAL = "internal"


class FirstlightError(Exception):
    """Anything that we say went wrong. Carries what each border needs."""

    kind = ErrorKind.INTERNAL
    http_status = 500
    grpc_code = "INTERNAL"
    openai_type = "server_error"
    default_code: str | None = None
    """The API's `code`, unless one is given."""
    retry_elsewhere = False
    """Whether another core may succeed where this one failed."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code
        self.retry_after_s = retry_after_s


class ConfigError(FirstlightError, ValueError):
    """A process cannot start as configured: a wrong key, a port in use, a file that lies.

    A `ValueError` too, so that a section which refuses its own values is named with its path.
    """

    grpc_code = "FAILED_PRECONDITION"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        """What is longer than a screen is cut: a file that lies can make us quote megabytes."""
        cut = len(message) > CONFIG_CHARS_MAX
        super().__init__(message[:CONFIG_CHARS_MAX] + "…" if cut else message, param=param)


class RequestError(FirstlightError):
    """The caller's doing; the same request will fail everywhere."""

    kind = ErrorKind.REQUEST
    http_status = 400
    grpc_code = "INVALID_ARGUMENT"
    openai_type = "invalid_request_error"


class AuthError(RequestError):
    """No key, or one that we do not know."""

    kind = ErrorKind.AUTH
    http_status = 401
    grpc_code = "UNAUTHENTICATED"
    openai_type = "authentication_error"


class NotFoundError(RequestError):
    """A model, a path or a stream that is not here."""

    kind = ErrorKind.NOT_FOUND
    http_status = 404
    grpc_code = "NOT_FOUND"


class TooLargeError(RequestError):
    """A body or header above its limit."""

    kind = ErrorKind.TOO_LARGE
    http_status = 413
    grpc_code = "RESOURCE_EXHAUSTED"


class CapacityError(FirstlightError):
    """No room now: later, or elsewhere."""

    kind = ErrorKind.CAPACITY
    http_status = 503
    grpc_code = "RESOURCE_EXHAUSTED"
    openai_type = "server_error"
    default_code = "overloaded"
    retry_elsewhere = True


class QuotaError(CapacityError):
    """The tenant has used up its share."""

    kind = ErrorKind.QUOTA
    http_status = 429
    openai_type = "rate_limit_error"
    default_code = "rate_limit_exceeded"
    retry_elsewhere = False


class PeerError(FirstlightError):
    """The other node broke off, or said what cannot be."""

    kind = ErrorKind.PEER
    http_status = 502
    grpc_code = "UNAVAILABLE"
    retry_elsewhere = True


class BadNumberError(PeerError):
    """The other node told a number that no decision can be made with."""


class DiedError(PeerError):
    """The other node ended, with all that it had; one of its requests may be the cause."""

    kind = ErrorKind.DIED


class StaleError(PeerError):
    """An assignment older than one the node has already seen."""

    kind = ErrorKind.STALE
    grpc_code = "ABORTED"
    retry_elsewhere = False


class SlowClientError(FirstlightError):
    """The client did not read for too long."""

    kind = ErrorKind.SLOW_CLIENT
    http_status = 499
    grpc_code = "CANCELLED"


class DeadlineError(FirstlightError):
    """The time that the request had is over."""

    kind = ErrorKind.DEADLINE
    http_status = 504
    grpc_code = "DEADLINE_EXCEEDED"


class Cancelled(FirstlightError):
    """The client went away; nobody reads this."""

    kind = ErrorKind.CANCELLED
    http_status = 499
    grpc_code = "CANCELLED"


_CLASSES: dict[ErrorKind, type[FirstlightError]] = {
    cls.kind: cls
    for cls in (
        FirstlightError,
        RequestError,
        AuthError,
        NotFoundError,
        TooLargeError,
        CapacityError,
        QuotaError,
        PeerError,
        DiedError,
        StaleError,
        SlowClientError,
        DeadlineError,
        Cancelled,
    )
}


def from_kind(kind: str, message: str, *, retry_after_s: float | None = None) -> FirstlightError:
    """The error that a peer named by `kind`; an unknown kind is a `PeerError`."""
    known = kind in ErrorKind.__members__.values()
    cls = _CLASSES[ErrorKind(kind)] if known else PeerError
    return cls(message, retry_after_s=retry_after_s)
