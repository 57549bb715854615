"""Real round trips between regions of a cloud, for a topology that names places.

Source: "Azure network round-trip latency statistics" in Microsoft's documentation, the data set of
30 July 2026: round trips over Azure's backbone, the 95th percentile of the 30 days before, in ms,
as measured from the place that comes later in the list below to the one that comes earlier (the
way round differs by a few ms at most). They are near the worst that a month sees, not its middle.
Sans-IO.
"""

from itertools import combinations

PLACES = (
    "east-us",
    "west-us-2",
    "brazil-south",
    "north-europe",
    "west-europe",
    "uk-south",
    "south-africa-north",
    "uae-north",
    "central-india",
    "southeast-asia",
    "japan-east",
    "australia-east",
)

_ROUND_TRIPS_MS = (
    *(76, 121, 76, 91, 80, 225, 191, 218, 229, 165, 206),
    *(179, 136, 153, 145, 285, 256, 218, 165, 103, 180),
    *(176, 189, 183, 326, 288, 320, 337, 275, 298),
    *(20, 14, 178, 130, 159, 236, 232, 272),
    *(12, 171, 124, 153, 181, 242, 282),
    *(169, 122, 150, 183, 237, 277),
    *(105, 134, 190, 254, 347),
    *(35, 90, 155, 179),
    *(58, 129, 151),
    *(74, 98),
    105,
)
"""Each place to all later ones, a line a place."""

_BETWEEN = dict(zip(combinations(PLACES, 2), _ROUND_TRIPS_MS, strict=True))


def round_trip_ms(one: str, other: str) -> float | None:
    """The round trip between two places; None within one."""
    if one == other:
        return None
    return float(_BETWEEN.get((one, other), 0) or _BETWEEN[other, one])
