"""What the API asks of the mesh and what comes back: values between `openai` and `pipeline`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from firstlight.edge_node.timeline import Timeline
from firstlight.shared.types import FinishReason, HintCount, Priority, Sampling, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Ask:
    """One API request, parsed, checked and tokenized: `n` choices to each of its prompts."""

    tenant: str
    model: str
    prompts: tuple[tuple[int, ...], ...]
    sampling: Sampling
    seed: int
    """uint64; drawn by the edge if the client gave none."""
    max_tokens: int | None
    """Of each choice; None, and what is more than the context has room for: until it is full."""
    context_max: int
    """Tokens of a prompt and its answer together."""
    n: int = 1
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    hints: bool = True
    priority: Priority = Priority.INTERACTIVE
    budget_s: float = 600.0
    committed: tuple[tuple[int, ...], ...] = ()
    """On resume: the ids of each choice that are known already. Empty: none."""
    has: tuple[int, ...] = ()
    """On resume: how many ids of each choice the client has, with their text; it may be more than
    are known here. Empty: all that are committed."""
    picked: tuple[int, ...] = ()
    """On resume: the choices that are wanted. Empty: all."""
    numerics_class: str | None = None
    """On resume: of the cores that committed them."""
    session: bytes = b""
    """Hash of what the request belongs to, so that it stays in one region; empty: to nothing."""
    received_s: float = 0.0
    """`monotonic_s()` when the request's first byte was here."""
    timeline: Timeline = field(default_factory=Timeline, compare=False, repr=False)
    """Where what happens to it is noted."""


@dataclass(frozen=True, slots=True)
class TokenText:
    """One id of the answer with the text bytes that it stands for, for logprobs."""

    id: int
    bytes: bytes
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """A piece of one choice. Exactly one event has an ending, and nothing follows it."""

    index: int
    text: str = ""
    """Text that is final: no half character, nothing that could become a stop string."""
    ids: tuple[int, ...] = ()
    """Ids committed since the last event (their text may still be held back)."""
    offset: int = 0
    """Ids of this choice whose text is fully sent, after this event."""
    tokens: tuple[TokenText, ...] = ()
    """With logprobs asked for: the ids whose text is in `text`, one entry each."""
    finish: FinishReason | None = None

    def merged(self, later: "Event") -> "Event":
        """This event and the next one of the same choice, as one."""
        return Event(
            index=self.index,
            text=self.text + later.text,
            ids=self.ids + later.ids,
            offset=later.offset,
            tokens=self.tokens + later.tokens,
            finish=later.finish,
        )

    def without_ending(self) -> "Event":
        """The same content, before the ending is known."""
        return replace(self, finish=None)


@dataclass(frozen=True, slots=True)
class TtftParts:
    """Where the time to the first token went, in ms, as the edge knows it."""

    total: float = 0.0
    network: float = 0.0
    """Edge to core and back."""
    queue: float = 0.0
    prefill: float = 0.0
    first_packet: float = 0.0
    """The rest: what the edge itself took before and after."""


@dataclass(frozen=True, slots=True)
class ChoiceStats:
    """How one choice was served."""

    core: str = ""
    region: str = ""
    """Of the core."""
    numerics_class: str = ""
    moved: int = 0
    continuation: str = "exact"
    """`semantic` if the answer went on in another numerics class."""
    cached_tokens: int = 0
    completion_tokens: int = 0
    hints: Mapping[str, HintCount] = field(default_factory=dict)
    ttft_ms: TtftParts = field(default_factory=TtftParts)
    tpot_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a choice has come, whatever of it the client has taken."""

    ids: tuple[int, ...]
    finish: FinishReason | None
    numerics_class: str
    """Of the core that committed last; empty before the first id."""


class Answer(Protocol):
    """The choices of one ask, prompt by prompt, on their way.

    Closing it early cancels what still runs on the cores.
    """

    streams: tuple[str, ...]
    """An unguessable id a choice that was asked for."""

    async def take(self) -> list[Event]:
        """What came since the last call, waiting for something; nothing once all has ended.

        To call it again says that the client has what the last call gave. A call that is cancelled
        loses nothing. Raises `FirstlightError` if the answer cannot go on.
        """
        ...

    def stats(self, index: int) -> ChoiceStats:
        """Final once the choice has ended; what is known so far before."""
        ...

    def progress(self, index: int, start: int = 0) -> Progress:
        """The committed ids of choice `index` from the `start`-th on, and its ending if it has one.

        Also after `close`.
        """
        ...

    def rewind(self, has: Mapping[int, int]) -> None:
        """Go on for another client, who has the first `has[index]` ids of each choice.

        The next `take` begins with all that it lacks, but for logprobs. Nobody may wait in `take`.
        """
        ...

    def close(self) -> None:
        """Cancel what runs and free it; harmless when all ended."""
        ...


class AnswerSource(Protocol):
    """The pipeline, as the API routes see it."""

    edge: str
    region: str

    def open(self, ask: Ask) -> Answer:
        """Route and send off. Raises before anything is sent to the client: an HTTP error."""
        ...
