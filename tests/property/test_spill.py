"""What must hold of the shares between regions, whatever is reported."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstlight.shared.routing.spill import (
    FILL,
    Pairs,
    RegionSupply,
    Table,
    draw,
    row_of,
    sane,
    water_fill,
)
from firstlight.shared.routing.spill_step import (
    AWAY_PER_S,
    BACK_PER_S,
    HYSTERESIS,
    SMALL,
    Spill,
    adopt,
    step,
)

NAMES = ("ams", "bom", "dub", "gru", "lon")
NONSENSE = st.sampled_from([nan, inf, -inf, -1.0, -1e-9, 1e13, 1e300])
amounts = st.floats(0.0, 1000.0)


@dataclass(frozen=True)
class World:
    demand: Mapping[str, float]
    supply: Mapping[str, RegionSupply]
    rtt_ms: Pairs

    def fill(self) -> Table:
        return water_fill(self.demand, self.supply, self.rtt_ms)

    def step(self, last: Spill, now: float) -> Spill:
        return step(last, self.demand, self.supply, self.rtt_ms, now)

    def loads(self, table: Table) -> dict[str, float]:
        loads = dict.fromkeys(self.supply, 0.0)
        for origin, row in table.items():
            for region, share in row.fractions:
                loads[region] += share * self.demand[origin]
        return loads


@st.composite
def worlds(draw: st.DrawFn, *, healthy: bool = False) -> World:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    shares = st.just(1.0) if healthy else st.floats(0.0, 1.0)
    return World(
        demand={name: draw(amounts) for name in names},
        supply={name: RegionSupply(draw(amounts), draw(shares)) for name in names},
        rtt_ms={
            (a, b): draw(st.floats(0, 500)) for a in names for b in names if draw(st.booleans())
        },
    )


@given(worlds())
def test_what_is_given_and_what_is_shed_are_all_of_the_demand(world: World) -> None:
    table = world.fill()
    assert set(table) == set(world.demand)
    for row in table.values():
        assert sum(share for _, share in row.fractions) + row.shed == pytest.approx(1.0)
        assert sane(row)


@given(worlds())
def test_no_region_is_filled_above_its_mark_unless_all_are(world: World) -> None:
    loads = world.loads(world.fill())
    slack = 1e-6 * max(1.0, sum(world.demand.values()))
    over = [r for r, one in world.supply.items() if loads[r] > FILL * one.effective + slack]
    under = [r for r, one in world.supply.items() if loads[r] < FILL * one.effective - slack]
    assert not (over and under)
    assert all(loads[r] <= one.effective + slack for r, one in world.supply.items())


@given(worlds())
def test_nothing_is_shed_while_a_region_has_room(world: World) -> None:
    table = world.fill()
    total = sum(world.demand.values())
    room = sum(one.effective for one in world.supply.values())
    shed = sum(row.shed * world.demand[origin] for origin, row in table.items())
    assert shed == pytest.approx(max(0.0, total - room), abs=1e-6 * max(1.0, total))


@given(worlds(), st.data())
def test_more_capacity_never_lowers_what_a_region_gets(world: World, data: st.DataObject) -> None:
    region = data.draw(st.sampled_from(sorted(world.supply)))
    one = world.supply[region]
    larger = RegionSupply(one.capacity + data.draw(st.floats(0, 500)), one.healthy)
    more = replace(world, supply={**world.supply, region: larger})
    slack = 1e-6 * max(1.0, sum(world.demand.values()))
    assert more.loads(more.fill())[region] >= world.loads(world.fill())[region] - slack


@given(worlds(), st.randoms())
def test_the_order_of_what_is_reported_does_not_matter(world: World, rng: object) -> None:
    def turned(items: Mapping) -> dict:  # type: ignore[type-arg]
        pairs = list(items.items())
        rng.shuffle(pairs)  # type: ignore[attr-defined]
        return dict(pairs)

    other = World(turned(world.demand), turned(world.supply), turned(world.rtt_ms))
    assert other.fill() == world.fill()
    first, second = world.step(Spill(), 0.0), other.step(Spill(), 0.0)
    assert first.table == second.table


@given(worlds(healthy=True))
def test_no_origin_takes_anothers_home_before_that_is_served(world: World) -> None:
    table = world.fill()
    for origin, row in table.items():
        for region, share in row.fractions:
            if region == origin or share * world.demand[origin] < 1e-6:
                continue
            served = table[region].share(region) * world.demand[region]
            due = min(world.demand[region], FILL * world.supply[region].effective)
            assert served >= due - 1e-6 * max(1.0, due)


@pytest.mark.parametrize("wrong", [nan, inf, -1.0, 1e13])
def test_a_figure_that_cannot_be_is_named(wrong: float) -> None:
    good = {"lon": RegionSupply(1.0, 1.0)}
    for arguments in (
        ({"lon": wrong}, good, {}),
        ({"lon": 1.0}, {"lon": RegionSupply(wrong, 1.0)}, {}),
        ({"lon": 1.0}, {"lon": RegionSupply(1.0, wrong)}, {}),
        ({"lon": 1.0}, good, {("lon", "par"): wrong}),
    ):
        with pytest.raises(ValueError, match="lon"):
            water_fill(*arguments)


@st.composite
def liars(draw: st.DrawFn) -> World:
    """A world in which any figure may be nonsense."""
    world = draw(worlds())
    amount, share = st.one_of(amounts, NONSENSE), st.one_of(st.floats(0, 1), NONSENSE)
    return World(
        {name: draw(amount) for name in world.demand},
        {name: RegionSupply(draw(amount), draw(share)) for name in world.supply},
        {pair: draw(st.one_of(st.floats(0, 500), NONSENSE)) for pair in world.rtt_ms},
    )


@given(
    st.lists(liars(), min_size=1, max_size=8), st.lists(st.floats(-5, 200), min_size=8, max_size=8)
)
def test_whatever_is_reported_and_when_all_rows_can_be_followed(
    reported: list[World], times: list[float]
) -> None:
    spill = Spill()
    for world, now in zip(reported, times, strict=False):
        spill = world.step(spill, now)
        assert all(sane(row) for row in spill.table.values())
        assert all(
            spill.supply[region].effective > 0
            for row in spill.table.values()
            for region, _ in row.fractions
        )


@given(worlds(), st.data())
def test_from_nonsense_come_the_last_good_shares(world: World, data: st.DataObject) -> None:
    settled = Spill()
    for second in range(3):
        settled = world.step(settled, float(second))
    wrong = World(
        {name: data.draw(NONSENSE) for name in world.demand},
        {name: RegionSupply(data.draw(NONSENSE), 1.0) for name in world.supply},
        {pair: data.draw(NONSENSE) for pair in world.rtt_ms},
    )
    after = wrong.step(settled, 3.0)
    assert after.table == world.step(settled, 3.0).table
    assert len(after.ignored) == len(world.demand) + len(world.supply) + len(world.rtt_ms)


@given(worlds(), st.data())
def test_one_liar_does_not_keep_the_others_from_being_heard(
    world: World, data: st.DataObject
) -> None:
    liar = data.draw(st.sampled_from(sorted(world.demand)))
    before = world.step(Spill(), 0.0)
    doubled = {name: 2 * amount for name, amount in world.demand.items()}
    lied = replace(world, demand={**doubled, liar: nan}).step(before, 1.0)
    honest = replace(world, demand={**doubled, liar: world.demand[liar]}).step(before, 1.0)
    assert lied.table == honest.table


@given(worlds(healthy=True), worlds(healthy=True), st.floats(0.1, 2.0))
def test_a_second_moves_a_row_by_no_more_than_its_limits(
    before: World, after: World, elapsed_s: float
) -> None:
    first = before.step(Spill(), 0.0)
    now = replace(after, supply={**before.supply, **after.supply}, demand={**after.demand})
    second = now.step(first, elapsed_s)
    for origin in first.table.keys() & second.table.keys():
        old, new = first.table[origin], second.table[origin]
        if any(not now.supply[region].effective for region, _ in old.fractions):
            continue  # a dead region is given away at once
        home = now.supply.get(origin)
        if home and now.demand[origin] <= SMALL * home.effective:
            continue  # what is small goes home at once
        names = {name for row in (old, new) for name, _ in row.fractions}
        moved = sum(abs(new.share(n) - old.share(n)) for n in names) + abs(new.shed - old.shed)
        assert moved / 2 <= AWAY_PER_S * elapsed_s + 1e-6
        from_others = (new.share(origin) - old.share(origin)) - max(0.0, old.shed - new.shed)
        assert from_others <= BACK_PER_S * elapsed_s + 1e-6


@given(worlds(healthy=True), st.lists(st.floats(1.0, 1.0 + HYSTERESIS), min_size=20, max_size=20))
def test_demand_that_trembles_does_not_make_a_home_share_swing(
    world: World, factors: list[float]
) -> None:
    total, room = sum(world.demand.values()), sum(s.effective for s in world.supply.values())
    if (1.0 + 3 * HYSTERESIS) * total > FILL * room:
        return
    spill = Spill()
    ways: dict[str, list[bool]] = {origin: [] for origin in world.demand}
    for second, factor in enumerate(factors):
        trembling = replace(world, demand={o: d * factor for o, d in world.demand.items()})
        before, spill = spill, trembling.step(spill, float(second))
        for origin, row in spill.table.items():
            if origin in before.table:
                change = row.share(origin) - before.table[origin].share(origin)
                if abs(change) > 1e-6:
                    ways[origin].append(change > 0)
    for origin, way in ways.items():
        assert way == sorted(way, reverse=True), origin  # home gains never follow losses


@given(worlds(), st.lists(st.tuples(st.floats(0.7, 1.3), st.floats(0.7, 1.3)), max_size=20))
@settings(max_examples=50)
def test_two_replicas_that_saw_different_reports_do_not_fight(
    world: World, seen: list[tuple[float, float]]
) -> None:
    leader = follower = world.step(Spill(), 0.0)
    for second, (one, other) in enumerate(seen, start=1):
        heard = leader.table
        leader = replace(world, demand={o: d * one for o, d in world.demand.items()}).step(
            leader, float(second)
        )
        follower = replace(world, demand={o: d * other for o, d in world.demand.items()}).step(
            adopt(follower, heard), float(second)
        )
        for origin, row in leader.table.items():
            mine = follower.table[origin]
            names = {name for each in (row, mine) for name, _ in each.fractions}
            apart = sum(abs(row.share(n) - mine.share(n)) for n in names)
            apart += abs(row.shed - mine.shed)
            assert apart / 2 <= 2 * AWAY_PER_S + 1e-6  # each at most one step from what was heard


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=5), st.integers(0, 4), st.floats(0, 1))
def test_a_share_that_grows_takes_sessions_and_moves_no_other(
    weights: list[float], grown: int, by: float
) -> None:
    shares = dict(zip(NAMES, weights, strict=False))
    grown_name = NAMES[grown % len(weights)]
    before = row_of(shares, 0.0)
    after = row_of({**shares, grown_name: shares[grown_name] + by}, 0.0)
    for number in range(100):
        session = number.to_bytes(4, "little")
        old, new = draw(before, session), draw(after, session)
        assert new in (old, grown_name)
