"""What a local mesh says of itself: its nodes' documents gathered, and made into one row a node.

The load balancer tells who lives, how loaded and how far apart; what only a node knows (its prefix
cache, its tokens, its tiers) comes from its own listener. Whoever does not answer within a second
is shown as silent, and keeps nobody else's row from being shown.
"""

import asyncio
import json
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx
from prometheus_client.parser import text_string_to_metric_families

from firstlight.infra.running import RunningMesh
from firstlight.shared.clock import monotonic_s
from firstlight.shared.types import Role

ANSWER_S = 1.0
DOCUMENT_BYTES_MAX = 4 << 20

Metrics = Mapping[str, float]
"""Sum of each metric over its labels, by the name of the sample."""
Visit = Callable[[str, str], bytes | None]
"""Gets what a node says at a URL that is not reached from here; None: no answer. May block."""
_TOKENS = "vllm:generation_tokens_total"
_HITS, _QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
_TTFT = "vllm:time_to_first_token_seconds"


@dataclass(frozen=True, slots=True)
class Documents:
    """What the nodes said at one time; None: no answer."""

    at_s: float
    mesh: RunningMesh
    leases: Mapping[str, Mapping[str, Any]] | None
    """Of the load balancer, by node."""
    metrics: Mapping[str, Metrics | None] = field(default_factory=dict)
    statuses: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict)
    """Of cores only."""


@dataclass(frozen=True, slots=True)
class Row:
    """One node; what is not known of it is None."""

    node: str
    role: str
    region: str
    state: str
    """ready, draining, silent (no answer), gone (the load balancer has not heard of it), ended."""
    age_s: float | None = None
    """Since the load balancer last heard of it."""
    running: int | None = None
    """Of an edge, its streams."""
    queued: int | None = None
    kv_used_share: float | None = None
    tokens_per_s: float | None = None
    prefix_hit_rate: float | None = None
    """Share of prompt tokens that were found in the prefix cache, since the core began."""
    ttft_ms: float | None = None
    """Of an edge, the mean since it began."""
    rtt_ms: tuple[tuple[str, float], ...] = ()
    tiers: tuple[tuple[str, int, int], ...] = ()
    """Where KV is kept: name, blocks held, room for blocks."""


def rows(
    now: Documents, before: Documents | None = None, ended: Iterable[str] = ()
) -> tuple[Row, ...]:
    """The load balancer, then every node that is expected or has joined, by name.

    `before` is an earlier look, for what is counted by the second; `ended` are nodes whose process
    is known to have ended.
    """
    mesh, leases, gone = now.mesh, now.leases or {}, set(ended)
    known = {edge.node: (str(Role.EDGE), edge.region) for edge in mesh.edges}
    known |= {core.node: (str(Role.CORE), core.region) for core in mesh.cores}
    for node, lease in leases.items():
        known.setdefault(node, (str(lease.get("role", "")), str(lease.get("region", ""))))
    known |= dict.fromkeys(gone - known.keys() - {"lb"}, ("", ""))
    lb_state = "ended" if "lb" in gone else "silent" if now.leases is None else "ready"
    found = [Row("lb", Role.LB, "", lb_state)]
    for node, (role, region) in sorted(known.items()):
        state = "ended" if node in gone else _state(node, now)
        found.append(_row(node, role, region, state, now, before))
    return tuple(found)


def _state(node: str, now: Documents) -> str:
    if node in now.metrics and now.metrics[node] is None:
        return "silent"
    if now.leases is None:  # what it says itself is all there is
        return "ready" if node in now.metrics else "silent"
    if node not in now.leases:
        return "gone"
    return "draining" if _load(now.leases[node]).get("draining") else "ready"


def _load(lease: Mapping[str, Any]) -> Mapping[str, Any]:
    load = lease.get("load")
    return load if isinstance(load, Mapping) else {}


def _row(
    node: str, role: str, region: str, state: str, now: Documents, before: Documents | None
) -> Row:
    lease = (now.leases or {}).get(node, {})
    load, metrics = _load(lease), now.metrics.get(node) or {}
    core = role == Role.CORE
    rtt_ms = lease.get("rtt_ms")
    return Row(
        node=node,
        role=role,
        region=region,
        state=state,
        age_s=lease.get("age_s"),
        running=load.get("running"),
        queued=load.get("queued") if core else None,
        kv_used_share=load.get("kv_used_share") if core else None,
        tokens_per_s=_rate(node, now, before) if core else None,
        prefix_hit_rate=_ratio(metrics.get(_HITS), metrics.get(_QUERIES)) if core else None,
        ttft_ms=_mean_ms(metrics) if role == Role.EDGE else None,
        rtt_ms=tuple(sorted(rtt_ms.items())) if isinstance(rtt_ms, Mapping) else (),
        tiers=_tiers(now.statuses.get(node) or {}),
    )


