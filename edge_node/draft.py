"""What this edge drafts for one choice. Sans-IO: committed ids in, a hint out.

The core drafts with the same n-gram code beside its model; both offer to one mailbox, and each is
counted by its name.
"""

from firstlight.shared.drafting.ngram import NgramDrafter
from firstlight.shared.stream import TokenStream
from firstlight.shared.types import Hint, Request

SOURCE = "edge-ngram"
HINT_IDS_MAX = 16
"""Ids a hint: what a core can verify in one step, and a few more for the steps after."""


class Draft:
    """The drafter of one choice, in step with its stream."""

    def __init__(self, request: Request, committed: tuple[int, ...] = ()) -> None:
        self._request = request.id
        self._ngram = NgramDrafter()
        self._unread = (*request.prompt, *committed)
        """Ids from before the first hint, until then: indexing them must not delay the request."""

    def after(self, fresh: tuple[int, ...], stream: TokenStream) -> Hint | None:
        """A hint for what follows `stream`, whose last ids are `fresh`; None without an idea."""
        unread, self._unread = self._unread, ()
        self._ngram.append((*unread, *fresh))
        ids = self._ngram.propose(HINT_IDS_MAX)
        if not ids:
            return None
        return Hint(self._request, stream.position, stream.chain, ids, SOURCE)
