"""The router over links that are there, and to nowhere: what it draws, reserves and forgets."""

from random import Random

import doubles
import grpc
import pytest

from firstlight.edge_node.choice import Choice
from firstlight.edge_node.route import CoreRouter
from firstlight.edge_node.upstream.link import CoreLink
from firstlight.edge_node.upstream.pool import LinkPool
from firstlight.edge_node.view import MeshMemory
from firstlight.shared.errors import CapacityError
from firstlight.shared.routing.ejection import PROBE_S
from firstlight.shared.routing.spill import Row
from firstlight.shared.types import Load, NodeInfo, Role

PROMPT = tuple(range(64))


class Pool(LinkPool):
    """Links without keepers."""

    def __init__(self, links: list[CoreLink]) -> None:
        self._links = {link.info.node: link for link in links}
        self._by_region = {}


def linked(name: str, region: str = "lon", **load: int) -> CoreLink:
    info = NodeInfo(name, Role.CORE, 1, region, f"{name}:1", "cpu", ("m",), "t", 8192)
    link = CoreLink(info, grpc.aio.insecure_channel("127.0.0.1:1"), MeshMemory())
    link.up, link.load = True, Load(**{"sequences_max": 8, **load})
    return link


def router(*links: CoreLink, row: Row | None = None) -> CoreRouter:
    return CoreRouter(
        Pool(list(links)), region="lon", tokenizer_hash="t", rng=Random(1), spill_row=lambda: row
    )


def choice(name: str = "r", session: bytes = b"") -> Choice:
    one = doubles.request(name, PROMPT)
    return Choice(
        one, index=0, stop=(), token_bytes=lambda token: b"", received_s=0.0, session=session
    )


async def test_the_region_is_drawn_by_the_row_that_the_edge_follows_once_requests_wait_here() -> (
    None
):
    near, far = linked("near", queued=1), linked("far", "par")
    chosen = router(near, far, row=Row((("par", 1.0),)))
    with chosen.place(choice(), near.load_at_s) as (link, assignment):
        assert link is far
        assert assignment.route.drawn == "par"
    with router(near, far).place(choice(), near.load_at_s) as (link, _):
        assert link is near


async def test_what_is_drawn_away_stays_where_nothing_waits_however_many_are_linked() -> None:
    row, far = Row((("par", 1.0),)), [linked(f"f{n}", "par") for n in range(6)]
    others = [linked(f"s{n}", "syd") for n in range(6)]
    waits = [linked(f"h{n}", queued=1, queued_prefill_tokens=1000) for n in range(6)]
    with router(*waits, *far, *others, row=row).place(choice(), far[0].load_at_s) as (link, _):
        assert link in far
    idle = linked("idle")
    chosen = router(idle, *waits, *far, *others, row=row)
    with chosen.place(choice(), far[0].load_at_s) as (link, assignment):
        assert link is idle
        assert assignment.route.reason == "home region: nothing waits here, though par was drawn"


async def test_a_queue_at_home_is_left_for_another_region_however_many_are_linked() -> None:
    rates = {"queued_prefill_tokens": 4000, "prefill_ms_per_token": 1}
    home, far = [linked(f"h{n}", **rates) for n in range(6)], linked("far", "par")
    with router(*home, far).place(choice(), far.load_at_s) as (link, assignment):
        assert link is far
        assert assignment.route.reason == "region par: sooner than in lon by its wait"
    idle = linked("idle")
    with router(*home, idle, far).place(choice(), far.load_at_s) as (link, _):
        assert link is idle


async def test_what_is_shed_is_refused_unless_it_was_taken_in_before() -> None:
    busy = linked("busy", running=7)
    refusing, one = router(busy, row=Row((), 1.0)), choice()
    with pytest.raises(CapacityError, match="shed"), refusing.place(one, busy.load_at_s):
        pass
    with router(busy).place(one, busy.load_at_s) as (_, assignment):
        one.assign(assignment)
    with refusing.place(one, busy.load_at_s) as (link, _):
        assert link is busy


async def test_a_place_is_seen_by_the_next_decision_and_given_back() -> None:
    one, other = linked("one"), linked("other")
    chosen, now = router(one, other), one.load_at_s
    with chosen.place(choice("a"), now) as (first, _):
        full = Load(sequences_max=1)
        one.load, other.load = full, full
        one._state = other._state = None
        with chosen.place(choice("b"), now) as (second, _):
            assert second is not first
            with pytest.raises(CapacityError, match="shed"), chosen.place(choice("c"), now):
                pass
    with chosen.place(choice("d"), now), chosen.place(choice("e"), now):
        pass


async def test_a_choice_that_is_not_opened_is_no_probe_and_leaves_no_prefix() -> None:
    link = linked("one")
    chosen, now = router(link), link.load_at_s
    chosen.refused(link, now)  # although it has room: it is in doubt
    after = now + 1.0
    with pytest.raises(ZeroDivisionError), chosen.place(choice(), after):
        raise ZeroDivisionError
    assert not chosen._ejection.ejected("one", after)
    assert chosen._sent.resident(choice().block_hashes, after) == {}
    with chosen.place(choice(), after):
        pass
    assert chosen._ejection.ejected("one", after + PROBE_S / 2)
    assert chosen._sent.resident(choice().block_hashes, after) == {"one": 64}


async def test_a_link_states_anew_what_has_changed() -> None:
    link = linked("one")
    now = link.load_at_s
    assert link.state(now) is link.state(now)
    link.open(doubles.request("r", PROMPT), 1, (), object(), budget_s=1.0)  # type: ignore[arg-type]
    assert link.state(now).unseen_opens == 1
    link.cancel("r", 1)
    assert link.state(now).unseen_opens == 0
    assert link.state(now + 3.0).age_s == pytest.approx(3.0)
