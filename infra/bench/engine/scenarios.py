"""The loads that are put on a server, by name; each gives the figures of one repeat."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from firstlight.infra.bench.engine import figures
from firstlight.infra.bench.engine.client import Answer, Server
from firstlight.infra.bench.engine.figures import Figures
from firstlight.shared.errors import FirstlightError

SINGLE_OUT, STREAM_IN, STREAM_OUT, PREFIX_IN, PREFIX_OUT, PREFIX_HITS = 128, 200, 64, 2048, 32, 5
OTHERS, OTHERS_IN, OTHERS_OUT, LONG_IN, LONG_OUT, BEFORE_S = 8, 32, 512, 3000, 16, 2.0
"""Of `interference`: streams that decode, and the prompt that comes `BEFORE_S` after all do."""

Prompt = Callable[[int, int], str]
"""(tokens, index) → a prompt that this repeat alone has."""


@dataclass(slots=True)
class Outcome:
    """One repeat: its figures, and requests that were not answered."""

    figures: Figures = field(default_factory=dict)
    failed: int = 0
    why: str = ""
    """The first failure."""

    def keep(self, told: Sequence[Answer | FirstlightError]) -> list[Answer]:
        """The answers; failures are counted."""
        for one in told:
            if isinstance(one, FirstlightError):
                self.failed += 1
                self.why = self.why or one.message
        return [one for one in told if isinstance(one, Answer)]


async def single(tokens: int, server: Server, prompt: Prompt) -> Outcome:
    """One stream alone."""
    outcome = Outcome()
    answers = outcome.keep([await server.attempt(prompt(tokens, 0), SINGLE_OUT)])
    outcome.figures = figures.single(answers[0].timing) if answers else {}
    return outcome


async def streams(count: int, server: Server, prompt: Prompt) -> Outcome:
    """Many, all at once."""
    outcome = Outcome()
    told = await server.ask_all([prompt(STREAM_IN, i) for i in range(count)], STREAM_OUT)
    outcome.figures = figures.streams([answer.timing for answer in outcome.keep(told)])
    return outcome


async def interference(server: Server, prompt: Prompt) -> Outcome:
    """A long prompt arrives while others decode. A stream that ended before it came has failed."""
    outcome = Outcome()
    begun = [asyncio.Event() for _ in range(OTHERS)]
    tasks = [
        asyncio.create_task(server.attempt(prompt(OTHERS_IN, index), OTHERS_OUT, on_text=event.set))
        for index, event in enumerate(begun)
    ]
    try:
        await _all_decode(begun, tasks)
        await asyncio.sleep(BEFORE_S)
        early = sum(task.done() for task in tasks)
        long = outcome.keep([await server.attempt(prompt(LONG_IN, OTHERS), LONG_OUT)])
        others = outcome.keep(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
    if early:
        outcome.failed += early
        outcome.why = outcome.why or f"{early} of {OTHERS} streams had ended before the prompt came"
    if others and long:
        timings = [answer.timing for answer in others]
        outcome.figures = figures.interference(timings, long[0].timing)
    return outcome


async def _all_decode(
    begun: Sequence[asyncio.Event], tasks: Sequence[asyncio.Task[Answer | FirstlightError]]
) -> None:
    """Until each stream has text, or has ended without."""
    for event, task in zip(begun, tasks, strict=True):
        waiting = asyncio.create_task(event.wait())
        await asyncio.wait((waiting, task), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()


async def prefix(server: Server, prompt: Prompt) -> Outcome:
    """The same long prompt, again and again."""
    outcome, text = Outcome(), prompt(PREFIX_IN, 0)
    cold = outcome.keep([await server.attempt(text, PREFIX_OUT)])
    told = [await server.attempt(text, PREFIX_OUT) for _ in range(PREFIX_HITS)]
    hits = [answer.timing for answer in outcome.keep(told)]
    outcome.figures = figures.prefix(cold[0].timing, hits) if cold else {}
    return outcome


SCENARIOS: dict[str, Callable[[Server, Prompt], Awaitable[Outcome]]] = {
    "single_32": partial(single, 32),
    "single_512": partial(single, 512),
    "single_2048": partial(single, 2048),
    "streams_16": partial(streams, 16),
    "streams_64": partial(streams, 64),
    "interference": interference,
    "prefix": prefix,
}
