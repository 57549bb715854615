"""Which edges are near enough to a place to be weighed: all others cannot be named. Sans-IO.

Ranking works out a great circle for each edge. Which two are named is settled among the nearest
few, and these are found by the cosine of the angle at the earth's centre, which orders places as
the great circle does and takes three products.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from math import cos, radians, sin

from firstlight.global_lb.dns_table import Steered
from firstlight.shared.geography.directory import Edge
from firstlight.shared.routing.geo import Place

WEIGHED = 8
ALIKE = 1e-9
"""Cosines that differ by less may be of equal distances."""

_Point = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Fit:
    """The edges of a table that DNS can name."""

    by_node: Mapping[str, Steered]
    edges: tuple[Edge, ...]
    points: tuple[tuple[_Point, Edge], ...]
    """Of those whose place is known."""


def fit_of(edges: Sequence[Steered]) -> Fit:
    """What is worked out once for a table."""
    known = tuple(one.edge for one in edges)
    points = tuple((_point(edge.place), edge) for edge in known if edge.place is not None)
    return Fit({one.edge.info.node: one for one in edges}, known, points)


def worth_ranking(fit: Fit, place: Place | None) -> Sequence[Edge]:
    """Edges among which are the two that a client at `place` is to be led to, by distance alone.

    The nearest few and whoever is as far as the last of them; all, where these fail together.
    """
    if place is None or len(fit.points) <= WEIGHED:
        return fit.edges
    x, y, z = _point(place)
    cosines = [a * x + b * y + c * z for (a, b, c), _ in fit.points]
    least = nlargest(WEIGHED, cosines)[-1] - ALIKE
    near = [edge for cosine, (_, edge) in zip(cosines, fit.points, strict=True) if cosine >= least]
    return fit.edges if len({edge.domain for edge in near}) == 1 else near


def _point(place: Place) -> _Point:
    """On a globe of radius 1."""
    latitude, longitude = radians(place.latitude), radians(place.longitude)
    return cos(latitude) * cos(longitude), cos(latitude) * sin(longitude), sin(latitude)
