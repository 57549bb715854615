"""Do hints change the text? Random seeded requests on the real model, with hints of all kinds.

Every request is answered once without hints, in batches, and then again with hints that an n-gram
drafter makes, with garbage, with its own answer in which each id is corrupted with probability
0.3, and with pieces of that which come late, doubled and out of order through the core's mailbox.
Some have stop strings, which end them as an edge would: by the text, id by id, and a cancel. All
answers must be the same ids. Prints how many hinted ids were accepted and refused; the last line
is JSON.

    python -m firstlight.infra.bench.invariance --requests 200
"""

import json
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol

from firstlight.core_node.mailbox import Mailbox
from firstlight.infra.bench.machine import heading
from firstlight.shared.clock import monotonic_s
from firstlight.shared.drafting.ngram import NgramDrafter
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.model.load import load_model
from firstlight.shared.engine.plan import EngineConfig
from firstlight.shared.engine.runner import TorchRunner
from firstlight.shared.model_files import default_model_path
from firstlight.shared.stream import TokenStream
from firstlight.shared.text.detokenizer import Detokenizer
from firstlight.shared.text.tokenizer import Tokenizer, load_tokenizer
from firstlight.shared.types import Hint, HintCount, Request, Sampling

_STOPS = ((), (), (), (".",), (" the", ","), ("\n",))
COUNTED_MIN = 10
"""Accepted, and refused, ids that a run must see per request: 2,000 of each in 200 requests."""
_CORRUPT_SHARE = 0.3
_BLOCKS = 512
_SENTENCES = (
    "The lighthouse keeper counted the waves until",
    "def add(a, b):\n    return",
    "One two three four one two three four one two",
    "Dear colleague, thank you for your letter about",
    "The capital of France is",
    "Q: Why is the sky blue?\nA:",
    "A list of fruits: apple, pear, plum, apple, pear,",
    "Once upon a time, in a small village by the sea, there lived",
    "The sum of 17 and 25 is",
    "She opened the door, and then",
)


class Hinter(Protocol):
    """A source of hints about one request."""

    def offer(self, start: int) -> tuple[int, ...]:
        """Ids claimed from the next position on."""
        ...

    def committed(self, ids: tuple[int, ...]) -> None:
        """The truth moved on."""
        ...


@dataclass
class NgramHinter:
    """What the text itself suggests."""

    drafter: NgramDrafter

    def offer(self, start: int) -> tuple[int, ...]:
        """The drafter's best guess."""
        return self.drafter.propose(4)

    def committed(self, ids: tuple[int, ...]) -> None:
        """Index them."""
        self.drafter.append(ids)


@dataclass
class GarbageHinter:
    """Any ids at all."""

    vocab: int
    random: Random

    def offer(self, start: int) -> tuple[int, ...]:
        """One to three random ids."""
        return tuple(self.random.randrange(self.vocab) for _ in range(self.random.randint(1, 3)))

    def committed(self, ids: tuple[int, ...]) -> None:
        """Nothing to learn."""


@dataclass
class ReplayHinter:
    """The right answer, with some ids changed."""

    prompt_tokens: int
    answer: tuple[int, ...]
    vocab: int
    random: Random

    def offer(self, start: int) -> tuple[int, ...]:
        """Up to five ids from `start` on."""
        return self.piece(start, 5)

    def piece(self, start: int, length: int) -> tuple[int, ...]:
        """The answer's ids at `start`, each wrong with probability 0.3."""
        ids = self.answer[start - self.prompt_tokens :][:length]
        return tuple(
            self.random.randrange(self.vocab) if self.random.random() < _CORRUPT_SHARE else token
            for token in ids
        )

    def committed(self, ids: tuple[int, ...]) -> None:
        """It knew."""


@dataclass
class MailboxHinter:
    """The same through the mailbox of a core: late, doubled, out of order."""

    request: Request
    replay: ReplayHinter
    mailbox: Mailbox
    random: Random
    late: list[Hint] = field(default_factory=list)
    sent: list[Hint] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Open the box, and keep the truth's chain to sign hints ahead of the sequence with."""
        self.mailbox.open(self.request.id, self.request.prompt)
        self.truth = TokenStream(self.request.prompt, self.replay.answer)

    def offer(self, start: int) -> tuple[int, ...]:
        """Send a few hints around `start`, hold some back, repeat others; then ask the mailbox."""
        for _ in range(3):
            at = max(self.replay.prompt_tokens, start + self.random.randint(-2, 3))
            chain, ids = self.truth.chain_at(at), self.replay.piece(at, self.random.randint(1, 5))
            if chain is not None and ids:
                self.late.append(Hint(self.request.id, at, chain, ids, "replay"))
        self.random.shuffle(self.late)
        sending, self.late = self.late[1:], self.late[:1]
        doubled = self.random.sample(self.sent, min(2, len(self.sent)))
        for hint in (*sending, *doubled):
            self.mailbox.hint(hint)
        self.sent = [*self.sent, *sending][-8:]
        return self.mailbox.candidate(self.request.id, 5).ids

    def committed(self, ids: tuple[int, ...]) -> None:
        """The mailbox follows."""
        self.mailbox.committed(self.request.id, ids)


@dataclass(frozen=True)
class Asked:
    """A request, and the stop strings that its edge looks for."""

    request: Request
    stop: tuple[str, ...]


@dataclass
class Reader:
    """The edge's end of one request: ids until a stop string is complete."""

    detokenizer: Detokenizer
    ids: list[int] = field(default_factory=list)
    stopped: bool = False

    def read(self, ids: tuple[int, ...]) -> None:
        """Take a commit; ids after the one that completes a stop string are dropped."""
        for token in ids:
            if not self.stopped:
                self.ids.append(token)
                self.stopped = self.detokenizer.push(token).stopped


