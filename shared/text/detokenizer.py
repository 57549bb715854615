"""Ids in, final text out: whole characters only, and nothing that could still become a stop string.

What is sent is always exactly the text of the first `offset` ids, so that whoever holds these ids
holds the text, and can go on from there. Fed id by id in position order, so the text cannot depend
on how ids were grouped on the way here. The text of all pieces is `bytes.decode("utf-8",
"replace")` of all ids' bytes, cut at the first stop string. Stop strings are followed character by
character (Knuth, Morris, Pratt 1977), which also says exactly how many characters must be held
back. The first stop string to be *completed* wins; of several completed by one character, the one
that begins first. That rule looks at characters alone, so the same text ends at the same place
whichever ids spell it.
"""

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_Decoder = getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class Piece:
    """What became final with one id, or at the end."""

    text: str
    offset: int
    """Ids whose text, and no more, is sent. After a stop string: ids of which any was kept."""
    stopped: bool = False
    """A stop string is complete: the answer ends with this id."""


def _failure(pattern: str) -> list[int]:
    """Length of the longest proper border of each prefix of `pattern`, by the prefix's length."""
    table, border = [0, 0], 0
    for char in pattern[1:]:
        while border and char != pattern[border]:
            border = table[border]
        border += char == pattern[border]
        table.append(border)
    return table


class _Stop:
    """How much of one stop string the text ends with."""

    __slots__ = ("matched", "pattern", "table")

    def __init__(self, pattern: str) -> None:
        self.pattern, self.table, self.matched = pattern, _failure(pattern), 0

    def feed(self, char: str) -> bool:
        """Whether `char` completes the string. Not called again after that."""
        while self.matched and char != self.pattern[self.matched]:
            self.matched = self.table[self.matched]
        self.matched += char == self.pattern[self.matched]
        return self.matched == len(self.pattern)


class Detokenizer:
    """One choice's ids on their way to text. `token_bytes` gives b"" for control tokens."""

    def __init__(self, token_bytes: Callable[[int], bytes], stop: tuple[str, ...] = ()) -> None:
        if not all(stop):
            raise ValueError(f"an empty stop string in {stop!r}")
        self._token_bytes = token_bytes
        self._decoder = _Decoder("replace")
        self._stops = [_Stop(pattern) for pattern in stop]
        self._held = ""
        """Decoded, not sent: the beginning of what could become a stop string, or of an id's text
        of which the rest is to come."""
        self._sent_chars = 0
        self._unsent: deque[tuple[int, int]] = deque()
        """(first character, character after the last) of each id that is not fully sent."""
        self._offset = 0
        self._ended = False

    def push(self, token: int) -> Piece:
        """The text that is final now that `token` is known."""
        assert not self._ended, f"id {token} after the end of its answer"
        begin = self._decoded_chars
        raw = self._token_bytes(token)
        fresh = self._decoder.decode(raw)
        # Bytes that wait in the decoder become exactly one character, whole or U+FFFD.
        waiting = not (raw and raw.isascii()) and bool(self._decoder.getstate()[0])
        self._unsent.append((begin, begin + len(fresh) + waiting))
        return self._advance(fresh)

    def finish(self) -> Piece:
        """The rest, when no id follows: held text, and U+FFFD for half a character."""
        assert not self._ended, "the answer has ended already"
        piece = self._advance(self._decoder.decode(b"", final=True))
        self._ended = True
        if piece.stopped:
            return piece
        rest = self._send(self._held, len(self._held))
        return Piece(piece.text + rest.text, rest.offset)

    @property
    def offset(self) -> int:
        """Ids whose text is fully sent so far, as in the last piece."""
        return self._offset

    @property
    def _decoded_chars(self) -> int:
        return self._sent_chars + len(self._held)

    def _advance(self, fresh: str) -> Piece:
        for i, char in enumerate(fresh if self._stops else ""):
            complete = [len(stop.pattern) for stop in self._stops if stop.feed(char)]
            if complete:
                return self._cut(self._held + fresh[: i + 1], max(complete))
        text = self._held + fresh
        return self._send(text, len(text) - max((stop.matched for stop in self._stops), default=0))

    def _send(self, text: str, final_chars: int) -> Piece:
        """Send of what was held and came the ids that are final to their last character."""
        end = self._sent_chars
        while self._unsent and self._unsent[0][1] <= self._sent_chars + final_chars:
            end = self._unsent.popleft()[1]
            self._offset += 1
        chars = end - self._sent_chars
        self._sent_chars, self._held = end, text[chars:]
        return Piece(text[:chars], self._offset)

    def _cut(self, text: str, stop_chars: int) -> Piece:
        """Send what stands before the stop string; drop the ids that lie wholly behind the cut."""
        self._ended, self._held = True, ""
        kept = text[: len(text) - stop_chars]
        self._sent_chars += len(kept)
        self._offset += sum(first < self._sent_chars for first, _ in self._unsent)
        self._unsent.clear()
        return Piece(kept, self._offset, stopped=True)
