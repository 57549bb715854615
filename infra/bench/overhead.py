"""What the edge and the link add to the engine's own time to first token, one stream, loopback.

    python -m firstlight.infra.bench.overhead [--requests 40] [--seed 1]

Engine: from the arrival of the request at the backend until its first id leaves it, as the core
reports it (queue + prefill). Client: libcurl, from sending the request on an open connection to the
first bytes of the answer's body, which carry the first text. The difference is everything between:
HTTP and TLS on both sides, the chat template, tokenizing, routing, the link both ways,
detokenizing, and the event back. Every prompt is new, so that no prefix is cached beyond the
template's.
"""

import argparse
import json
import random
from pathlib import Path

from curl_cffi import Curl, CurlError, CurlHttpVersion, CurlOpt

from firstlight.infra.bench.machine import cold_factor, heading, loop_ms, percentile
from firstlight.infra.chat import Question
from firstlight.infra.mesh import start_mesh
from firstlight.infra.reply import Reply
from firstlight.shared.clock import monotonic_s
from firstlight.shared.config import state_dir
from firstlight.shared.errors import PeerError

WARM_UP = 3
VERSIONS = {
    "h3": CurlHttpVersion.V3ONLY,
    "h2": CurlHttpVersion.V2TLS,
    "h1": CurlHttpVersion.V1_1,
}
WORDS = ("river", "stone", "lamp", "north", "paper", "winter", "green", "engine", "salt", "mirror")
TIMEOUT_S = 60


class Client:
    """One connection of libcurl, kept open between requests."""

    def __init__(self, url: str, ca_file: Path, http: CurlHttpVersion) -> None:
        self._curl = Curl()
        self._url, self._ca_file, self._http = url, ca_file, http

    def ask(self, body: bytes) -> tuple[float, Reply]:
        """(time to the first bytes of the body in ms, the reply). Raises `PeerError`."""
        pieces: list[tuple[float, bytes]] = []
        self._curl.reset()  # options only: the connection stays
        for option, value in (
            (CurlOpt.URL, f"{self._url}/v1/chat/completions".encode()),
            (CurlOpt.HTTP_VERSION, self._http),
            (CurlOpt.CAINFO, str(self._ca_file).encode()),
            (CurlOpt.TIMEOUT, TIMEOUT_S),
            (CurlOpt.HTTPHEADER, [b"content-type: application/json"]),
            (CurlOpt.POSTFIELDS, body),
            (CurlOpt.WRITEFUNCTION, lambda piece: pieces.append((monotonic_s(), piece))),
        ):
            self._curl.setopt(option, value)
        begun_s = monotonic_s()
        try:
            self._curl.perform()
        except CurlError as error:
            raise PeerError(f"{self._url}: {error}") from error
        reply = Reply()
        for event in b"".join(piece for _, piece in pieces).decode().split("\n\n"):
            if event.startswith("data: "):
                reply.feed(event.removeprefix("data: "), begun_s)
        reply.close()
        if b'"content":"' not in pieces[0][1].partition(b"\n\n")[2]:
            raise PeerError("the first bytes of the answer carry no text")
        return (pieces[0][0] - begun_s) * 1e3, reply

    def close(self) -> None:
        """Close the connection."""
        self._curl.close()


def question(rng: random.Random) -> bytes:
    """A body that no request before had."""
    words = " ".join(rng.choice(WORDS) for _ in range(12))
    return Question(f"Use these words: {words}.", seed=rng.randrange(1 << 31), max_tokens=4).body()


def measure(client: Client, requests: int, rng: random.Random) -> dict[str, float]:
    """Medians of one HTTP version, ms."""
    totals, engines = [], []
    for _ in range(WARM_UP + requests):
        total_ms, reply = client.ask(question(rng))
        parts = reply.details["ttft_ms"]
        totals.append(total_ms)
        engines.append(parts["queue"] + parts["prefill"])
    totals, engines = totals[WARM_UP:], engines[WARM_UP:]
    added = [total - engine for total, engine in zip(totals, engines, strict=True)]
    figures = {
        "client_ttft_p50_ms": percentile(totals, 50),
        "engine_ttft_p50_ms": percentile(engines, 50),
        "added_p50_ms": percentile(added, 50),
        "added_p95_ms": percentile(added, 95),
    }
    return {name: round(ms, 2) for name, ms in figures.items()}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, prog="overhead")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(heading(), flush=True)
    rng, figures = random.Random(given.seed), {}
    with start_mesh(state_dir(), print) as mesh:
        for name, http in VERSIONS.items():
            client = Client(mesh.plan.edges[0].url, mesh.ca_file, http)
            try:
                figures[name] = measure(client, given.requests, rng)
            finally:
                client.close()
            print(f"  {name}: {figures[name]}", flush=True)
    speed = {"python_loop_ms": round(loop_ms(), 1), "cold_factor": round(cold_factor(), 1)}
    print(json.dumps({"requests": given.requests, **speed, **figures}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
