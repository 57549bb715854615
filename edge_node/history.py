"""What an edge writes into its history about one choice: made only when a history is kept.

What the client was sent is hashed here from the ids that it was sent, id by id, and not looked up
among those that were committed: so a history shows it if the two ever differ.
"""

from collections.abc import Mapping, Sized
from hashlib import blake2b

from firstlight.edge_node.answer import Event
from firstlight.edge_node.choice import Choice
from firstlight.edge_node.upstream.pool import LinkPool
from firstlight.shared.errors import FirstlightError
from firstlight.shared.history import Blame, Fact, What, salt_key
from firstlight.shared.history_file import History
from firstlight.shared.retry import Why
from firstlight.shared.stream import chain_next, chain_of
from firstlight.shared.types import Commit, Request

_GOES_ON = {str(Why.MOVE), str(Why.RETRY)}


class ChoiceHistory:
    """One choice's lines. `accepted` and exactly one end are among them, however it goes."""

    def __init__(self, history: History, choice: Choice, *, has: int | None) -> None:
        """`has`: how many ids the client has already; None if it asked anew."""
        self._history, self._choice = history, choice
        self._stream = choice.stream
        self._request = request = choice.request
        self._committed = len(choice.stream.ids)
        self._ended = False
        self._told = 0
        self._chain: bytes = b""
        self._answer: bytes = b""
        self._note(
            What.ACCEPTED,
            offset=self._committed,
            hash=self._stream.chain,
            facts={
                "asked": asked_key(request),
                "salt": salt_key(request.salt),
                "block": choice.block_hashes[0].hex() if choice.block_hashes else None,
                "numerics_class": choice.numerics_class,
                "prompt_tokens": len(request.prompt),
                "max_tokens": request.max_tokens,
            },
        )
        self._begin(has or 0)
        if has is not None:
            self._note(What.RESUMED, offset=has)

    def rewound(self, has: int) -> None:
        """Another client, which has the first `has` ids, is told the rest."""
        self._begin(has)
        self._note(What.RESUMED, offset=has)

    def committed(self, commit: Commit) -> None:
        """The commit was taken in, or put aside."""
        before, self._committed = self._committed, len(self._stream.ids)
        if commit.epoch < self._stream.epoch:
            self._note(What.FENCED, epoch=commit.epoch)
        elif count := self._committed - before:
            self._note(
                What.COMMITTED,
                epoch=commit.epoch,
                offset=self._committed,
                hash=self._stream.chain,
                facts={
                    "count": count,
                    "core": self._core,
                    "numerics_class": self._choice.numerics_class,
                },
            )

    def taken(self, event: Event) -> None:
        """The client has an event."""
        if event.ids:
            self._catch_up()
            for token in event.ids:
                self._chain = chain_next(self._chain, token)
                self._answer = chain_next(self._answer, token)
            self._told += len(event.ids)
            self._note(
                What.SENT,
                offset=self._told,
                hash=self._chain,
                facts={"count": len(event.ids), "answer": self._answer.hex()},
            )
        if event.finish is not None:
            facts: dict[str, Fact] = {"finish": str(event.finish)}
            self._note(What.DELIVERED, offset=self._told, facts=facts)

    def noted(self, what: str, facts: dict[str, object]) -> None:
        """What the timeline is told of the choice too."""
        if what == "opened":
            assignment = self._choice.assignment
            assert assignment is not None
            self._note(
                What.OPENED,
                epoch=self._stream.epoch,
                offset=len(self._stream.ids),
                hash=self._stream.chain,
                facts={"core": assignment.core, "numerics_class": assignment.numerics_class},
            )
        elif what == "left":
            how, why = str(facts["how"]), str(facts["why"])
            line = What.MOVED if why in _GOES_ON else What.LEFT
            left = {"core": self._core, "how": how, "why": why}
            self._note(line, epoch=self._stream.epoch, facts=left)

    def failed(self, error: FirstlightError) -> None:
        """It ends with an error."""
        if error.code == Why.POISON:
            self._note(What.POISON, epoch=self._stream.epoch)
        self._end(What.ENDED, Blame.of(error).facts)

    def landed(self) -> None:
        """Nothing more comes: it has ended, or its client has gone."""
        finish = self._choice.finish
        if finish is None:
            self._end(What.CANCELLED)
        else:
            self._end(What.ENDED, {"finish": str(finish)})

    def _end(self, what: What, facts: Mapping[str, Fact] | None = None) -> None:
        if not self._ended:
            self._ended = True
            told = self._choice.stats.completion_tokens
            self._note(what, epoch=self._stream.epoch, offset=told, facts=facts)

    def _begin(self, has: int) -> None:
        self._told = has
        self._chain = self._answer = b""
        """Known once the stream is as long as what the client has."""

    def _catch_up(self) -> None:
        if not self._chain:
            had = self._stream.ids[: self._told]
            self._chain = self._stream.chain_at(self._stream.prompt_tokens + len(had)) or b""
            self._answer = chain_of(())
            for token in had:
                self._answer = chain_next(self._answer, token)

    @property
    def _core(self) -> str:
        return self._choice.assignment.core if self._choice.assignment is not None else ""

    def _note(
        self,
        what: What,
        *,
        epoch: int | None = None,
        offset: int | None = None,
        hash: bytes | None = None,
        facts: Mapping[str, Fact] | None = None,
    ) -> None:
        stream = self._request.id
        self._history.note(what, stream, epoch=epoch, offset=offset, hash=hash, facts=facts)


def note_refused(history: History, error: FirstlightError) -> None:
    """A request was answered with an error before anything was sent off."""
    history.note(What.REFUSED, facts=Blame.of(error).facts)


def edge_figures(answers: Sized, pool: LinkPool) -> dict[str, Fact]:
    """How full an edge is."""
    return {"answers": len(answers), "links": len(pool.links)}


def asked_key(request: Request) -> str:
    """The same for all requests that must get the same ids in one numerics class."""
    decides = (
        request.model,
        request.tokenizer_hash,
        request.sampling,
        request.seed,
        request.choice,
    )
    digest = blake2b(chain_of(request.prompt), digest_size=8)
    digest.update(repr(decides).encode())
    return digest.hexdigest()