def _rate(node: str, now: Documents, before: Documents | None) -> float | None:
    """Tokens a second since the earlier look; None without one, or if the core began anew."""
    if before is None or now.at_s <= before.at_s:
        return None
    old, new = ((look.metrics.get(node) or {}).get(_TOKENS) for look in (before, now))
    if old is None or new is None or new < old:
        return None
    return round((new - old) / (now.at_s - before.at_s), 1)


def _ratio(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else round(part / whole, 4)


def _mean_ms(metrics: Metrics) -> float | None:
    mean_s = _ratio(metrics.get(f"{_TTFT}_sum"), metrics.get(f"{_TTFT}_count"))
    return None if mean_s is None else mean_s * 1000


def _tiers(status: Mapping[str, Any]) -> tuple[tuple[str, int, int], ...]:
    """The pool, then other tiers, if the core tells of any in the same words."""
    tiers = status.get("tiers")
    named = {"pool": status.get("blocks"), **(tiers if isinstance(tiers, Mapping) else {})}
    found = []
    for name, counts in named.items():
        if not isinstance(counts, Mapping) or not isinstance(counts.get("total"), int):
            continue
        held = [counts.get(key) for key in ("used", "cached")]
        found.append((str(name), sum(n for n in held if isinstance(n, int)), counts["total"]))
    return tuple(found)


def parse_metrics(text: str) -> Metrics:
    """Samples of Prometheus' text format; raises `ValueError` for anything else."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


class Gatherer:
    """Asks all nodes at once, over connections that stay; use it in an `async with` block."""

    def __init__(self, ca_file: str, visit: Visit | None = None) -> None:
        """`visit` asks the cores' own listeners; without it they are on this machine's loopback."""
        self._visit = visit
        verify = ssl.create_default_context(cafile=ca_file)
        self._client = httpx.AsyncClient(verify=verify, timeout=ANSWER_S, trust_env=False)

    async def __aenter__(self) -> Self:
        """The gatherer itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def gather(self, mesh: RunningMesh) -> Documents:
        """What the nodes say now; takes little more than a second at most, and raises nothing."""
        listeners = {edge.node: edge.url for edge in mesh.edges}
        listeners |= {core.node: f"http://{core.admin}" for core in mesh.cores if core.admin}
        cores = [core.node for core in mesh.cores if core.admin]
        leases, metrics, statuses = await asyncio.gather(
            self._leases(mesh.lb),
            asyncio.gather(*(self._metrics(node, url) for node, url in listeners.items())),
            asyncio.gather(*(self._status(core, listeners[core]) for core in cores)),
        )
        return Documents(
            monotonic_s(),
            mesh,
            leases,
            dict(zip(listeners, metrics, strict=True)),
            dict(zip(cores, statuses, strict=True)),
        )

    async def _leases(self, lb: str) -> dict[str, Mapping[str, Any]] | None:
        document = await self._json(f"{lb}/v1/mesh")
        try:
            return None if document is None else {str(one["node"]): one for one in document["data"]}
        except (KeyError, TypeError):
            return None

    async def _metrics(self, node: str, url: str) -> Metrics | None:
        edge = url.startswith("https://")
        url = f"{url}/metrics"
        body = await (self._get(url) if edge else self._ask_core(node, url))
        try:
            return None if body is None else parse_metrics(body.decode())
        except ValueError:
            return None

    async def _status(self, core: str, url: str) -> Mapping[str, Any] | None:
        return _parsed(await self._ask_core(core, f"{url}/admin/status"))

    async def _json(self, url: str) -> Mapping[str, Any] | None:
        return _parsed(await self._get(url))

    async def _ask_core(self, core: str, url: str) -> bytes | None:
        if self._visit is None:
            return await self._get(url)
        return await asyncio.to_thread(self._visit, core, url)

    async def _get(self, url: str) -> bytes | None:
        body = b""
        try:
            async with asyncio.timeout(ANSWER_S), self._client.stream("GET", url) as answer:
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > DOCUMENT_BYTES_MAX:
                        return None
        except (httpx.HTTPError, OSError, TimeoutError):
            return None
        return body if answer.status_code == 200 else None


def _parsed(body: bytes | None) -> Mapping[str, Any] | None:
    try:
        value = None if body is None else json.loads(body)
    except ValueError:
        return None
    return value if isinstance(value, Mapping) else None
