"""The directory at an edge over HTTP, and clients that are sent on to a nearer one."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from desk_bed import LONDONER, SIGNER, STRANGER, desk
from unit.edge_node.openai.script import ScriptSource, app_for
from unit.edge_node.openai.test_routes import CHAT

from firstlight.shared.geography.signing import EDGES, HEADER, is_signed

CHAT_PATH = "/v1/chat/completions"


def client(folder: Path, peer: str = LONDONER) -> httpx.AsyncClient:
    app = app_for(ScriptSource(), desk=desk(folder))
    transport = httpx.ASGITransport(app, client=(peer, 1234))
    return httpx.AsyncClient(transport=transport, base_url="http://tok.test")


async def post(folder: Path, path: str = CHAT_PATH, *, peer: str = LONDONER, **headers: str) -> Any:
    async with client(folder, peer) as http:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await http.post(path, json=CHAT, headers=named)


async def test_anyone_gets_the_signed_list_nearest_first(tmp_path: Path) -> None:
    async with client(tmp_path) as http:
        response = await http.get("/v1/edges", params={"nonce": "n1"})
    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-store"
    assert is_signed(response.headers[HEADER], EDGES, response.content, SIGNER.public)
    assert [one["node"] for one in response.json()["data"]] == ["lon", "par", "tok"]


async def test_errors_have_the_apis_shape(tmp_path: Path) -> None:
    async with client(tmp_path) as http:
        response = await http.get("/v1/edges", params={"count": "many"})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "count"
        assert (await http.get("/v1/steering")).status_code == 401
        long = await http.post("/v1/rtt", content=b" " * 9000)
        assert long.status_code == 413


async def test_what_a_client_measured_is_taken(tmp_path: Path) -> None:
    async with client(tmp_path) as http:
        response = await http.post("/v1/rtt", content=json.dumps({"edges": {"lon": 7}}))
    assert (response.status_code, response.json()) == (202, {"taken": 1, "refused": []})


async def test_keys_and_the_table_for_dns_are_served(tmp_path: Path) -> None:
    async with client(tmp_path) as http:
        keys = (await http.get("/v1/keys")).json()
        assert keys["data"][0]["id"] == SIGNER.public[0].id
        token = {"authorization": f"Bearer {SIGNER.token}"}
        assert len((await http.get("/v1/steering", headers=token)).json()["edges"]) == 3


async def test_a_far_client_is_sent_on_once(tmp_path: Path) -> None:
    response = await post(tmp_path)
    assert response.status_code == 307
    assert response.headers["location"] == (
        "https://lon.test:443/v1/chat/completions?firstlight_redirected=1"
    )
    again = await post(tmp_path, f"{CHAT_PATH}?firstlight_redirected=1")
    assert again.status_code == 200


async def test_a_query_is_kept_on_the_way(tmp_path: Path) -> None:
    response = await post(tmp_path, f"{CHAT_PATH}?a=b%20c")
    assert response.headers["location"].endswith("completions?a=b%20c&firstlight_redirected=1")


@pytest.mark.parametrize("peer", ["203.0.113.9", STRANGER])
async def test_a_near_client_and_one_of_unknown_place_stay(tmp_path: Path, peer: str) -> None:
    assert (await post(tmp_path, peer=peer)).status_code == 200


@pytest.mark.parametrize("header", ["authorization", "cookie"])
async def test_who_would_lose_its_credentials_stays_unless_it_will_bring_them(
    tmp_path: Path, header: str
) -> None:
    assert (await post(tmp_path, **{header: "Bearer x"})).status_code == 200
    brings = {header: "Bearer x", "x_firstlight_follow": "1"}
    assert (await post(tmp_path, **brings)).status_code == 307


async def test_who_chooses_its_edge_itself_stays(tmp_path: Path) -> None:
    assert (await post(tmp_path, x_firstlight_follow="0")).status_code == 200


async def test_a_request_that_may_be_a_repetition_stays(tmp_path: Path) -> None:
    assert (await post(tmp_path, idempotency_key="k")).status_code == 200


async def test_nothing_but_questions_to_a_model_is_sent_on(tmp_path: Path) -> None:
    async with client(tmp_path) as http:
        for path in ("/v1/models", "/v1/edges", "/livez"):
            assert (await http.get(path)).status_code == 200
        assert (await http.get(CHAT_PATH)).status_code == 405


async def test_the_body_is_not_read_before_a_client_is_sent_on(tmp_path: Path) -> None:
    async def body() -> Any:
        raise AssertionError("read")
        yield b""

    async with client(tmp_path) as http:
        response = await http.post(CHAT_PATH, content=body())
    assert response.status_code == 307


async def test_without_a_desk_there_is_no_directory() -> None:
    transport = httpx.ASGITransport(app_for(ScriptSource()))
    async with httpx.AsyncClient(transport=transport, base_url="http://edge") as http:
        assert (await http.get("/v1/edges")).status_code == 404
