"""Edges whose names are none, and edges that were closed."""

import pytest

from firstlight.infra.client.answer import ClosedError, NotConnectedError
from firstlight.infra.client.lookup import round_trips_s
from firstlight.infra.client.nearest import NearestEdges


async def test_a_server_that_no_client_can_be_made_of_is_one_that_cannot_be_reached() -> None:
    async with NearestEdges(["https://xn--a.com"], connect_timeout_s=1.0) as edges:
        with pytest.raises(NotConnectedError, match="xn--a"):
            async with edges.connection([]):
                pass


async def test_a_name_that_can_be_none_has_no_round_trip() -> None:
    assert await round_trips_s(["https://a..b"]) == {}


async def test_edges_that_were_closed_connect_to_none_again() -> None:
    edges = NearestEdges(["https://127.0.0.1:1"])
    await edges.aclose()
    with pytest.raises(ClosedError, match="closed"):
        async with edges.connection([]):
            pass
