"""The first cut among edges: it changes no answer, and looks at few."""

from random import Random

import pytest

from firstlight.global_lb.dns_near import WEIGHED, Fit, fit_of, worth_ranking
from firstlight.global_lb.dns_table import Steered
from firstlight.shared.geography.directory import Client, Edge, rank
from firstlight.shared.routing.geo import Place
from firstlight.shared.types import NodeInfo, Role


def fit(places: list[Place | None], domains: int = 1000) -> Fit:
    return fit_of(
        [
            Steered(
                Edge(NodeInfo(f"e{number}", Role.EDGE, 1, f"r{number % domains}", "e:443"), place),
                ("192.0.2.1",),
                443,
            )
            for number, place in enumerate(places)
        ]
    )


def anywhere(rng: Random) -> Place:
    return Place(rng.uniform(-90, 90), rng.uniform(-180, 180), exact=rng.random() < 0.8)


def named(edges: object, place: Place) -> list[str]:
    return [one.edge.info.node for one in rank(edges, Client(place=place))[:2]]  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_whoever_is_named_among_all_is_named_among_the_nearest(seed: int) -> None:
    rng = Random(seed)
    spots = [anywhere(rng) for _ in range(20)]
    places = [rng.choice([*spots, anywhere(rng), None]) for _ in range(60)]  # many at one spot
    known = fit(places, domains=rng.choice([2, 5, 1000]))
    for _ in range(50):
        place = rng.choice([*spots, anywhere(rng)])
        assert named(worth_ranking(known, place), place) == named(known.edges, place)


def test_few_of_many_are_ranked() -> None:
    rng = Random(1)
    known = fit([anywhere(rng) for _ in range(500)])
    assert len(worth_ranking(known, anywhere(rng))) == WEIGHED


def test_all_at_one_spot_are_ranked_for_their_names_decide() -> None:
    here = Place(48.9, 2.4)
    known = fit([here] * 30 + [Place(35.7, 139.7)] * 30)
    assert len(worth_ranking(known, here)) == 30


def test_where_the_nearest_fail_together_all_are_ranked() -> None:
    known = fit([Place(48.9, 2.4 + number / 100) for number in range(30)], domains=1)
    assert worth_ranking(known, Place(48.9, 2.4)) == known.edges


def test_a_client_of_no_known_place_has_all_edges_ranked() -> None:
    known = fit([Place(48.9, 2.4 + number / 100) for number in range(30)])
    assert worth_ranking(known, None) == known.edges
