"""Is a text the same alone and in company, computed and from the cache? Asked of a live server.

Prompts are asked together, greedy and with a seed, then one by one; the second time their beginning
is cached as well. One longer prompt is asked alone, new and again.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from firstlight.infra.bench.engine.client import Answer, Server
from firstlight.infra.bench.engine.scenarios import STREAM_IN, STREAM_OUT, Prompt
from firstlight.shared.errors import FirstlightError

COUNT, AGAIN_IN = 16, 512
Texts = Mapping[str, str | None]
"""What was answered to each question; None where it failed."""


def differing(first: Texts, second: Texts) -> list[str]:
    """Questions whose second text is not the first, or that have none."""
    names = dict.fromkeys([*first, *second])
    return [n for n in names if first.get(n) is None or first.get(n) != second.get(n)]


async def texts_that_differ(server: Server, prompt: Prompt) -> list[str] | None:
    """Names of the questions whose text changed; None of a server that takes no seed."""
    if not server.takes_seed:
        return None
    found = []
    sampled: list[dict[str, Any]] = [{"temperature": 0.8, "seed": i} for i in range(COUNT)]
    for mode, fields in (("greedy", [{"temperature": 0}] * COUNT), ("sampled", sampled)):
        first = COUNT * (mode == "sampled")
        prompts = [prompt(STREAM_IN, first + index) for index in range(COUNT)]
        together = await server.ask_all(prompts, STREAM_OUT, fields)
        alone = [
            await server.attempt(text, STREAM_OUT, **extra)
            for text, extra in zip(prompts, fields, strict=True)
        ]
        again = prompt(AGAIN_IN, 2 * COUNT + first)
        cold, cached = [await server.attempt(again, STREAM_OUT, **fields[0]) for _ in range(2)]
        found += differing(_texts(mode, [*together, cold]), _texts(mode, [*alone, cached]))
    return found


def _texts(mode: str, told: Sequence[Answer | FirstlightError]) -> Texts:
    return {
        f"{mode} {index}": one.text if isinstance(one, Answer) else None
        for index, one in enumerate(told)
    }
