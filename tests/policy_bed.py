"""What tests of routing rules build: servers as a decider sees them, and requests."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from firstlight.infra.sim.policies.policy import BLOCK_TOKENS, Ask, Pick, Policy, Seen

STEP_MS = ((1, 20.0), (8, 30.0), (32, 60.0))


def seen(server: int, **known: object) -> Seen:
    """An idle server, except for what is known."""
    one = Seen(
        server=server,
        region=0,
        rtt_ms=1.0,
        waiting=0,
        running=0,
        sequences_max=64,
        queued_prefill_tokens=0,
        kv_used_share=0.0,
        cached_tokens=0,
        prefill_ms_per_token=0.1,
        step_ms=STEP_MS,
        age_s=0.0,
        own_in_flight=0,
    )
    return replace(one, **known)  # type: ignore[arg-type]


def ask(
    request: int = 0,
    *,
    tokens: int | None = None,
    blocks: Sequence[int] = (),
    now_s: float = 0.0,
    session: int = 0,
    answer_tokens: int = 100,
) -> Ask:
    """A request; its prompt fills its blocks unless its tokens are given."""
    return Ask(
        request=request,
        prompt_tokens=len(blocks) * BLOCK_TOKENS if tokens is None else tokens,
        answer_tokens_guess=answer_tokens,
        blocks=tuple(blocks),
        now_s=now_s,
        origin=0,
        session=session,
    )


def picks(rule: Policy, one: Ask, servers: Sequence[Seen], times: int = 64) -> set[int | None]:
    """Where a rule sends one request, with so many lots."""
    return {rule.pick(one, servers, Random(seed)).server for seed in range(times)}


def go(rule: Policy, one: Ask, servers: Sequence[Seen], seed: int = 0) -> Pick:
    """Let a rule choose, and send it there."""
    pick = rule.pick(one, servers, Random(seed))
    if pick.server is not None:
        rule.sent(one, pick.server)
    return pick


def prefilled(rule: Policy, one: Ask, server: int) -> None:
    """A request is at a server, and past its first token."""
    rule.sent(one, server)
    rule.first_token(one, server, 10.0, one.now_s)
