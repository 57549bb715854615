"""Text from ids: never half a character, never a piece of a stop string, whatever the grouping."""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firstlight.shared.text.detokenizer import Detokenizer, Piece

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def run(parts: list[bytes], stop: tuple[str, ...] = ()) -> tuple[list[Piece], str]:
    """Pieces and whole text of ids that stand for `parts`."""
    detokenizer = Detokenizer(parts.__getitem__, stop)
    pieces = []
    for token in range(len(parts)):
        pieces.append(detokenizer.push(token))
        if pieces[-1].stopped:
            break
    else:
        pieces.append(detokenizer.finish())
    return pieces, "".join(piece.text for piece in pieces)


def cut(text: str, stop: tuple[str, ...]) -> str:
    """The text before the first stop string to be completed, by looking at every beginning."""
    for end in range(1, len(text) + 1):
        ended = [len(s) for s in stop if text[:end].endswith(s)]
        if ended:
            return text[: end - max(ended)]
    return text


def test_text_of_plain_ids_is_sent_at_once() -> None:
    assert run([b"a", b"bc"])[0] == [Piece("a", 1), Piece("bc", 2), Piece("", 2)]


def test_a_character_is_held_until_its_last_byte() -> None:
    face = "😀".encode()
    assert run([face[:1], face[1:3], face[3:] + b"!"])[0] == [
        Piece("", 0),
        Piece("", 0),
        Piece("😀!", 3),
        Piece("", 3),
    ]


def test_half_a_character_at_the_end_is_one_replacement() -> None:
    assert run([b"a", "é".encode()[:1]])[0][-1] == Piece("\ufffd", 2)


def test_control_tokens_have_no_text_but_count() -> None:
    assert run([b"", b"a", b""])[0] == [Piece("", 1), Piece("a", 2), Piece("", 3), Piece("", 3)]


def test_what_could_become_a_stop_string_is_held_back() -> None:
    pieces, text = run([b"one\n", b"two\n", b"x"], ("\n\n",))
    assert [piece.text for piece in pieces] == ["", "one\n", "two\nx", ""]
    assert [piece.offset for piece in pieces] == [0, 1, 3, 3]
    assert text == "one\ntwo\nx"


def test_a_stop_string_over_token_borders_is_cut_with_the_ids_behind_it() -> None:
    pieces, text = run([b"keep ", b"some E", b"N", b"D", b" never"], ("END",))
    assert text == "keep some "
    assert pieces[-1] == Piece("some ", 2, stopped=True)


def test_the_first_stop_string_to_be_complete_wins() -> None:
    assert run([b"xabcy"], ("abc", "b"))[1] == "xa"
    assert run([b"xabcy"], ("bc", "abc"))[1] == "x"


def test_held_text_is_sent_at_the_end() -> None:
    assert run([b"abc", b" EN"], ("END",))[0] == [Piece("abc", 1), Piece("", 1), Piece(" EN", 2)]


def test_an_id_is_sent_as_a_whole() -> None:
    face = "😀".encode()
    assert run([b"a" + face[:1], face[1:]])[0] == [Piece("", 0), Piece("a😀", 2), Piece("", 2)]


def test_a_stop_string_that_overlaps_itself_is_found() -> None:
    assert run([b"aa", b"ba", b"aab"], ("aaab",))[1] == "aab"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty stop"):
        Detokenizer(lambda _: b"", ("",))


@RELAXED
@given(st.lists(st.binary(max_size=5), max_size=30))
def test_without_stops_the_text_is_that_of_the_whole(parts: list[bytes]) -> None:
    pieces, text = run(parts)
    assert text == b"".join(parts).decode("utf-8", "replace")
    assert pieces[-1].offset == len(parts)


BORDERS = st.lists(st.integers(0, 60), max_size=12)
STOPS = st.lists(st.text("abé\n", min_size=1, max_size=4), min_size=1, max_size=4).map(tuple)


@RELAXED
@given(st.text("abé\n", max_size=30), BORDERS, STOPS)
def test_any_grouping_of_bytes_ends_at_the_same_character(
    text: str, borders: list[int], stop: tuple[str, ...]
) -> None:
    whole = text.encode()
    edges = [0, *sorted(min(border, len(whole)) for border in borders), len(whole)]
    parts = [whole[a:b] for a, b in pairwise(edges)]
    assert run(parts, stop)[1] == cut(text, stop)


@RELAXED
@given(
    st.lists(st.sampled_from([b"a", b"ab", "é".encode()[:1], "é".encode()[1:], b"", b"\xff"])),
    STOPS,
)
def test_sent_ids_are_exactly_those_whose_text_is_out(
    parts: list[bytes], stop: tuple[str, ...]
) -> None:
    pieces, text = run(parts, stop)
    assert text == cut(b"".join(parts).decode("utf-8", "replace"), stop)
    sent = 0
    for i, piece in enumerate(pieces):
        pushed = min(i + 1, len(parts))
        sent += len(piece.text)
        if not piece.stopped:
            assert b"".join(parts[: piece.offset]).decode("utf-8", "replace") == text[:sent]
            assert piece.offset == pushed or chars(parts[: piece.offset + 1]) > sent


def chars(parts: list[bytes]) -> int:
    return len(b"".join(parts).decode("utf-8", "replace"))
