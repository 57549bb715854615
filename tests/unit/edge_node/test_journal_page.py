"""What a page of the journal says, and what it does not believe."""

from hypothesis import given
from hypothesis import strategies as st

from firstlight.edge_node.journal_page import Page, class_hash

PAGE = Page.of(b"k" * 32, b"request", "stream")
IDS = st.lists(st.integers(0, (1 << 32) - 1), max_size=20)


@given(st.lists(IDS, min_size=1, max_size=5))
def test_records_in_a_row_are_read_as_one(parts: list[list[int]]) -> None:
    raw, ids = b"", list[int]()
    for part in parts:
        raw += PAGE.record(len(ids), part, "class")
        ids += part
    written = PAGE.read(raw)
    assert written is not None
    assert (written.ids, written.class_hash) == (tuple(ids), class_hash("class"))


def test_the_bytes_are_what_the_format_says() -> None:
    record = PAGE.record(2, [1, 515], "class")
    head = b"\2\0\0\0\2\0\0\0" + class_hash("class")
    assert record[:24] == head + b"\1\0\0\0\3\2\0\0"
    assert len(record) == 24 + 16


def test_a_record_that_overlaps_says_the_same_again() -> None:
    raw = PAGE.record(0, [1, 2, 3], "class") + PAGE.record(1, [2, 3, 4], "class")
    written = PAGE.read(raw)
    assert written is not None
    assert written.ids == (1, 2, 3, 4)


def test_a_gap_is_not_believed() -> None:
    assert PAGE.read(PAGE.record(3, [4], "class")) is None
    assert PAGE.read(PAGE.record(0, [1], "class") + PAGE.record(2, [3], "class")) is None


def test_the_class_is_that_of_the_last_record() -> None:
    written = PAGE.read(PAGE.record(0, [1], "one") + PAGE.record(1, [2], "two"))
    assert written is not None
    assert written.class_hash == class_hash("two")


def test_an_empty_page_says_nothing() -> None:
    assert PAGE.read(b"") is None


@given(st.binary(max_size=200))
def test_bytes_of_others_are_not_believed(raw: bytes) -> None:
    assert PAGE.read(raw) is None


@given(st.data(), IDS)
def test_one_bit_changes_all(data: st.DataObject, ids: list[int]) -> None:
    raw = bytearray(PAGE.record(0, ids, "class"))
    place = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[place // 8] ^= 1 << place % 8
    assert PAGE.read(bytes(raw)) is None


@given(st.data(), IDS)
def test_a_cut_page_is_not_believed(data: st.DataObject, ids: list[int]) -> None:
    raw = PAGE.record(0, ids, "class")
    assert PAGE.read(raw[: data.draw(st.integers(0, len(raw) - 1))]) is None


def test_a_page_of_another_stream_request_or_key_is_not_believed() -> None:
    others = [
        Page.of(b"k" * 32, b"request", "other"),
        Page.of(b"k" * 32, b"another", "stream"),
        Page.of(b"x" * 32, b"request", "stream"),
    ]
    raw = PAGE.record(0, [1, 2], "class")
    assert [page.read(raw) for page in others] == [None] * 3
    assert len({page.name for page in [PAGE, *others]}) == 4
