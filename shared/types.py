"""The nouns that cross a node's border. Frozen values; no behaviour beyond their own checks.

    client text ─► Request ─► Route ─► [ Hint* ─► Commit ]* ─► Event ─► client text

Text stays at the edge. Only token ids, and numbers about them, travel.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from firstlight.shared.routing.spill import Row, Table

SAMPLING_ORDER_VERSION = 1
"""Version of the order of logit transforms in `shared.sampling`; both ends of a link must agree."""


class Role(StrEnum):
    """What a node is; also what its certificate says."""

    EDGE = "edge"
    CORE = "core"
    LB = "lb"


class Priority(IntEnum):
    """Lower is served first."""

    CRITICAL = 0
    INTERACTIVE = 1
    BATCH = 2
    BEST_EFFORT = 3


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next id is chosen from logits. The order of transforms is `shared.sampling`'s."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    """How many alternatives to report beside the chosen id's logprob; None reports nothing."""


@dataclass(frozen=True, slots=True)
class Request:
    """One answer to compute: one choice of one API request, as it travels from edge to core."""

    id: str
    """Unguessable, made by the edge; one a choice."""
    model: str
    tokenizer_hash: str
    salt: bytes
    prompt: tuple[int, ...]
    sampling: Sampling
    seed: int
    """uint64."""
    choice: int
    max_tokens: int
    eos_ids: frozenset[int]
    """Empty means that no id ends the answer."""
    priority: Priority = Priority.INTERACTIVE
    budget_s: float = 600.0
    """Time left, not a point in time: clocks never cross nodes."""


class FinishReason(StrEnum):
    """Why an answer ended well, in the API's own words."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-softmax of the raw logits: of the chosen id, and of the best few."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Hint:
    """A claim about the ids from `start` on: may be wrong, late, doubled; never an error."""

    request: str
    start: int
    """Absolute position of the first id."""
    chain: bytes
    """Chain hash of everything before `start`."""
    ids: tuple[int, ...]
    source: str = "edge-ngram"


@dataclass(frozen=True, slots=True)
class HintCount:
    """What became of the ids of one source."""

    offered: int = 0
    verified: int = 0
    """Ids that had a row in a step."""
    accepted: int = 0

    def __add__(self, other: "HintCount") -> "HintCount":
        """Both together."""
        return HintCount(
            self.offered + other.offered,
            self.verified + other.verified,
            self.accepted + other.accepted,
        )


@dataclass(frozen=True, slots=True)
class Commit:
    """The only thing that changes a sequence: contiguous ids; repeats are harmless."""

    request: str
    epoch: int
    position: int
    """Absolute position of the first id."""
    ids: tuple[int, ...]
    chain: bytes
    """Chain hash after the last id."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache; on the first commit of an epoch."""
    queue_ms: float | None = None
    """Time from arrival at the backend to the first step, on the first commit of an epoch."""
    prefill_ms: float | None = None
    """Time from the first step until the first id leaves the backend, as above."""


MARKS_MAX = 32
MARK_WHAT_CHARS_MAX = 40
MARK_DETAIL_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened to an assignment on its core. For people: nothing decides by it."""

    what: str
    ms: float
    """Since the assignment's `Open` arrived, on that core's clock."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """The core's statistics of a request. Losing it loses nothing."""

    request: str
    epoch: int
    hints: tuple[tuple[str, HintCount], ...] = ()
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The core will commit no more in this epoch."""

    request: str
    epoch: int
    kind: str
    message: str
    retry_elsewhere: bool
    retry_after_s: float | None = None
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Load:
    """What a core says of itself on every frame."""

    running: int = 0
    queued: int = 0
    queued_prefill_tokens: int = 0
    sequences_max: int = 1
    """The hard cap: running + queued beyond it are refused."""
    kv_used_share: float = 0.0
    steps: int = 0
    """Steps taken since the process began: unmoved with work queued means a hung engine."""
    step_ms: tuple[tuple[int, float], ...] = ()
    """(rows, ms), rows ascending: measured time of a step by its rows."""
    prefill_ms_per_token: float = 0.0
    """Mean of what it computed lately, at the positions that there were."""
    queued_prefill_ms: float = 0.0
    """What `queued_prefill_tokens` should take, each at its position."""
    prefill_token_ms: float = 0.0
    """Of a prompt token; 0: only the mean is known."""
    prefill_pair_ms: float = 0.0
    """Of each token that a prompt token looks at."""
    prefill_share: float = 1.0
    """Of a step's time that prefill gets beside those who decode now."""
    opens_counted: int = 0
    """Opens of this link that the numbers above include."""
    draining: bool = False

    @property
    def in_flight(self) -> int:
        """Requests that the core has accepted and not ended."""
        return self.running + self.queued


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What does not change while a node's process lives."""

    node: str
    role: Role
    incarnation: int
    """Grows with each start of the process."""
    region: str
    address: str
    """host:port where peers (core: the link) or clients (edge: HTTP) reach it."""
    numerics_class: str = ""
    models: tuple[str, ...] = ()
    tokenizer_hash: str = ""
    context_max: int = 0
    place: tuple[float, float] | None = None
    """Latitude and longitude, in degrees, as its operator says."""
    failure_domain: str = ""
    """Nodes of one domain fail together; empty means the region."""
    ips: tuple[str, ...] = ()
    """Edges: IPv4 and IPv6 addresses that DNS may give for them."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What arrives at an edge, refused work included; averages of the last 10 s."""

    work_per_s: float = 0.0
    """Prefill-token equivalents a second; see `shared.routing.work`."""
    refused_per_s: float = 0.0
    """How much of it found no core."""
    prompt_tokens_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    """Ids committed."""
    requests_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Following:
    """By whose row, and by which, an edge spreads what arrives at it."""

    lb: str
    row: Row


