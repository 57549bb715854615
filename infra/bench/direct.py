"""Asks one core over its link, as an edge does, with no edge between: for benchmarks of a core."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from firstlight.edge_node.upstream.link import CoreLink
from firstlight.edge_node.view import MeshMemory
from firstlight.shared import rpc
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import FirstlightError, from_kind
from firstlight.shared.tls import ensure_ca, issue
from firstlight.shared.types import Commit, Done, Failed, NodeInfo, Request, Role, Sampling

UP_S = 20.0
ANSWER_S = 300.0


@dataclass(frozen=True, slots=True)
class Told:
    """One answer."""

    ids: tuple[int, ...]
    ttft_ms: float
    """From the request leaving here to its first id."""
    cached_tokens: int


class _Answer:
    """Receives what a core says of one request."""

    def __init__(self) -> None:
        self.began_s = monotonic_s()
        self.first_s: float | None = None
        self.ids: list[int] = []
        self.cached_tokens = 0
        self.ended: asyncio.Future[Done] = asyncio.get_running_loop().create_future()

    def committed(self, commit: Commit) -> None:
        """Ids."""
        self.first_s = self.first_s or monotonic_s()
        self.ids += commit.ids
        if commit.cached_tokens is not None:
            self.cached_tokens = commit.cached_tokens

    def failed(self, failed: Failed) -> None:
        """The core gave up."""
        self._end(from_kind(failed.kind, failed.message))

    def done(self, done: Done) -> None:
        """Statistics."""
        if not self.ended.done():
            self.ended.set_result(done)

    def lost(self, core: str, error: FirstlightError) -> None:
        """The link broke."""
        self._end(error)

    def _end(self, error: FirstlightError) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)


class DirectLink:
    """A link to one core. Made by `direct_link`."""

    def __init__(self, link: CoreLink) -> None:
        self._link = link

    @property
    def info(self) -> NodeInfo:
        """What the core says of itself."""
        return self._link.info

    async def ask(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 8,
        seed: int = 1,
        salt: bytes = bytes(16),
    ) -> Told:
        """An answer that no id ends early. Raises `FirstlightError`."""
        request = Request(
            id=secrets.token_hex(16),
            model=self.info.models[0],
            tokenizer_hash=self.info.tokenizer_hash,
            salt=salt,
            prompt=tuple(prompt),
            sampling=Sampling(temperature=0.8),
            seed=seed,
            choice=0,
            max_tokens=max_tokens,
            eos_ids=frozenset(),
        )
        answer = _Answer()
        self._link.open(request, 1, (), answer, budget_s=ANSWER_S)
        try:
            async with asyncio.timeout(ANSWER_S):
                await answer.ended
        finally:
            self._link.cancel(request.id, 1)
            self._link.forget(request.id)
        assert answer.first_s is not None
        return Told(
            ids=tuple(answer.ids),
            ttft_ms=(answer.first_s - answer.began_s) * 1000,
            cached_tokens=answer.cached_tokens,
        )


@asynccontextmanager
async def direct_link(address: str, node: str, state: Path) -> AsyncIterator[DirectLink]:
    """A link to the core `node` at `address`, with a certificate of the development authority."""
    files = issue(
        ensure_ca(state / "tls"), Role.EDGE, "bench", ["127.0.0.1"], state / "tls" / "bench"
    )
    info = NodeInfo(node, Role.CORE, 0, "", address)
    async with rpc.channel(address, files, Role.CORE) as channel:
        link = CoreLink(info, channel, MeshMemory())
        running = asyncio.create_task(link.run())
        try:
            async with asyncio.timeout(UP_S):
                while not link.up:
                    if running.done():
                        raise running.result()
                    await asyncio.sleep(0.02)
            yield DirectLink(link)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
