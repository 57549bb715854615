"""What a routing rule is told, what it answers, and what it learns afterwards.

The simulator runs rules that others published beside ours, so that what is said about them can
be checked. All of them see the same values here and nothing else; each module beside this one is
one rule, with the place where it was published. Sans-IO: time and randomness come with the call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar, Protocol

from firstlight.shared.types import Load

BLOCK_TOKENS = 512
"""Tokens of a prefix block, as the Mooncake traces count them."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One server as a decider sees it: its last report, and what the decider has open there."""

    server: int
    region: int
    rtt_ms: float
    "from the deciding edge to the server"
    waiting: int
    running: int
    sequences_max: int
    queued_prefill_tokens: int
    kv_used_share: float
    cached_tokens: int
    "prompt tokens of this request that the server had cached at its last report"
    prefill_ms_per_token: float
    step_ms: tuple[tuple[int, float], ...]
    "(rows, ms) of a decoding step, rows rising"
    age_s: float
    "of the report"
    own_in_flight: int
    "opens of this decider minus its ends"
    load: Load = field(default_factory=Load)
    "the last report as a whole, for a rule that looks at more of it"
    unseen_opens: int = 0
    "opens of this decider that the report does not count yet"
    unseen_prompt_tokens: int = 0
    "prompt tokens of those"


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, as a decider knows it before it is sent."""

    request: int
    prompt_tokens: int
    answer_tokens_guess: int
    blocks: tuple[int, ...]
    "hash id of each full or last prefix block; an id stands for all tokens up to its end"
    now_s: float
    origin: int
    "region of the client"
    session: int


@dataclass(frozen=True, slots=True)
class Pick:
    """Where a request goes, and why. No server: refuse it, or ask again after `wait_s`."""

    server: int | None
    wait_s: float = 0.0
    reason: str = ""
    fetch_from: int | None = None
    "a server whose KV of the prefix is copied to `server` first; most rules never ask for that"


class Policy(Protocol):
    """A rule. One instance belongs to one decider; what it remembers has a limit.

    The hooks do nothing unless a rule says so. The simulator calls `sent` for each request that
    leaves, `first_token` at most once and `ended` once for each that was sent.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    "where the rule was published"
    has_network_term: ClassVar[bool]
    "it weighs round trips by itself; one that does not is also run inside the nearest region"
    knobs: ClassVar[tuple[float, ...]]
    "values of the main knob in the order tried, the published one first; one: there is no knob"

    def __init__(self, knob: float) -> None:
        """Make one for a decider, with a value of the main knob."""

    def pick(self, ask: Ask, seen: Sequence[Seen], rng: Random) -> Pick:
        """Choose among `seen`; never a server that is not in it."""

    def sent(self, ask: Ask, server: int) -> None:
        """Learn that a request went to a server."""

    def first_token(self, ask: Ask, server: int, ttft_ms: float, now_s: float) -> None:
        """Learn that its first token came back."""

    def ended(self, ask: Ask, server: int, latency_ms: float, now_s: float) -> None:
        """Learn that it ended, whichever way, so long after it was sent."""