@dataclass(frozen=True, slots=True)
class Report:
    """A node's word on itself. The highest (incarnation, seq) wins, whoever passed it on."""

    info: NodeInfo
    seq: int
    load: Load = field(default_factory=Load)
    rtt_ms: tuple[tuple[str, float], ...] = ()
    """Edges: measured round trip to each core by name."""
    leaving: bool = False
    sketch: bytes = b""
    """Cores: which prefixes they hold, roughly; see `shared.routing.sketch`."""
    demand: Demand | None = None
    """Edges: what arrives there."""
    following: Following | None = None
    """Edges: the row that they go by, if they have one."""


@dataclass(frozen=True, slots=True)
class MeshView:
    """What a load balancer tells: news of nodes, and some of what it told longest ago.

    Who is not named in a view stays as he was.
    """

    lb: str
    seq: int
    reports: tuple[tuple[Report, float], ...] = ()
    """(report, age_s), the age when it was sent."""
    incarnation: int = 0
    """Of the load balancer's process."""
    suspects: frozenset[str] = frozenset()
    """All nodes that it has not heard lately."""
    draining: frozenset[str] = frozenset()
    """Nodes that an operator wants drained."""
    draining_whole: bool = False
    """Whether it knows that nobody else is to be; if not, what others were told still holds."""
    table: Table = field(default_factory=dict)
    """Where each region's work goes; empty while it does not know enough."""
    ignored: tuple[tuple[str, str], ...] = ()
    """(node, why) of entries that no decision can be made with."""


@dataclass(slots=True)
class Cost:
    """What a core is expected to take until a first token is back, by parts.

    Nobody changes one, nor a candidate or a route; but a choice makes ten of these three, and what
    is frozen takes five times as long to make.
    """

    rtt_ms: float = 0.0
    queue_ms: float = 0.0
    """Prefill that waits there already."""
    prefill_ms: float = 0.0
    step_ms: float = 0.0
    penalty_ms: float = 0.0
    way: str = "recompute"
    """How the prefix would come to be there: see `shared.routing.fetch`."""

    @property
    def ms(self) -> float:
        """All of it."""
        return self.rtt_ms + self.queue_ms + self.prefill_ms + self.step_ms + self.penalty_ms


@dataclass(slots=True)
class Candidate:
    """A core in a Route: what it was expected to cost, and why it stands where it stands."""

    core: str
    region: str
    ttft_ms: float
    reason: str
    cost: Cost = field(default_factory=Cost)
    prefix_tokens: int = 0
    """Of the prompt, that it should have cached."""


@dataclass(slots=True)
class Route:
    """Cores, best first. Never empty while any core lives."""

    candidates: tuple[Candidate, ...]
    reason: str = ""
    drawn: str | None = ""
    """The region that the session's hash drew; None: its share is shed; empty: none was drawn."""
    spill: tuple[tuple[str, float], ...] = ()
    """The shares that it was drawn by."""
    panic: bool = False
    """Most cores are ejected, so that health was not believed."""


def check_ids(ids: Sequence[int], vocab: int) -> int | None:
    """Index of the first id outside [0, vocab), or None."""
    return next((i for i, token in enumerate(ids) if not 0 <= token < vocab), None)
