"""What a warm request costs the client: CPU of this process, over our transport and over httpx's.

    python -m firstlight.infra.bench.client_cpu URL CA [--requests 200]

The edge is another process, so that all CPU counted here is the client's. Each request is a POST
that streams `max_tokens: 1`; CPU is that of all threads, from before the first to after the last,
by the number of requests.
"""

import argparse
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import httpx

from firstlight.infra.bench.machine import heading
from firstlight.infra.client.transport import Transport
from firstlight.shared.clock import monotonic_s

WARM_UP = 10
ASKED = {
    "model": "auto",
    "messages": [{"role": "user", "content": "Hi"}],
    "stream": True,
    "seed": 1,
}


def ask(client: httpx.Client, tokens: int) -> float:
    """Seconds until the first bytes of the body."""
    begun_s, first_s = monotonic_s(), None
    with client.stream("POST", "/v1/chat/completions", json=ASKED | {"max_tokens": tokens}) as told:
        told.raise_for_status()
        for _ in told.iter_raw():
            first_s = first_s or monotonic_s()
    return (first_s or monotonic_s()) - begun_s


def measure(client: httpx.Client, requests: int, tokens: int) -> dict[str, float]:
    """CPU and waiting of one request, ms."""
    for _ in range(WARM_UP):
        ask(client, tokens)
    before = getrusage(RUSAGE_SELF)
    waits = sorted(ask(client, tokens) for _ in range(requests))
    after = getrusage(RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "cpu_ms": round(cpu_s / requests * 1e3, 3),
        "first_bytes_p50_ms": round(waits[requests // 2] * 1e3, 2),
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, prog="client_cpu")
    parser.add_argument("url")
    parser.add_argument("ca", type=Path)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=1)
    given = parser.parse_args()
    print(heading(), flush=True)
    tls = ssl.create_default_context(cafile=str(given.ca))
    ways: dict[str, Callable[[], httpx.BaseTransport]] = {
        "firstlight": lambda: Transport(given.url, ca_file=given.ca),
        "httpx h1": lambda: httpx.HTTPTransport(verify=tls),
        "httpx h2": lambda: httpx.HTTPTransport(verify=tls, http1=False, http2=True),
    }
    found = {}
    for name, make in ways.items():
        with httpx.Client(transport=make(), base_url=given.url, timeout=60) as client:
            found[name] = measure(client, given.requests, given.tokens)
        print(f"  {name}: {found[name]}", flush=True)
    print(json.dumps({"requests": given.requests, "tokens": given.tokens, **found}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
