"""curl and niquests, clients not of our making, are served over HTTP/3."""

import asyncio

import curl_cffi
import niquests
from curl_cffi import CurlHttpVersion
from http_bed import Edge


async def test_curl_streams_events_over_http3(edge: Edge) -> None:
    def ask() -> tuple[int, list[bytes]]:
        with curl_cffi.Session(
            http_version=CurlHttpVersion.V3ONLY, verify=str(edge.tls.ca), trust_env=False
        ) as session:
            response = session.get(edge.url + "/sse?events=5", stream=True)
            lines = [line for line in response.iter_lines() if line]
            response.close()
            sized = session.post(edge.url + "/size", data=b"x" * 400_000)
            assert sized.content == b"400000"
            return response.http_version, lines

    version, lines = await asyncio.to_thread(ask)
    assert version == CurlHttpVersion.V3
    assert lines[0] == 'data: {"i": 0, "text": "ä"}'.encode()
    assert lines[-1] == b"data: [DONE]"
    assert len(lines) == 6
    assert edge.app.scopes[0]["http_version"] == "3"


async def test_curl_that_closes_its_stream_cancels_the_application(edge: Edge) -> None:
    def ask() -> None:
        with curl_cffi.Session(
            http_version=CurlHttpVersion.V3ONLY, verify=str(edge.tls.ca), trust_env=False
        ) as session:
            response = session.get(edge.url + "/sse?events=500&wait_s=0.02", stream=True)
            next(response.iter_lines())
            response.close()

    await asyncio.to_thread(ask)
    async with asyncio.timeout(2.0):
        await edge.app.gone.wait()


async def test_niquests_follows_alt_svc_from_tcp_to_http3(edge: Edge) -> None:
    def ask() -> list[int]:
        with niquests.Session() as session:
            session.verify = str(edge.tls.ca)
            session.trust_env = False
            versions = []
            for _ in range(3):
                response = session.get(edge.url + "/hello")
                assert response.status_code == 200
                versions.append(response.http_version)
            return versions

    versions = await asyncio.to_thread(ask)
    assert versions[0] == 20
    assert versions[-1] == 30


async def test_niquests_streams_events_over_http3(edge: Edge) -> None:
    def ask() -> tuple[int, list[bytes]]:
        with niquests.Session(disable_http1=True, disable_http2=True) as session:
            session.verify = str(edge.tls.ca)
            session.trust_env = False
            response = session.get(edge.url + "/sse?events=5", stream=True)
            return response.http_version, [line for line in response.iter_lines() if line]

    version, lines = await asyncio.to_thread(ask)
    assert version == 30
    assert len(lines) == 6
