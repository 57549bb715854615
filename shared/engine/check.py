"""What a request must be to be served here at all: one clear error names what is wrong with it."""

from math import isfinite

from firstlight.shared.blocks import blocks_for
from firstlight.shared.engine.plan import EngineConfig
from firstlight.shared.errors import RequestError
from firstlight.shared.sampling import check_sampling
from firstlight.shared.types import Request, check_ids


def check_request(
    request: Request,
    committed: tuple[int, ...],
    config: EngineConfig,
    *,
    vocab: int,
    prefill_only: bool,
) -> None:
    """Raise `RequestError` for a request that no engine of these limits can ever serve."""
    check_sampling(request.sampling, vocab)
    if not request.prompt:
        raise RequestError("the prompt has no tokens", param="prompt")
    if request.max_tokens < 1:
        raise RequestError(f"max_tokens is {request.max_tokens}, not 1 or more", param="max_tokens")
    if not isfinite(request.budget_s):
        raise RequestError(f"budget_s is {request.budget_s}, not a number of seconds")
    if not 0 <= request.seed < 2**64 or not 0 <= request.choice < 2**32:
        raise RequestError(f"seed {request.seed} or choice {request.choice} is out of range")
    if (wrong := check_ids(ids := (*request.prompt, *committed), vocab)) is not None:
        raise RequestError(f"id {ids[wrong]} at position {wrong} is not in the vocabulary")
    _check_length(
        len(ids), 0 if prefill_only else max(0, request.max_tokens - len(committed)), config
    )


def _check_length(here: int, more: int, config: EngineConfig) -> None:
    total = here + more
    if total > config.context_max:
        raise RequestError(
            f"{here} tokens and up to {more} more exceed the context of {config.context_max}",
            param="max_tokens",
            code="context_length_exceeded",
        )
    if blocks_for(total) > config.blocks:
        raise RequestError(
            f"{total} tokens need {blocks_for(total)} blocks of KV, and there are {config.blocks}",
            code="context_length_exceeded",
        )
