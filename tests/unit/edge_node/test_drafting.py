"""Drafting on the loop: one timer, nothing after the end, nothing where nobody listens."""

import asyncio
from dataclasses import dataclass, field

import doubles

from firstlight.edge_node.draft import Drafter
from firstlight.edge_node.drafting import Drafting, DraftingConfig, drafters_of
from firstlight.shared.engine.oracle import OracleConfig
from firstlight.shared.estimate import RttEstimate
from firstlight.shared.stream import TokenStream
from firstlight.shared.types import Hint, Request


@dataclass
class Link:
    """Takes hints."""

    rtt: RttEstimate = field(default_factory=lambda: RttEstimate(10.0))
    hints: list[Hint] = field(default_factory=list)

    def hint(self, hint: Hint) -> None:
        self.hints.append(hint)


REQUEST = doubles.request(prompt=(1, 2, 3), max_tokens=500)
CONFIG = DraftingConfig(ngram=True, oracle=OracleConfig(acceptance=1.0, token_ms=1.0))


class Bench:
    """Drafting for one request, which counts how often its drafters are made."""

    def __init__(self, config: DraftingConfig = CONFIG) -> None:
        make = drafters_of(config, answer_ids=lambda: range(100))
        self.made = 0

        def counted(request: Request, stream: TokenStream) -> list[Drafter]:
            self.made += 1
            return make(request, stream)

        self.stream, self.link = TokenStream(REQUEST.prompt), Link()
        self.drafting = Drafting(counted, REQUEST, self.stream)

    def opened(self) -> None:
        self.drafting.opened(self.link)  # type: ignore[arg-type]

    async def told(self, ids: int) -> list[int]:
        async with asyncio.timeout(5):
            while len(self.said()) < ids:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        return self.said()

    def said(self) -> list[int]:
        return [token for hint in self.link.hints for token in hint.ids]


async def test_ids_are_offered_while_nobody_says_anything_up_to_a_lead() -> None:
    bench = Bench()
    bench.opened()
    await bench.told(10 + 16)
    await asyncio.sleep(0.02)
    assert len(bench.said()) == 10 + 16, "what is drafted in a round trip, and a step's worth"
    assert [hint.source for hint in bench.link.hints] == ["edge-oracle"] * len(bench.link.hints)
    bench.drafting.stop()


async def test_commits_make_room_for_more() -> None:
    bench = Bench()
    bench.opened()
    said = await bench.told(26)
    bench.stream.append(said[:5])
    bench.drafting.committed()
    bench.drafting.committed()
    await bench.told(31)
    assert bench.made == 1
    bench.drafting.stop()


async def test_before_the_loop_has_done_what_it_has_to_nothing_is_read_or_drafted() -> None:
    bench = Bench()
    bench.opened()
    assert bench.made == 0
    bench.drafting.stop()
    await asyncio.sleep(0.01)
    assert bench.made == 0
    assert bench.link.hints == []


async def test_nothing_is_drafted_once_it_was_stopped_until_another_core_is_there() -> None:
    bench = Bench()
    bench.opened()
    await bench.told(3)
    bench.drafting.stop()
    before = len(bench.said())
    bench.stream.append(bench.said()[:2])
    bench.drafting.committed()
    await asyncio.sleep(0.02)
    assert len(bench.said()) == before
    bench.link = Link()
    bench.opened()
    await bench.told(3)
    assert bench.link.hints[0].start == bench.stream.position
    bench.drafting.stop()


async def test_without_an_oracle_a_text_without_repetitions_gets_no_hint() -> None:
    bench = Bench(DraftingConfig())
    bench.opened()
    await asyncio.sleep(0.01)
    assert bench.made == 1
    assert bench.link.hints == []
