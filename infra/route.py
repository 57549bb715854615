"""`firstlight route`: where an edge would send a request now, and why. Asked of a load balancer."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from firstlight.infra.client.client import open_client
from firstlight.infra.reply import api_error
from firstlight.infra.running import known_ca, read_running, server_url
from firstlight.shared.config import state_dir
from firstlight.shared.errors import ConfigError, FirstlightError, PeerError

ASK_TIMEOUT_S = 10.0
ROUTE_BYTES_MAX = 1 << 20
WIDTH_MIN = 100
PARTS = ("rtt", "queue", "prefill", "step", "penalty")


def run_route(
    edge: str,
    *,
    prompt_tokens: int,
    model: str,
    url: str | None,
    ca_file: Path | None,
    as_json: bool,
) -> int:
    """The command. Raises what the load balancer said, or why it said nothing."""
    if url is None:
        mesh = read_running(state_dir())
        url, ca_file = server_url(mesh.lb), ca_file or Path(mesh.ca_file)
    else:
        url = server_url(url)
        ca_file = ca_file or known_ca(url)
    asked = {"edge": edge, "prompt_tokens": prompt_tokens, "model": model}
    route = asyncio.run(_ask(url, f"/v1/route?{urlencode(asked)}", ca_file))
    if as_json:
        print(json.dumps(route, ensure_ascii=False))
        return 0
    try:
        shown = show(route)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise PeerError(f"the route cannot be shown, see --json: {error!r}") from error
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = max(WIDTH_MIN, console.width)
    console.print(shown)
    return 0


def show(route: Mapping[str, Any]) -> RenderableType:
    """Why, by which shares, and what each core would take, the best first."""
    lines = [f"{route['edge']}: {route['reason'] or 'no reason was given'}"]
    if route.get("spill"):
        shares = ", ".join(f"{region} {share:.0%}" for region, share in route["spill"])
        lines.append(f"shares: {shares}; drawn: {route['drawn'] or 'none, its share is shed'}")
    parts: list[RenderableType] = [Text(_clean(line)) for line in lines]
    if not route["candidates"]:
        return Group(*parts)
    table = Table(box=None, pad_edge=False)
    table.add_column("core", no_wrap=True)
    table.add_column("region", no_wrap=True)
    for name in ("ttft ms", *PARTS, "cached"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why")
    for candidate in route["candidates"]:
        cost = candidate["cost"]
        figures = [candidate["ttft_ms"], *(cost[f"{part}_ms"] for part in PARTS)]
        way = "" if cost["way"] == "recompute" else f" ({cost['way']})"
        table.add_row(
            _clean(candidate["core"]),
            _clean(candidate["region"]),
            *(f"{ms:,.1f}" for ms in figures),
            f"{candidate['prefix_tokens']:,}",
            _clean(candidate["reason"] + way),
        )
    return Group(*parts, Text(""), table)


async def _ask(url: str, path: str, ca_file: Path | None) -> dict[str, Any]:
    try:
        async with (
            asyncio.timeout(ASK_TIMEOUT_S),
            open_client(url, "1", ca_file=ca_file) as client,
            client.stream("GET", path, {"accept": "application/json"}) as response,
        ):
            body = b""
            async for chunk in response.chunks():
                body += chunk
                if len(body) > ROUTE_BYTES_MAX:
                    raise PeerError(f"{url}: a route of more than {ROUTE_BYTES_MAX} bytes")
    except TimeoutError:
        raise PeerError(f"{url}: no answer within {ASK_TIMEOUT_S:g} s") from None
    if response.status != 200:
        error: FirstlightError = api_error(response.status, body)
        raise error
    try:
        route = json.loads(body)
    except (ValueError, RecursionError):
        route = None
    if not isinstance(route, dict) or "candidates" not in route:
        raise PeerError(f"what came is no route: {body[:80]!r}")
    return route


def _clean(text: object) -> str:
    """No control characters from elsewhere reach the terminal."""
    return "".join(char if char.isprintable() else "�" for char in str(text))


def check_edge(edge: str) -> str:
    """The name, if it can be one. Raises `ConfigError`."""
    if not edge.strip() or not edge.isprintable():
        raise ConfigError("the edge has no name that can be asked for")
    return edge.strip()
