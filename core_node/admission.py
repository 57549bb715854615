"""Whether a core takes a request: checks of an `Open` against what this core is. Sans-IO.

A peer can send anything. What passes here is safe to hand to the engine, and what does not is one
clear error that names the value and what was expected.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from firstlight.shared.errors import DeadlineError, NotFoundError, RequestError
from firstlight.shared.sampling import check_sampling
from firstlight.shared.types import Request, check_ids

REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")
SALT_BYTES = 16
CHOICES_MAX = 128
EOS_IDS_MAX = 64
BUDGET_S_MAX = 86_400.0


@dataclass(frozen=True, slots=True)
class Offer:
    """What a core can compute."""

    models: tuple[str, ...]
    tokenizer_hash: str
    vocab: int
    context_max: int
    """Tokens of prompt and answer together."""


def check_open(request: Request, epoch: int, committed: Sequence[int], offer: Offer) -> None:
    """Raise the `RequestError` (or kin) that says why this core cannot take the request."""
    if not REQUEST_ID.fullmatch(request.id):
        raise RequestError(
            f"request id {_short(request.id)}, expected 1 to 128 of letters, digits and _.:-"
        )
    if epoch < 1:
        raise RequestError(f"epoch {epoch}, expected 1 or more")
    if request.choice >= CHOICES_MAX:
        raise RequestError(f"choice {request.choice}, expected less than {CHOICES_MAX}")
    if len(request.salt) != SALT_BYTES:
        raise RequestError(f"salt of {len(request.salt)} bytes, expected {SALT_BYTES}")
    _check_model(request, offer)
    _check_length(request, committed, offer)
    _check_ids(request, committed, offer)
    check_sampling(request.sampling, offer.vocab)
    _check_budget(request.budget_s)


def _check_model(request: Request, offer: Offer) -> None:
    if request.model not in offer.models:
        raise NotFoundError(
            f"model {_short(request.model)} is not served here, but {', '.join(offer.models)}",
            param="model",
            code="model_not_found",
        )
    if request.tokenizer_hash != offer.tokenizer_hash:
        raise RequestError(
            f"tokenizer hash {_short(request.tokenizer_hash)}, "
            f"but {request.model} here has {offer.tokenizer_hash}"
        )


def _check_ids(request: Request, committed: Sequence[int], offer: Offer) -> None:
    if not request.prompt:
        raise RequestError("prompt has no ids, expected at least 1", param="prompt")
    if len(request.eos_ids) > EOS_IDS_MAX:
        raise RequestError(f"{len(request.eos_ids)} eos ids, expected at most {EOS_IDS_MAX}")
    for name, ids in (
        ("prompt", request.prompt),
        ("committed", committed),
        ("eos_ids", tuple(request.eos_ids)),
    ):
        wrong = check_ids(ids, offer.vocab)
        if wrong is not None:
            raise RequestError(
                f"{name}[{wrong}] is {ids[wrong]}, expected an id below {offer.vocab}", param=name
            )


def _check_length(request: Request, committed: Sequence[int], offer: Offer) -> None:
    if request.max_tokens < 1:
        raise RequestError(
            f"max_tokens {request.max_tokens}, expected 1 or more", param="max_tokens"
        )
    total = len(request.prompt) + request.max_tokens
    if total > offer.context_max:
        raise RequestError(
            f"prompt of {len(request.prompt)} tokens and max_tokens {request.max_tokens} "
            f"are {total}, but the context of {request.model} is {offer.context_max} tokens",
            param="max_tokens",
            code="context_length_exceeded",
        )
    if len(committed) >= request.max_tokens:
        raise RequestError(
            f"{len(committed)} ids committed of max_tokens {request.max_tokens}: nothing is left"
        )
    ended = next((i for i, token in enumerate(committed) if token in request.eos_ids), None)
    if ended is not None:
        raise RequestError(f"committed[{ended}] is {committed[ended]}, which ends the answer")


def _check_budget(budget_s: float) -> None:
    if not isfinite(budget_s) or budget_s > BUDGET_S_MAX:
        raise RequestError(f"budget_s {budget_s}, expected seconds up to {BUDGET_S_MAX:.0f}")
    if budget_s <= 0:
        raise DeadlineError(f"budget_s {budget_s}: no time is left for the request")


def _short(text: str) -> str:
    """The value for a message, never longer than a line."""
    return repr(text if len(text) <= 80 else text[:77] + "...")
