"""What a client writes into a history about one answer: what it got, hashed from the ids it got.

Edges hash the same ids of an answer as they send them; where both speak of the same offset they
must say the same.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from firstlight.infra.reply import Reply
from firstlight.shared.errors import FirstlightError
from firstlight.shared.history import Blame, Fact, What
from firstlight.shared.history_file import History
from firstlight.shared.stream import chain_next, chain_of


class AnswerHistory:
    """One question, however often it is gone on with. `telling` sees to its one end."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._name = secrets.token_hex(8)
        self._chains = [chain_of(())]
        self._asked = False

    def asked(self, reply: Reply) -> None:
        """A request goes out, for all of it or for what comes after the ids that are here."""
        del self._chains[len(reply.token_ids) + 1 :]
        what = What.RESUMED if self._asked else What.ASKED
        self._asked = True
        self._note(what, {})

    def received(self, reply: Reply) -> None:
        """Something came."""
        for token in reply.token_ids[len(self._chains) - 1 :]:
            self._chains.append(chain_next(self._chains[-1], token))
        self._note(What.RECEIVED, {"served": str(reply.details.get("stream", ""))})

    @contextmanager
    def telling(self, reply: Reply) -> Iterator[None]:
        """Note how the block ends: with an answer, an error, or neither."""
        try:
            yield
        except FirstlightError as error:
            self._note(What.ENDED, Blame.of(error).facts)
            raise
        except BaseException:
            self._note(What.CANCELLED, {})
            raise
        self._note(What.ENDED, {"finish": reply.finish_reason})

    def _note(self, what: What, facts: dict[str, Fact]) -> None:
        offset, chain = len(self._chains) - 1, self._chains[-1]
        self._history.note(what, self._name, offset=offset, hash=chain, facts=facts)
