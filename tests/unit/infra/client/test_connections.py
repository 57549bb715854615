"""What of a connection can be made before it is asked for has been made by then."""

import pytest

from firstlight.infra.client.connections import Connections
from firstlight.infra.client.response import Client
from firstlight.shared.errors import ConfigError


class Made:
    """A client that was made, and closed once at most."""

    closed = False

    async def aclose(self) -> None:
        assert not self.closed
        self.closed = True


@pytest.fixture
def made() -> list[Made]:
    return []


@pytest.fixture
def connections(made: list[Made]) -> Connections:
    def open_one() -> Client:
        made.append(Made())
        return made[-1]  # type: ignore[return-value]

    return Connections(open_one, "3")


async def test_a_client_of_ones_own_was_ready_before_it_was_asked_for(
    connections: Connections, made: list[Made]
) -> None:
    async with connections.cold() as first:
        assert made == [first]
    assert len(made) == 2
    assert made[0].closed
    async with connections.cold() as second, connections.cold() as third:
        assert second is made[1]
        assert made == [first, second, third]
    assert len(made) == 4, "one is kept ready, however many there were at once"
    await connections.aclose()
    assert all(one.closed for one in made)


async def test_one_that_failed_is_not_used_again(
    connections: Connections, made: list[Made]
) -> None:
    with pytest.raises(ZeroDivisionError):
        async with connections.cold():
            raise ZeroDivisionError
    assert made[0].closed
    async with connections.cold() as second:
        assert second is made[1]
    await connections.aclose()
    assert all(one.closed for one in made)


async def test_what_the_next_one_lacks_is_no_error_of_this_one() -> None:
    lacking: list[ConfigError] = []

    def open_one() -> Client:
        for error in lacking:
            raise error
        return Made()  # type: ignore[return-value]

    connections = Connections(open_one, "3")
    async with connections.cold():
        lacking.append(ConfigError("the CA file is gone"))
    with pytest.raises(ConfigError, match="gone"):
        async with connections.cold():
            pass


async def test_none_is_made_ready_for_those_that_are_closed(
    connections: Connections, made: list[Made]
) -> None:
    async with connections.cold():
        await connections.aclose()
    assert [one.closed for one in made] == [True]
