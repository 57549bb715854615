"""Runs a race: the shell around `race`, which says who begins when."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from firstlight.infra.client.answer import NotConnectedError
from firstlight.infra.client.race import Lane, Race
from firstlight.infra.client.response import Client
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import PeerError

Handshake = Callable[[Lane], Awaitable[Client]]
Failed = Callable[[Lane, str], None]


@dataclass(frozen=True, slots=True)
class Won:
    """Who was first."""

    lane: Lane
    client: Client
    quic_tried_s: float | None
    """For how long a handshake over UDP had heard nothing by then."""


async def run_race(
    lanes: Sequence[Lane], handshake: Handshake, *, limit_s: float, failed: Failed
) -> Won:
    """The first handshake that is complete; all others are broken off.

    `failed` hears of each that came to nothing. Raises `NotConnectedError` if nobody wins in
    `limit_s`.
    """
    race, running = Race(lanes, monotonic_s()), dict[asyncio.Task[Client], Lane]()
    won: Won | None = None
    try:
        async with asyncio.timeout(limit_s):
            while True:
                for lane in race.start(monotonic_s()):
                    running[asyncio.ensure_future(handshake(lane))] = lane
                if race.lost:
                    raise NotConnectedError(f"no edge can be reached: {race.failures}")
                done, _ = await asyncio.wait(
                    running,
                    timeout=race.wait_s(monotonic_s()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in done:
                    try:
                        client = task.result()
                    except PeerError as error:
                        lane = running.pop(task)
                        race.failed(lane, error.message, monotonic_s())
                        failed(lane, error.message)
                    else:
                        lane = running.pop(task)
                        won = Won(lane, client, race.quic_tried_s(monotonic_s(), lane))
                        return won
    except TimeoutError:
        for lane in running.values():
            failed(lane, "no answer")
        urls = ", ".join(dict.fromkeys(lane.edge.url for lane in running.values()))
        raise NotConnectedError(f"no edge answered within {limit_s:g} s: {urls}") from None
    finally:
        await _break_off(list(running), won)


async def _break_off(running: Sequence["asyncio.Task[Client]"], won: Won | None) -> None:
    """Whoever else is connected already is closed; the others close themselves, even if this is
    left: then nobody waits for the winner any more, and it is closed as well."""
    connected = [task for task in running if task.done() and not _failed(task)]
    for task in running:
        task.add_done_callback(_failed)  # what a loser says in the end, nobody needs to hear
        task.cancel()
    try:
        if running:
            await asyncio.wait(running)
    except BaseException:
        if won is not None:
            await won.client.abort()
        raise
    finally:
        for task in connected:  # in the same moment as the winner
            await task.result().aclose()


def _failed(task: "asyncio.Task[Client]") -> bool:
    return task.cancelled() or task.exception() is not None