MakeHinter = Callable[[Request], Hinter]


def requests(count: int, tokenizer: Tokenizer, seed: int) -> list[Asked]:
    """Requests with random sampling: temperature 0 to 1.2, penalties, top-p, top-k, min-p."""
    random = Random(seed)
    return [
        Asked(
            Request(
                id=f"r{index}",
                model="",
                tokenizer_hash=tokenizer.hash,
                salt=b"invariance",
                prompt=tuple(tokenizer.encode(random.choice(_SENTENCES), special=False)),
                sampling=_sampling(random),
                seed=random.getrandbits(64),
                choice=random.randint(0, 3),
                max_tokens=random.randint(16, 32),
                eos_ids=frozenset(tokenizer.eos_ids),
            ),
            random.choice(_STOPS),
        )
        for index in range(count)
    ]


def _sampling(random: Random) -> Sampling:
    return Sampling(
        temperature=random.choice((0.0, 0.3, 0.7, 1.0, 1.2)),
        top_p=random.choice((1.0, 1.0, 0.95, 0.8)),
        top_k=random.choice((0, 0, 20, 50)),
        min_p=random.choice((0.0, 0.0, 0.05)),
        repetition_penalty=random.choice((1.0, 1.0, 1.1, 1.3)),
        presence_penalty=random.choice((0.0, 0.0, 0.5)),
        frequency_penalty=random.choice((0.0, 0.0, 0.3)),
    )


def answer(
    runner: TorchRunner, tokenizer: Tokenizer, asked: list[Asked], make: MakeHinter | None
) -> tuple[dict[str, tuple[int, ...]], HintCount]:
    """Answer all requests in batches; ids by request, and what became of the hinted ids."""
    config = EngineConfig(
        blocks=_BLOCKS,
        context_max=256,
        sequences_max=16,
        waiting_max=len(asked),
        speculation="always" if make else "off",
    )
    engine, count = Engine(runner, config), HintCount()
    readers = {
        one.request.id: Reader(Detokenizer(tokenizer.token_bytes, one.stop)) for one in asked
    }
    hinters = {one.request.id: make(one.request) for one in asked} if make else {}
    for one in asked:
        engine.add(one.request, epoch=1, credit=10_000, now=0.0)
    while engine.has_work:
        for name, start in engine.next_positions().items() if hinters else ():
            if offered := hinters[name].offer(start):
                engine.candidate(name, start, offered, ("bench",) * len(offered))
        result = engine.step(0.0)
        if result.failures:
            raise result.failures[0][2]
        for outcome in result.outcomes:
            reader = readers[outcome.request]
            reader.read(outcome.ids)
            if reader.stopped:
                engine.cancel(outcome.request)
            for _, part in outcome.verified:
                count += part
            if hinters:
                hinters[outcome.request].committed(outcome.ids)
    return {name: tuple(reader.ids) for name, reader in readers.items()}, count


def run(count: int, *, seed: int, threads: int, path: Path) -> dict[str, object]:
    """Run all kinds of hints; returns counts, and the requests whose text differed, by kind."""
    model, tokenizer = load_model(path, threads=threads), load_tokenizer(path)
    runner, vocab = TorchRunner(model, model.storage(_BLOCKS)), model.config.vocab
    asked = requests(count, tokenizer, seed)
    began_s = monotonic_s()
    plain, _ = answer(runner, tokenizer, asked, None)
    print(f"without hints: {sum(map(len, plain.values()))} ids in {monotonic_s() - began_s:.1f} s")
    random, mailbox = Random(seed + 1), Mailbox(vocab)

    def replay(one: Request) -> ReplayHinter:
        return ReplayHinter(len(one.prompt), plain[one.id], vocab, random)

    kinds: dict[str, MakeHinter] = {
        "ngram": lambda one: NgramHinter(NgramDrafter(one.prompt)),
        "garbage": lambda one: GarbageHinter(vocab, random),
        "replay": replay,
        "mailbox": lambda one: MailboxHinter(one, replay(one), mailbox, random),
    }
    total, differing = HintCount(), {}
    for name, make in kinds.items():
        began_s = monotonic_s()
        hinted, counted = answer(runner, tokenizer, asked, make)
        total += counted
        differing[name] = sorted(request for request in plain if hinted[request] != plain[request])
        print(
            f"{name}: {counted.accepted} hinted ids accepted, "
            f"{counted.verified - counted.accepted} refused, {len(differing[name])} texts differ, "
            f"{monotonic_s() - began_s:.1f} s"
        )
    return {
        "requests": count,
        "numerics_class": model.numerics_class,
        "ids": sum(map(len, plain.values())),
        "accepted": total.accepted,
        "refused": total.verified - total.accepted,
        "differing": differing,
    }


def main() -> int:
    """Command line; 0 only if no text differed and enough hinted ids were judged."""
    parser = ArgumentParser(description="Do hints change the text?")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", type=Path, default=None)
    args = parser.parse_args()
    print(heading())
    path = args.model or default_model_path()
    found = run(args.requests, seed=args.seed, threads=args.threads, path=path)
    differing = found["differing"]
    assert isinstance(differing, dict)
    enough = min(int(str(found["accepted"])), int(str(found["refused"]))) >= (
        COUNTED_MIN * args.requests
    )
    found["ok"] = enough and not any(differing.values())
    print(json.dumps(found))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
