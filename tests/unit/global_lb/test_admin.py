"""What a load balancer answers its operator."""

from collections.abc import AsyncIterator

import httpx
import pytest

from firstlight.global_lb.api import create_admin
from firstlight.global_lb.drains import Drains
from firstlight.global_lb.membership import Membership

DRAIN = '{"node": "core-eu", "drain": false}'


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    app = create_admin("lb", Membership(), Drains(None), now=lambda: 0.0)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://lb") as client:
        yield client


async def test_what_is_asked_as_json_is_done(http: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json"}
    answer = await http.post("/v1/drain", content=DRAIN, headers=headers)
    assert (answer.status_code, answer.json()["kept"]) == (200, "memory")


async def test_json_that_is_called_a_form_is_refused_by_its_type(http: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/x-www-form-urlencoded"}  # as curl -d calls it
    answer = await http.post("/v1/drain", content=DRAIN, headers=headers)
    said = "content-type 'application/x-www-form-urlencoded', expected 'application/json'"
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, said)


async def test_json_without_a_type_is_refused_by_it(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/drain", content=DRAIN)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "content-type")
    assert error["message"] == "no content-type, expected 'application/json'"
