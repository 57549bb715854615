"""Which edge is nearest: by the time that a TCP connection to it takes, measured from here.

The load balancer's directory says which edges there are; the round trip, not the region's name,
says which is near. When no load balancer answers, the edges that the mesh file names are measured
instead.
"""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from firstlight.infra.running import EdgeAddress, RunningMesh
from firstlight.shared.clock import monotonic_s
from firstlight.shared.errors import PeerError

_PROBES = 3
_PROBE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Measured:
    """An edge, and the best connect time of a few."""

    edge: EdgeAddress
    connect_ms: float


async def edges_by_distance(edges: Sequence[EdgeAddress]) -> list[Measured]:
    """Reachable edges, nearest first. Raises `PeerError` if none can be reached."""
    times = await asyncio.gather(*(_connect_ms(edge.url) for edge in edges))
    reachable = [Measured(e, ms) for e, ms in zip(edges, times, strict=True) if ms is not None]
    if not reachable:
        urls = ", ".join(edge.url for edge in edges) or "none known"
        raise PeerError(f"no edge can be reached: {urls}")
    return sorted(reachable, key=lambda measured: measured.connect_ms)


async def nearest_edges(mesh: RunningMesh) -> list[Measured]:
    """The edges of the directory that this mesh's load balancer keeps, nearest first."""
    return await edges_by_distance(await _directory(mesh) or mesh.edges)


async def _directory(mesh: RunningMesh) -> list[EdgeAddress]:
    verify = ssl.create_default_context(cafile=mesh.ca_file)
    try:
        async with httpx.AsyncClient(verify=verify, timeout=2.0, trust_env=False) as client:
            answer = await client.get(f"{mesh.lb}/v1/edges")
            answer.raise_for_status()
            return [
                EdgeAddress(edge["node"], edge["region"], edge["url"])
                for edge in answer.json()["data"]
            ]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return []


async def _connect_ms(url: str) -> float | None:
    parts = urlsplit(url)
    best: float | None = None
    for _ in range(_PROBES):
        begun = monotonic_s()
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port or 443)
        except (OSError, TimeoutError):
            return best
        took_ms = (monotonic_s() - begun) * 1000
        best = took_ms if best is None else min(best, took_ms)
        writer.close()
    return best
