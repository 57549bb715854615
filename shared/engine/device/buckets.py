"""The few shapes of steps for which memory is laid out and launches are captured. Sans-IO.

A step has as many rows and looks as far back as it happens to; it runs as the smallest shape that
holds it. Rows of a shape that the step does not have belong to no sequence: they write no keys, and
nobody reads what becomes of them. A row's bits do not depend on the shape (docs/kernels.md).
"""

from dataclasses import dataclass

from firstlight.shared.blocks import BLOCK_TOKENS, blocks_for

PIECE_TOKENS = 256
"""Contexts are a power of two of these; attention has a program for each."""
SPAN_ROWS = 8
"""Rows of a sequence that attention takes at once; a prompt's rows are cut into such spans."""
CAPTURED_ROWS_MAX = 256
"""A larger step takes the device longer than its launches take the host."""
CAPTURED_MAX = 64
"""Captured shapes; others are launched anew each time."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """One shape."""

    rows: int
    sequences: int
    context: int
    """Tokens that the longest sequence may have."""

    @property
    def spans(self) -> int:
        """At most: one a row, and one more a sequence than whole ones of SPAN_ROWS."""
        return min(self.rows, self.sequences + self.rows // SPAN_ROWS)

    @property
    def table(self) -> int:
        """Blocks a sequence."""
        return blocks_for(self.context)


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest step there may be."""

    rows: int
    sequences: int
    context: int

    def bucket(self, rows: int, context: int) -> Bucket:
        """The smallest shape for a step of so many rows, whose longest sequence has `context`.

        Raises:
            ValueError: a step beyond the limits.

        """
        if not 0 < rows <= self.rows or not 0 < context <= self.context:
            raise ValueError(
                f"a step of {rows} rows and a context of {context} tokens, expected at most "
                f"{self.rows} and {self.context}"
            )
        held = min(_power_of_two(rows), self.rows)
        reach = _power_of_two(-(-context // PIECE_TOKENS)) * PIECE_TOKENS
        return Bucket(held, min(held, self.sequences), min(reach, self.context))

    @property
    def largest(self) -> Bucket:
        """The shape that holds every step."""
        return self.bucket(self.rows, self.context)

    @property
    def various(self) -> list[Bucket]:
        """Some shapes that between them need every program that steps are launched with: all
        numbers of rows, and all reaches of one row. The captured one that takes most memory comes
        first, so that others find theirs in it; then the largest of all, so that memory that is too
        small is found out."""
        rows = [min(1 << power, self.rows) for power in range((self.rows - 1).bit_length() + 1)]
        pieces = -(-self.context // PIECE_TOKENS)
        reaches = [PIECE_TOKENS << power for power in range((pieces - 1).bit_length() + 1)]
        least = min(PIECE_TOKENS, self.context)
        wanted = [
            (min(self.rows, CAPTURED_ROWS_MAX), self.context),
            (self.rows, self.context),
            *((count, least) for count in reversed(rows)),
            *((1, min(reach, self.context)) for reach in reaches),
        ]
        return list(dict.fromkeys(self.bucket(*one) for one in wanted))


def captured(bucket: Bucket, already: int) -> bool:
    """Whether a shape is worth being captured, where `already` others are."""
    return bucket.rows <= CAPTURED_ROWS_MAX and already < CAPTURED_MAX


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


assert PIECE_TOKENS % BLOCK_TOKENS == 0
