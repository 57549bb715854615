"""An answer that is there before its request's body was read arrives, whatever still comes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from edge_tls import TlsFiles
from http_bed import MIB

from firstlight.edge_node.http.fronts import Fronts
from firstlight.edge_node.http.limits import HttpLimits

ASKED = 20
STATUS = ["--silent", "--show-error", "--output", "/dev/null", "--write-out", "%{http_code}"]


async def refuses(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] in ("http", "lifespan")
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
@pytest.mark.parametrize("body_bytes", [100, MIB - 1])
async def test_an_early_answer_arrives(
    version: str, body_bytes: int, tls: TlsFiles, tmp_path: Path
) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"x" * body_bytes)
    fronts = Fronts(refuses, "127.0.0.1", 0, tls.cert, tls.key, HttpLimits())
    await fronts.start()
    url = f"https://localhost:{fronts.port}/v1/chat/completions"
    command = ["curl", version, *STATUS, "--cacert", str(tls.ca), "--data-binary", f"@{body}", url]
    told = []
    try:
        for _ in range(ASKED):
            curl = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
            told.append(await curl.communicate())
    finally:
        await fronts.stop()
    assert told == [(b"401", b"")] * ASKED
