"""An answer source that follows a script: real detokenizer and real endings, no mesh."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from starlette.applications import Starlette

from firstlight.edge_node.answer import Ask, ChoiceStats, Event, Progress, TokenText, TtftParts
from firstlight.edge_node.journal import Journal
from firstlight.edge_node.middleware import AccessCounts
from firstlight.edge_node.openai.routes import ApiLimits, ModelEntry, create_app
from firstlight.edge_node.resume import Seals
from firstlight.edge_node.stream_log import StreamsConfig
from firstlight.edge_node.tenants import Tenants
from firstlight.edge_node.timeline import Timelines
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import FirstlightError
from firstlight.shared.geography.desk import Desk
from firstlight.shared.stream import ending
from firstlight.shared.text.detokenizer import Detokenizer
from firstlight.shared.types import FinishReason, HintCount, TokenLogprobs

EOS = 256
Step = bytes | Callable[[tuple[int, ...]], bytes] | float | FirstlightError | type[EOFError]
"""Ids of one commit (or what makes them of a choice's prompt), seconds to wait, an error to raise,
or EOFError: no ending comes."""

SEALS = Seals([b"k" * 32])
MODEL = ModelEntry("tiny/bytes", context_max=200, created=1_700_000_000)


class ByteTokenizer:
    """An id a byte; 256 is the control token `<|end|>`."""

    vocab = 257

    def encode(self, text: str, *, special: bool) -> list[int]:
        if special and "<|end|>" in text:
            head, tail = text.split("<|end|>", 1)
            return [*head.encode(), EOS, *self.encode(tail, special=True)]
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def encode_chat(self, messages: Sequence[dict[str, object]]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            ids += self.encode(f"{message['role']}: {message['content']}", special=False)
            ids.append(EOS)
        return ids


class ScriptAnswer:
    """Choices that all follow the script: a step of it for all of them each time it is asked."""

    def __init__(self, ask: Ask, script: Sequence[Step]) -> None:
        self.ask, self.script = ask, deque([*script, bytes([])])
        count = len(ask.prompts) * ask.n
        picked = ask.picked or tuple(range(count))
        self.streams = tuple(f"stream-{i}" for i in picked)
        self.generated = [0] * count
        self.ids: list[list[int]] = [[] for _ in range(count)]
        self.finish: dict[int, FinishReason] = {}
        self.again: list[Event] = []
        self.pulled = 0
        self.closed = 0
        bytes_of = ByteTokenizer().token_bytes
        self.choices = {i: Detokenizer(bytes_of, ask.stop) for i in picked}
        self.skip = [len(ids) for ids in ask.committed] or [0] * count
        if ask.committed:
            self.begin_with(dict(zip(picked, (ask.committed[i] for i in picked), strict=True)))

    def begin_with(self, committed: Mapping[int, tuple[int, ...]]) -> None:
        """Ids that are known already, and of those what the client lacks."""
        events = [
            self.commit(index, self.choices[index], list(ids))
            for index, ids in committed.items()
            if ids
        ]
        for event in events:
            if event.finish:
                del self.choices[event.index]
        self.rewind({i: (self.ask.has or self.skip)[i] for i in committed})

    def rewind(self, has: Mapping[int, int]) -> None:
        self.again = []
        for index, count in has.items():
            detokenizer = Detokenizer(ByteTokenizer().token_bytes, self.ask.stop)
            text = "".join(detokenizer.push(token).text for token in self.ids[index])
            finish = self.finish.get(index)
            if finish and not detokenizer._ended:
                text += detokenizer.finish().text
            had = len(ByteTokenizer().decode(self.ids[index][:count]))
            event = Event(
                index, text[had:], tuple(self.ids[index][count:]), detokenizer.offset, (), finish
            )
            if event.ids or event.text or finish:
                self.again.append(event)

    def progress(self, index: int, start: int = 0) -> Progress:
        return Progress(tuple(self.ids[index][start:]), self.finish.get(index), "abc123")

    async def take(self) -> list[Event]:
        if self.again:
            again, self.again = self.again, []
            return again
        while self.script and self.choices:
            step = self.script[0]
            if isinstance(step, float):
                woken_s = monotonic_s() + step
                try:
                    await asyncio.sleep(step)
                finally:  # cancelled, it loses nothing: the rest is slept next time
                    self.script[0] = max(0.0, woken_s - monotonic_s())
                self.script.popleft()
                continue
            self.script.popleft()
            if isinstance(step, FirstlightError):
                raise step
            if step is EOFError:
                return []
            events = self.commit_all(step if callable(step) else lambda _, ids=step: ids)
            if events:
                return events
        return []

    def commit_all(self, ids_of: Callable[[tuple[int, ...]], bytes]) -> list[Event]:
        events = []
        for index, detokenizer in self.choices.items():
            ids = list(ids_of(self.ask.prompts[index // self.ask.n])) or [EOS]
            known = min(self.skip[index], len(ids))
            self.skip[index] -= known
            if ids[known:]:
                events.append(self.commit(index, detokenizer, ids[known:]))
        self.pulled += 1
        for event in events:
            if event.finish:
                del self.choices[event.index]
        return events

    def commit(self, index: int, detokenizer: Detokenizer, ids: list[int]) -> Event:
        before = offset = detokenizer.offset
        text, finish, taken = "", None, []
        for token in ids:
            taken.append(token)
            self.generated[index] += 1
            piece = detokenizer.push(token)
            text, offset = text + piece.text, piece.offset
            finish = ending(
                token,
                generated=self.generated[index],
                max_tokens=self.ask.max_tokens or 1000,
                eos_ids=frozenset() if self.ask.ignore_eos else frozenset({EOS}),
                stopped=piece.stopped,
            )
            if finish:
                if not piece.stopped:
                    rest = detokenizer.finish()
                    text, offset = text + rest.text, rest.offset
                break
        self.ids[index] += taken
        if finish:
            self.finish[index] = finish
        asked = self.ask.sampling.logprobs is not None
        tokens = tuple(self.told(index, before, offset)) if asked else ()
        return Event(index, text, tuple(taken), offset, tokens, finish)

    def told(self, index: int, before: int, offset: int) -> list[TokenText]:
        count = self.ask.sampling.logprobs or 0
        tokens = []
        for token in self.ids[index][before:offset]:
            if token == EOS:
                continue
            top = tuple(((token + i) % 256, -0.5 - i) for i in range(count))
            tokens.append(TokenText(token, bytes([token]), TokenLogprobs(-0.5, top)))
        return tokens

    def stats(self, index: int) -> ChoiceStats:
        return ChoiceStats(
            core="core-1",
            region="eu",
            numerics_class="abc123",
            cached_tokens=2,
            completion_tokens=self.generated[index],
            hints={"edge-ngram": HintCount(5, 4, 3)},
            ttft_ms=TtftParts(total=12.3456, network=2.0),
            tpot_ms=4.5,
        )

    def close(self) -> None:
        self.closed += 1


@dataclass
class ScriptSource:
    """Opens answers that follow `script`; keeps them for the test to look at."""

    script: Sequence[Step] | Callable[[Ask], Sequence[Step]] = (b"Hel", b"lo", b" world")
    refuse: Callable[[Ask], FirstlightError | None] = lambda _: None
    edge: str = "edge-1"
    region: str = "eu"
    answers: list[ScriptAnswer] = field(default_factory=list)

    def open(self, ask: Ask) -> ScriptAnswer:
        if (error := self.refuse(ask)) is not None:
            raise error
        script = self.script(ask) if callable(self.script) else self.script
        self.answers.append(ScriptAnswer(ask, script))
        return self.answers[-1]


def app_for(
    source: ScriptSource,
    *,
    tenants: Tenants | None = None,
    limits: ApiLimits | None = None,
    not_ready: Callable[[], str | None] = lambda: None,
    counts: AccessCounts | None = None,
    timelines: Timelines | None = None,
    streams: StreamsConfig | None = None,
    journal: Journal | None = None,
    desk: Desk | None = None,
) -> Starlette:
    tokenizer = ByteTokenizer()
    return create_app(
        source,
        tokenizer,
        tokenizer.encode_chat,
        lambda: [MODEL],
        tenants or Tenants.load(None, loopback=True),
        SEALS,
        streams=streams,
        journal=journal,
        desk=desk,
        limits=limits,
        not_ready=not_ready,
        metrics=lambda: b"up 1\n",
        counts=counts,
        entropy=random.Random(7),
        timelines=timelines,
    )
