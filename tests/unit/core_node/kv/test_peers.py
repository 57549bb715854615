"""The other cores: who counts, and whom to leave be."""

import pytest

from firstlight.core_node.kv import peers
from firstlight.core_node.kv.peers import BUSY_S, REST_S, REST_S_MAX, Peer, Peers
from firstlight.shared.types import MeshView, NodeInfo, Report, Role


def info(name: str, **changes: object) -> NodeInfo:
    values: dict[str, object] = {
        "node": name,
        "role": Role.CORE,
        "incarnation": 1,
        "region": "eu",
        "address": "127.0.0.1:1",
        "numerics_class": "class",
    }
    return NodeInfo(**(values | changes))  # type: ignore[arg-type]


def refuse(address: str) -> None:
    raise AssertionError(address)


def seen(*infos: NodeInfo, leaving: bool = False) -> MeshView:
    return MeshView("lb", 1, tuple((Report(one, 1, leaving=leaving), 0.0) for one in infos))


@pytest.fixture
def known() -> Peers:
    made = Peers(info("me"), refuse)  # type: ignore[arg-type]
    made.seen(seen(info("me"), info("a"), info("b")))
    return made


def peer(known: Peers, name: str) -> Peer:
    found = known.usable(name, 0.0)
    assert found is not None
    return found


def test_cores_of_the_region_and_class_count_but_not_ourselves(known: Peers) -> None:
    known.seen(
        seen(
            info("far", region="us"),
            info("other", numerics_class="x"),
            info("edge", role=Role.EDGE),
        )
    )
    assert sorted(known.names()) == ["a", "b"]


def test_those_heard_of_last_come_first_and_the_others_are_forgotten(
    known: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "PEERS_MAX", 2)
    known.seen(seen(info("a")))
    assert known.names() == ["a", "b"]
    known.seen(seen(info("c")))
    assert known.names() == ["c", "a"]


def test_a_core_that_leaves_is_forgotten_and_one_that_started_anew_has_no_past(
    known: Peers,
) -> None:
    known.failed(peer(known, "b"), 0.0)
    known.seen(seen(info("a"), leaving=True))
    known.seen(seen(info("b", incarnation=2)))
    assert known.names() == ["b"]
    assert peer(known, "b").failures == 0


def test_who_fails_again_and_again_is_left_alone_ever_longer(known: Peers) -> None:
    one, waits = peer(known, "a"), []
    for _ in range(7):
        known.failed(one, 100.0)
        waits.append(one.rests_until - 100.0)
    assert waits == [REST_S, 20.0, 40.0, 80.0, 160.0, REST_S_MAX, REST_S_MAX]
    assert known.usable("a", 100.0) is None
    known.succeeded(one)
    known.failed(one, 100.0)
    assert one.rests_until == 100.0 + REST_S


def test_who_is_busy_is_asked_again_soon(known: Peers) -> None:
    one = peer(known, "a")
    known.busy(one, 5.0)
    assert known.usable("a", 5.0) is None
    assert known.usable("a", 5.0 + BUSY_S) is one
    assert one.failures == 0


def test_a_bad_block_is_not_asked_of_that_peer_again(known: Peers) -> None:
    hashes = [bytes([n]) * 16 for n in range(4)]
    known.bad(peer(known, "a"), hashes[2], 0.0)
    assert known.good_blocks("a", hashes, 1.0) == 2
    assert known.good_blocks("b", hashes, 1.0) == 4
    assert known.good_blocks("a", hashes, 10_000.0) == 4
