"""How the KV index is spelled, and what replies are worth."""

from itertools import pairwise
from typing import Any

import pytest

from firstlight.core_node.kv.index_keys import (
    READS_MAX,
    Holder,
    Tier,
    Write,
    entry_key,
    entry_value,
    epoch_value,
    judge,
    judge_writes,
    live_epochs,
    live_key,
    marks_to_read,
    write_commands,
)

FIRST, BLOCK = bytes(16), bytes(range(16))
MARKS = [7, 15, 19]
LIVE = {b"a": ("a", 5), b"b": ("b", 0x1F)}


def entry(**fields: bytes) -> list[bytes]:
    return [part for name, value in fields.items() for part in (name.encode(), value)]


def test_keys_of_a_chain_share_a_hash_tag() -> None:
    key = entry_key("0123456789abcdef", FIRST, BLOCK)
    assert key == b"fl:kv:{" + b"0" * 32 + b"}:0123456789abcdef:000102030405060708090a0b0c0d0e0f"
    assert live_key("core-ü{x}") == "fl:kv:{live}:core-ü{x}".encode()


def test_a_chain_is_read_at_its_checkpoints_and_its_end() -> None:
    assert marks_to_read(20) == [7, 15, 19]
    assert marks_to_read(16) == [7, 15]
    assert marks_to_read(3) == [2]
    assert marks_to_read(0) == []


def test_what_is_known_already_is_not_read() -> None:
    assert marks_to_read(20, beyond=8) == [15, 19]
    assert marks_to_read(20, beyond=7) == [7, 15, 19]
    assert marks_to_read(20, beyond=20) == []


@pytest.mark.parametrize("blocks", [4096, 4097, 8192, 10_001, 100_000])
def test_a_very_long_chain_is_read_in_wider_steps_from_its_end(blocks: int) -> None:
    marks = marks_to_read(blocks)
    assert READS_MAX // 2 < len(marks) <= READS_MAX
    assert marks[-1] == blocks - 1
    stride = marks[-2] - marks[-3]
    assert marks[0] < stride + 8
    assert {later - earlier for earlier, later in pairwise(marks[:-1])} == {stride}


def test_the_deepest_entry_of_each_live_node_counts() -> None:
    entries = [
        entry(a=entry_value(5, Tier.DEVICE), b=entry_value(0x1F, Tier.DEVICE)),
        entry(a=entry_value(5, Tier.HOST), c=entry_value(5, Tier.DEVICE)),
        [],
    ]
    found = judge(MARKS, entries, LIVE)
    assert found.holders == (Holder("a", 16, Tier.HOST), Holder("b", 8, Tier.DEVICE))
    assert found.stale == ()


def test_of_two_that_hold_as_much_the_faster_tier_comes_first() -> None:
    entries = [[], [], entry(a=entry_value(5, Tier.DISK), b=entry_value(0x1F, Tier.HOST))]
    assert [one.node for one in judge(MARKS, entries, LIVE).holders] == ["b", "a"]


def test_an_entry_of_an_older_epoch_is_stale_and_of_a_later_one_only_a_miss() -> None:
    entries = [[], entry(a=entry_value(4, Tier.HOST), b=entry_value(0x20, Tier.HOST)), []]
    found = judge(MARKS, entries, LIVE)
    assert found.holders == ()
    assert found.stale == ((15, "a", 4),)


@pytest.mark.parametrize(
    "reply",
    [
        None,
        7,
        b"text",
        ValueError("WRONGTYPE"),
        [b"a"],
        [7, 7],
        [b"a", None],
        [[b"a"], b"5:host"],
        entry(a=b""),
        entry(a=b"5"),
        entry(a=b"5:tape"),
        entry(a=b"-5:host"),
        entry(a=b"5:host\n"),
        entry(a=b"5:hosts"),
        entry(a=b"f" * 17 + b":host"),
        entry(a=b"\xff\xfe"),
    ],
)
def test_a_reply_that_is_no_entry_is_a_miss(reply: Any) -> None:
    good = entry(b=entry_value(0x1F, Tier.DEVICE))
    found = judge(MARKS, [good, reply, []], LIVE)
    assert found.holders == (Holder("b", 8, Tier.DEVICE),)
    assert found.stale == ()


def test_who_lives_is_who_has_an_epoch() -> None:
    nodes = ["a", "b", "c", "d", "e"]
    reply = [epoch_value(5), None, b"no", 3, epoch_value(1 << 50)]
    assert live_epochs(nodes, reply) == {b"a": ("a", 5), b"e": ("e", 1 << 50)}


@pytest.mark.parametrize("reply", [None, b"x", [], [b"1"], ValueError("NOPERM")])
def test_without_a_reply_for_each_nobody_lives(reply: Any) -> None:
    assert live_epochs(["a", "b"], reply) == {}


SET, DELETE = Write(FIRST, BLOCK, "a", Tier.DISK), Write(FIRST, BLOCK, "b", None, 25)


def test_a_write_sets_a_field_and_its_keys_expiry() -> None:
    key = entry_key("n", FIRST, BLOCK)
    assert write_commands(SET, "n", epoch=26, expiry_s=60) == [
        ("HSET", key, "a", b"1a:disk"),
        ("HLEN", key),
        ("EXPIRE", key, 60),
    ]


def test_a_deletion_names_the_epoch_that_it_means() -> None:
    ((command, _, *words),) = write_commands(DELETE, "n", epoch=26, expiry_s=60)
    assert (command, words) == ("EVAL", [1, entry_key("n", FIRST, BLOCK), "b", b"19:"])


def test_writes_are_judged_by_their_own_replies() -> None:
    oom, wrong = ValueError("OOM command not allowed"), ValueError("WRONGTYPE Operation")
    writes = [SET, DELETE, SET, DELETE, SET, SET]
    replies = [1, 1, 1, 0, oom, 0, 0, oom, wrong, wrong, 1, 1, 9, 1]
    written = judge_writes(writes, replies, fields_max=8)
    assert written.lost == (writes[2], writes[3], writes[4], writes[5])
    assert written.spoiled == (writes[4], writes[5])
