"""The token stream: who may append what at which position. One class for both ends of a link.

A core authors (`append`), an edge follows (`receive`). Both keep the chained hash

    c_P = BLAKE2b-64(prompt ids as u32 little endian),   c_{p+1} = BLAKE2b-64(c_p ‖ id as u32)

so that a hint or a commit that belongs to another history is recognised by 8 bytes. Positions are
absolute: the first prompt id is position 0, and the first generated id has position P.
"""

from collections.abc import Sequence
from hashlib import blake2b
from struct import pack

from firstlight.shared.errors import PeerError
from firstlight.shared.types import Commit, FinishReason

CHAIN_BYTES = 8
CREDIT_TOKENS = 512
"""How far a core may commit beyond what the client has taken: a new assignment starts with the
prompt and this, on both ends of the link."""


def chain_of(ids: Sequence[int]) -> bytes:
    """The chain hash after a prompt."""
    return blake2b(pack(f"<{len(ids)}I", *ids), digest_size=CHAIN_BYTES).digest()


def chain_next(chain: bytes, token: int) -> bytes:
    """The chain hash after one more id."""
    return blake2b(chain + pack("<I", token), digest_size=CHAIN_BYTES).digest()


def ending(
    token: int, *, generated: int, max_tokens: int, eos_ids: frozenset[int], stopped: bool = False
) -> FinishReason | None:
    """Whether `token`, the `generated`-th id of an answer, ends it.

    Evaluated id by id in position order at the edge, where `stopped` says that a stop string is
    complete; the core runs the same rule without stop strings, to save work. So the text cannot
    depend on how commits were grouped.
    """
    if token in eos_ids or stopped:
        return FinishReason.STOP
    if generated >= max_tokens:
        return FinishReason.LENGTH
    return None


class TokenStream:
    """Ids after a prompt, in order, each once; and the epoch that may append to them."""

    def __init__(self, prompt: Sequence[int], committed: Sequence[int] = ()) -> None:
        self.prompt_tokens = len(prompt)
        self.ids: list[int] = []
        self.epoch = 0
        self._chains = [chain_of(prompt)]
        self.append(committed)

    @property
    def position(self) -> int:
        """Absolute position of the next id."""
        return self.prompt_tokens + len(self.ids)

    @property
    def chain(self) -> bytes:
        """Chain hash of everything so far."""
        return self._chains[-1]

    def chain_at(self, position: int) -> bytes | None:
        """Chain hash of all before `position`; None inside the prompt or ahead of the stream."""
        offset = position - self.prompt_tokens
        return self._chains[offset] if 0 <= offset < len(self._chains) else None

    def ids_from(self, position: int) -> tuple[int, ...]:
        """Generated ids from an absolute position on."""
        return tuple(self.ids[max(0, position - self.prompt_tokens) :])

    def append(self, ids: Sequence[int]) -> bytes:
        """Author: add ids; returns the chain hash after them."""
        for token in ids:
            self.ids.append(token)
            self._chains.append(chain_next(self._chains[-1], token))
        return self.chain

    def assign(self) -> int:
        """Follower: fence what was assigned before; returns the new epoch."""
        self.epoch += 1
        return self.epoch

    def receive(self, commit: Commit) -> tuple[int, ...]:
        """Follower: the ids of `commit` that are new, appended.

        An older epoch is dropped, an overlap trimmed. A gap, an id that contradicts one that we
        have, a chain that does not match or an epoch from the future raise `PeerError` and change
        nothing.
        """
        if commit.epoch < self.epoch:
            return ()
        if commit.epoch > self.epoch:
            raise PeerError(
                f"commit of epoch {commit.epoch}, but {self.epoch} is the latest assigned"
            )
        known = self.position - commit.position
        if known < 0 or commit.position < self.prompt_tokens:
            raise PeerError(f"commit at position {commit.position}, but {self.position} is next")
        start = commit.position - self.prompt_tokens
        mine = self.ids[start : start + len(commit.ids)]
        if list(commit.ids[:known]) != mine:
            raise PeerError(
                f"commit at position {commit.position} contradicts ids committed before"
            )
        fresh, chain = commit.ids[known:], self.chain
        for token in fresh:
            chain = chain_next(chain, token)
        if fresh and chain != commit.chain:
            raise PeerError(f"chain hash after position {self.position + len(fresh) - 1} differs")
        self.append(fresh)
        return tuple(fresh)
