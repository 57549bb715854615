"""The ASGI lifespan, run once for all fronts.

Each server would run it for itself, so an application behind two fronts would start twice.
"""

import asyncio
from collections.abc import MutableMapping
from typing import Any

from firstlight.edge_node.http.exchange import AsgiApp
from firstlight.shared.errors import ConfigError


class Lifespan:
    """Startup and shutdown of one application; `state` is what it left for its requests."""

    def __init__(self, app: AsgiApp) -> None:
        self.state: dict[str, Any] = {}
        self._app = app
        self._inbox: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue(maxsize=2)
        self._outbox: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue(maxsize=2)
        self._task: asyncio.Task[None] | None = None

    async def startup(self) -> None:
        """Start the application. Raises `ConfigError` when it says that it cannot start."""
        scope: dict[str, Any] = {
            "type": "lifespan",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "state": self.state,
        }
        self._task = asyncio.ensure_future(
            _as_coroutine(self._app, scope, self._inbox.get, self._outbox.put)
        )
        answer = await self._ask("lifespan.startup")
        if answer is not None and answer["type"] == "lifespan.startup.failed":
            raise ConfigError(f"the application did not start: {answer.get('message', '')}")

    async def shutdown(self) -> None:
        """Stop the application; an application without lifespan has nothing to stop."""
        if self._task is None:
            return
        if not self._task.done():
            await self._ask("lifespan.shutdown")
        await asyncio.wait((self._task,), timeout=1.0)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    async def _ask(self, kind: str) -> MutableMapping[str, Any] | None:
        """The application's answer; None when it ended without one, as one without lifespan
        does."""
        assert self._task is not None
        await self._inbox.put({"type": kind})
        answering = asyncio.ensure_future(self._outbox.get())
        await asyncio.wait((answering, self._task), return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
        answering.cancel()
        return None


async def _as_coroutine(app: AsgiApp, *arguments: Any) -> None:
    await app(*arguments)
