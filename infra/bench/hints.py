"""Do n-gram hints pay? Tokens a second of one stream with them and without, by kind of request.

    python -m firstlight.infra.bench.hints [--threads 2] [--repeats 3] [--penalty 1.1]

The engine is asked in this process, as a core asks it: before each step the drafter beside it
offers what followed the last time that the text looked like this, and the controller decides
whether that gets rows. Temperature 0.7. The two ways take turns, request by
request, and must give the same ids. The prompts are printed.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Literal

from firstlight.infra.bench.machine import heading
from firstlight.shared.clock import monotonic_s
from firstlight.shared.drafting.ngram import NgramDrafter
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.model.load import load_model
from firstlight.shared.engine.plan import EngineConfig
from firstlight.shared.engine.runner import TorchRunner
from firstlight.shared.model_files import default_model_path
from firstlight.shared.text.chat import ChatEncoder, load_chat_template
from firstlight.shared.text.tokenizer import load_tokenizer
from firstlight.shared.types import HintCount, Request, Sampling

_ARTICLES = (
    "The harbour of Lindmoor freezes for eleven weeks in most winters. Until 1931 the "
    "fishing boats were pulled up on the shingle, and the crews mended nets in the long "
    "shed behind the chapel. Then the town bought a second-hand icebreaker, the Marta, "
    "which could keep a lane open as far as the lighthouse. The Marta sank in 1958, but by "
    "then a warm outflow from the paper mill kept the inner harbour free. When the mill "
    "closed in 2004 the ice came back, and the shed was opened again as a school for boat "
    "builders.",
    "Swifts sleep while they fly. A young swift that leaves the nest in July may not land "
    "again for two years; it eats, drinks and rests on the wing, gliding in slow circles at"
    " two thousand metres. Researchers fitted nineteen birds with recorders that weighed "
    "less than a gram. The recorders showed that the birds climbed twice a day, at dusk and"
    " at dawn, and that they glided most in the hour after each climb. Nobody is sure why "
    "they climb at dawn, when there is nothing to see from up there but weather.",
)
_DRAFT = (
    "Dear Mr. Oduya, we have recieved your letter of 4 March about the delivery of the nine"
    " oak tables. The carrier has confirmd that all nine tables left our workshop on 27 "
    "February, and that eight of them was delivered to your warehouse on 1 March. The ninth"
    " table is still at the depot in Harwick, because its label was damaged. It will be "
    "deliverd on Thursday before noon. We apologise for the delay, and we will of course "
    "refund the cost of the carriage."
)
_CODE = (
    "def total_price(items, tax):\n    total = 0\n    for item in items:\n"
    "        total = total + item.price * item.count\n    total = total + total * tax\n"
    "    return total\n\ndef average_price(items):\n    total = 0\n    for item in items:\n"
    "        total = total + item.price\n    return total / len(items)\n"
)
SETS: dict[str, tuple[str, ...]] = {
    "summarizing": tuple(
        f"Summarize this text in three sentences:\n\n{text}" for text in _ARTICLES
    ),
    "editing": (
        f"Correct the spelling mistakes and give me the whole letter again:\n\n{_DRAFT}",
        f"Rename the variable total to result and give me the whole code again:\n\n{_CODE}",
    ),
    "questions": ("Why do cats purr?", "What is a lighthouse for, and who looks after it?"),
    "stories": ("Tell me a story about a clockmaker who hears the sea.",),
}


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer: its ids, how long they took after the first, and what became of hints."""

    ids: tuple[int, ...]
    seconds: float
    hints: HintCount

    @property
    def rate(self) -> float:
        """Tokens a second of decoding."""
        return (len(self.ids) - 1) / self.seconds


def answer(runner: TorchRunner, request: Request, speculation: Literal["auto", "off"]) -> Answered:
    """Ask a fresh engine: nothing is cached, and it measured nothing yet but these steps."""
    config = EngineConfig(blocks=256, host_blocks=0, speculation=speculation)
    engine, drafter = Engine(runner, config), NgramDrafter(request.prompt)
    engine.add(request, epoch=1, credit=1 << 20, now=monotonic_s())
    ids: list[int] = []
    hints, first_s = HintCount(), 0.0
    while engine.has_work:
        if speculation == "auto":
            for name, start in engine.next_positions().items():
                if drafted := drafter.propose(config.hint_ids_max):
                    engine.candidate(name, start, drafted, ("core-ngram",) * len(drafted))
        result = engine.step(monotonic_s())
        for outcome in result.outcomes:
            first_s = first_s or monotonic_s()
            ids += outcome.ids
            drafter.append(outcome.ids)
            for _, count in outcome.verified:
                hints += count
    return Answered(tuple(ids), monotonic_s() - first_s, hints)


def requests(prompts: tuple[str, ...], given: argparse.Namespace) -> Iterator[Request]:
    """Each prompt with several seeds; no answer ends early, so that all are as long."""
    path = default_model_path()
    tokenizer = load_tokenizer(path)
    encode = ChatEncoder(load_chat_template(path), tokenizer)
    for place, prompt in enumerate(prompts):
        ids = tuple(encode([{"role": "user", "content": prompt}]))
        for repeat in range(given.repeats):
            yield Request(
                id=f"{place}-{repeat}",
                model="bench",
                tokenizer_hash=tokenizer.hash,
                salt=bytes(16),
                prompt=ids,
                sampling=Sampling(temperature=0.7, repetition_penalty=given.penalty),
                seed=100 * place + repeat,
                choice=0,
                max_tokens=given.tokens,
                eos_ids=frozenset(),
            )


def measure(
    runner: TorchRunner, prompts: tuple[str, ...], given: argparse.Namespace
) -> dict[str, float]:
    """Median rates of a set, the two ways taking turns."""
    with_hints, without, hints = [], [], HintCount()
    for request in requests(prompts, given):
        off, auto = answer(runner, request, "off"), answer(runner, request, "auto")
        if off.ids != auto.ids:
            raise AssertionError(f"{request.id}: hints changed the text")
        with_hints.append(auto.rate)
        without.append(off.rate)
        hints += auto.hints
    ratios = [auto / off for auto, off in zip(with_hints, without, strict=True)]
    return {
        "off_tokens_per_s": round(median(without), 1),
        "auto_tokens_per_s": round(median(with_hints), 1),
        "ratio": round(median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "verified": hints.verified,
        "accepted": hints.accepted,
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, prog="hints")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--penalty", type=float, default=1.1, help="for repetition; 1: none")
    given = parser.parse_args()
    print(heading(), flush=True)
    model = load_model(default_model_path(), threads=given.threads)
    runner = TorchRunner(model, model.storage(256))
    found = {}
    for name, prompts in SETS.items():
        for prompt in prompts:
            print(f"  {name}: {prompt!r}")
        found[name] = measure(runner, prompts, given)
        print(f"  {name}: {found[name]}", flush=True)
    print(json.dumps({"kernels": model.kernels, **found}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
