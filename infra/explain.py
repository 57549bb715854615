"""`firstlight explain`: ask the edges what happened to a request, and show it.

Without a URL every edge of the local mesh is asked at once; the one that knows the id answers.
"""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.console import Console

from firstlight.infra.client.client import open_client
from firstlight.infra.nearest import edges_of
from firstlight.infra.reply import api_error
from firstlight.infra.running import known_ca, read_running, server_url
from firstlight.infra.story import show
from firstlight.shared.config import state_dir
from firstlight.shared.errors import FirstlightError, NotFoundError, PeerError

ASK_TIMEOUT_S = 10.0
STORY_BYTES_MAX = 8 << 20
WIDTH_MIN = 100
"""Where no terminal says how wide it is."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One edge to ask."""

    url: str
    ca_file: Path | None


def run_explain(
    id: str, *, url: str | None, ca_file: Path | None, key: str | None, as_json: bool
) -> int:
    """The command. Raises `NotFoundError` if no edge knows the id."""
    story = asyncio.run(_explain(id, url, ca_file, key))
    if as_json:
        print(json.dumps(story, ensure_ascii=False))
        return 0
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = max(WIDTH_MIN, console.width)
    try:
        shown = show(story)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise PeerError(f"the edge's timeline cannot be shown, see --json: {error!r}") from error
    console.print(shown)
    return 0


async def _explain(
    id: str, url: str | None, ca_file: Path | None, key: str | None
) -> dict[str, Any]:
    if url is not None:
        url = server_url(url)
        return await find(id, [Edge(url, ca_file or known_ca(url))], key)
    mesh = read_running(state_dir())
    trusted = ca_file or Path(mesh.ca_file)
    async with edges_of(mesh, ca_file=trusted) as nearest:
        edges = [Edge(ranked.edge.url, trusted) for ranked in await nearest.nearest()]
    return await find(id, edges, key or mesh.key or None)


async def find(id: str, edges: list[Edge], key: str | None) -> dict[str, Any]:
    """The timeline, from whichever edge knows it. Raises `NotFoundError`, or what an edge said."""
    found = await asyncio.gather(*(_ask(id, edge, key) for edge in edges))
    for answer in found:
        if isinstance(answer, dict):
            return answer
    errors = [answer for answer in found if isinstance(answer, FirstlightError)]
    if errors:
        raise errors[0]
    asked = ", ".join(edge.url for edge in edges)
    raise NotFoundError(
        f"no request {id[:80]!r} is known at {asked}: it is of another tenant, too old, or of "
        "another edge"
    )


async def _ask(id: str, edge: Edge, key: str | None) -> dict[str, Any] | FirstlightError | None:
    """What one edge says; None if it does not know the request."""
    headers = {"accept": "application/json"}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    try:
        async with (
            asyncio.timeout(ASK_TIMEOUT_S),
            open_client(edge.url, "1", ca_file=edge.ca_file) as client,
            client.stream("GET", f"/v1/requests/{quote(id, safe='')}", headers) as response,
        ):
            body = b""
            async for chunk in response.chunks():
                body += chunk
                if len(body) > STORY_BYTES_MAX:
                    return PeerError(f"{edge.url}: a timeline of more than {len(body)} bytes")
    except TimeoutError:
        return PeerError(f"{edge.url}: no answer within {ASK_TIMEOUT_S:g} s")
    except FirstlightError as error:
        return error
    if response.status == 404:
        return None
    return _parsed(body) if response.status == 200 else api_error(response.status, body)


def _parsed(body: bytes) -> dict[str, Any] | FirstlightError:
    try:
        story = json.loads(body)
    except (ValueError, RecursionError):
        story = None
    if isinstance(story, dict) and story.get("object") == "firstlight.timeline":
        return story
    return PeerError(f"what came is no timeline: {body[:80]!r}")
