"""The directory at a load balancer over HTTP."""

from pathlib import Path
from random import Random

import httpx
import pytest
from desk_bed import LONDONER, SIGNER, desk
from fastapi import FastAPI

from firstlight.global_lb.api import create_app
from firstlight.global_lb.balance import Balance
from firstlight.global_lb.membership import Membership
from firstlight.global_lb.scale import ScaleConfig, Scaler
from firstlight.shared.geography.desk import Desk
from firstlight.shared.geography.signing import EDGES, HEADER, STEERING, is_signed
from firstlight.shared.routing.work import capacity


def app_of(at: Desk) -> FastAPI:
    balance, scaler = Balance("lb", 0.0, capacity), Scaler(ScaleConfig(), capacity)
    return create_app(
        "lb",
        Membership(),
        balance,
        scaler,
        at,
        ready=lambda: True,
        now=lambda: 0.0,
        rng=Random(1),
    )


@pytest.fixture
def http(tmp_path: Path) -> httpx.AsyncClient:
    app = app_of(desk(tmp_path))
    transport = httpx.ASGITransport(app, client=(LONDONER, 1234))
    return httpx.AsyncClient(transport=transport, base_url="http://lb")


async def test_the_list_is_the_same_as_at_an_edge(http: httpx.AsyncClient) -> None:
    response = await http.get("/v1/edges", params={"rtt": "par:1"})
    assert is_signed(response.headers[HEADER], EDGES, response.content, SIGNER.public)
    assert [one["node"] for one in response.json()["data"]] == ["par", "lon", "tok"]


async def test_errors_have_the_apis_shape(http: httpx.AsyncClient) -> None:
    response = await http.get("/v1/edges", params={"ecs": "x"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "ecs")
    assert (await http.post("/v1/rtt", content=b" " * 9000)).status_code == 413
    assert (await http.post("/v1/rtt", content=b"{}")).status_code == 400
    assert (await http.get("/v1/steering")).status_code == 401


async def test_what_clients_measured_is_taken_and_keys_are_told(http: httpx.AsyncClient) -> None:
    told = await http.post("/v1/rtt", json={"edges": {"lon": 7, "moon": 7}})
    assert (told.status_code, told.json()) == (202, {"taken": 1, "refused": ["moon"]})
    assert (await http.get("/v1/keys")).json()["data"][0]["id"] == SIGNER.public[0].id


async def test_dns_is_told_with_the_token(http: httpx.AsyncClient) -> None:
    response = await http.get("/v1/steering", headers={"authorization": f"Bearer {SIGNER.token}"})
    assert is_signed(response.headers[HEADER], STEERING, response.content, SIGNER.public)


async def test_readiness_says_what_is_wrong_with_the_databases(
    http: httpx.AsyncClient, tmp_path: Path
) -> None:
    assert (await http.get("/readyz")).json() == {"status": "ok", "geography": None}
    at = desk(tmp_path)
    (tmp_path / "places.mmdb").write_bytes(b"broken")
    at.geoip.refresh()
    app = app_of(at)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://lb") as broken:
        response = await broken.get("/readyz")
    assert response.status_code == 200  # a node without geography still serves
    assert "corrupt" in response.json()["geography"]
