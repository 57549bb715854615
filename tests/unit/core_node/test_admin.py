"""The operator's listener: what it answers, and that it answers nobody else."""

import asyncio
import json
import os

import pytest
from doubles import VOCAB, config, engine, request

from firstlight.core_node.admin import Admin
from firstlight.core_node.admission import Offer
from firstlight.core_node.backends.native import NativeBackend
from firstlight.core_node.drafting import DraftingSection
from firstlight.core_node.meter import Meter
from firstlight.shared.blocks import BlockCounts
from firstlight.shared.errors import ConfigError
from firstlight.shared.types import Load

DISK = BlockCounts(free=5, used=1, cached=4, total=10)


def build(draining: bool = False) -> Admin:
    made, _ = engine()
    backend = NativeBackend(
        made,
        Offer(("m",), "t", VOCAB, 256),
        hint_ids_max=config().hint_ids_max,
        drafting=DraftingSection(ngram=False),
    )
    backend.open(request("a"), 1, (), 99)
    load = Load(running=3, queued=1, draining=draining)
    return Admin(backend, Meter("m"), lambda: load, lambda: DISK, node="core-eu")


def test_health_follows_the_drain() -> None:
    assert build().reply("GET", "/readyz").status == 200
    assert build(draining=True).reply("GET", "/readyz").status == 503
    assert build(draining=True).reply("GET", "/livez").status == 200


def test_the_status_tells_the_blocks() -> None:
    status = json.loads(build().reply("GET", "/admin/status").body)
    assert status["blocks"] == {"free": 32, "used": 0, "cached": 0, "total": 32}
    assert status["tiers"] == {
        "host": {"free": 0, "used": 0, "cached": 0, "total": 0},
        "disk": {"free": 5, "used": 1, "cached": 4, "total": 10},
    }
    assert status["load"]["running"] == 3


def test_the_metrics_are_those_of_now() -> None:
    metrics = build().reply("GET", "/metrics").body
    assert b'vllm:num_requests_running{engine="0",model_name="m"} 3.0' in metrics


def test_the_steps_are_a_trace_of_this_core() -> None:
    reply = build().reply("GET", "/steps.json")
    assert reply.content_type == "application/json"
    process, thread = json.loads(reply.body)["traceEvents"]
    assert (process["args"]["name"], process["pid"]) == ("core-eu", os.getpid())
    assert thread["args"]["name"] == "engine"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/admin/flush-cache", 405),
        ("POST", "/metrics", 405),
        ("POST", "/admin/flush-cache", 202),
    ],
)
def test_only_what_is_there_is_answered(method: str, path: str, status: int) -> None:
    assert build().reply(method, path).status == status


@pytest.mark.parametrize("address", ["0.0.0.0:0", "10.0.0.1:80", "localhost", "127.0.0.1:x", ":80"])
async def test_it_listens_on_loopback_only(address: str) -> None:
    with pytest.raises(ConfigError, match="expected a loopback address"):
        await build().start(address)


async def test_a_port_in_use_is_named() -> None:
    admin = build()
    port = await admin.start("127.0.0.1:0")
    with pytest.raises(ConfigError, match=str(port)):
        await build().start(f"127.0.0.1:{port}")
    await admin.stop()


async def ask(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await writer.wait_closed()
    return answer


async def test_requests_come_over_the_socket() -> None:
    admin = build()
    port = await admin.start("127.0.0.1:0")
    answer = await ask(port, b"GET /livez?x=1 HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nlive\n")
    steps = await ask(port, b"GET /steps.json HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b"traceEvents" in steps
    await admin.stop()


@pytest.mark.parametrize(
    "data", [b"", b"\r\n\r\n", b"GET / SMTP/1\r\n\r\n", b"x" * 100_000, b"\xff\xfe\r\n\r\n"]
)
async def test_nonsense_is_refused_and_the_next_request_served(data: bytes) -> None:
    admin = build()
    port = await admin.start("127.0.0.1:0")
    try:
        answer = await ask(port, data)
    except ConnectionError:
        answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert b"200 OK" in await ask(port, b"GET /livez HTTP/1.0\r\n\r\n")
    await admin.stop()
