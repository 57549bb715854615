"""An HTTP/3 request becomes an ASGI scope or a refusal, and an answer is held to its own word."""

import json

import pytest

from firstlight.edge_node.http.asgi import (
    Refusal,
    RequestHead,
    Response,
    build_scope,
    check_request,
    clean_fields,
    error_answer,
)

GOOD = [
    (b":method", b"POST"),
    (b":scheme", b"https"),
    (b":authority", b"localhost:8443"),
    (b":path", b"/v1/chat%20x?a=1&b"),
]


def without(name: bytes) -> list[tuple[bytes, bytes]]:
    return [field for field in GOOD if field[0] != name]


def replaced(name: bytes, value: bytes) -> list[tuple[bytes, bytes]]:
    return [(key, value if key == name else old) for key, old in GOOD]


REFUSED = {
    "no method": (without(b":method"), 400),
    "no scheme": (without(b":scheme"), 400),
    "no authority": (without(b":authority"), 400),
    "no path": (without(b":path"), 400),
    "no fields": ([], 400),
    "method twice": ([*GOOD, (b":method", b"GET")], 400),
    "scheme twice": ([*GOOD, (b":scheme", b"https")], 400),
    "path twice": ([*GOOD, (b":path", b"/")], 400),
    "authority twice": ([*GOOD, (b":authority", b"localhost:8443")], 400),
    "scheme http": (replaced(b":scheme", b"http"), 400),
    "scheme in capitals": (replaced(b":scheme", b"HTTPS"), 400),
    "empty path": (replaced(b":path", b""), 400),
    "relative path": (replaced(b":path", b"v1"), 400),
    "absolute URL as path": (replaced(b":path", b"https://other/"), 400),
    "star path for POST": (replaced(b":path", b"*"), 400),
    "space in path": (replaced(b":path", b"/a b"), 400),
    "fragment in path": (replaced(b":path", b"/a#b"), 400),
    "raw UTF-8 in path": (replaced(b":path", "/ä".encode()), 400),
    "empty authority": (replaced(b":authority", b""), 400),
    "userinfo in authority": (replaced(b":authority", b"user@localhost"), 400),
    "path in authority": (replaced(b":authority", b"localhost/x"), 400),
    "two ports": (replaced(b":authority", b"localhost:1:2"), 400),
    "method with a space": (replaced(b":method", b"GET /"), 400),
    "empty method": (replaced(b":method", b""), 400),
    "unknown pseudo-field": ([*GOOD, (b":status", b"200")], 400),
    "extended connect": ([*GOOD, (b":protocol", b"websocket")], 400),
    "pseudo-field after a regular one": ([(b"a", b"b"), *GOOD], 400),
    "upper-case name": ([*GOOD, (b"X-Thing", b"1")], 400),
    "empty name": ([*GOOD, (b"", b"1")], 400),
    "space in name": ([*GOOD, (b"x y", b"1")], 400),
    "colon in name": ([*GOOD, (b"x:y", b"1")], 400),
    "NUL in value": ([*GOOD, (b"x", b"a\0b")], 400),
    "line feed in value": ([*GOOD, (b"x", b"a\nb: c")], 400),
    "carriage return in value": ([*GOOD, (b"x", b"a\rb")], 400),
    "space before value": ([*GOOD, (b"x", b" a")], 400),
    "space after value": ([*GOOD, (b"x", b"a ")], 400),
    "connection": ([*GOOD, (b"connection", b"close")], 400),
    "keep-alive": ([*GOOD, (b"keep-alive", b"1")], 400),
    "proxy-connection": ([*GOOD, (b"proxy-connection", b"x")], 400),
    "transfer-encoding": ([*GOOD, (b"transfer-encoding", b"chunked")], 400),
    "upgrade": ([*GOOD, (b"upgrade", b"h2c")], 400),
    "te other than trailers": ([*GOOD, (b"te", b"gzip")], 400),
    "content-length with a sign": ([*GOOD, (b"content-length", b"+3")], 400),
    "content-length below zero": ([*GOOD, (b"content-length", b"-1")], 400),
    "content-length with an underscore": ([*GOOD, (b"content-length", b"1_0")], 400),
    "content-length in hex": ([*GOOD, (b"content-length", b"0x10")], 400),
    "content-length list": ([*GOOD, (b"content-length", b"3, 3")], 400),
    "empty content-length": ([*GOOD, (b"content-length", b"")], 400),
    "content-length of foreign digits": ([*GOOD, (b"content-length", "٣".encode())], 400),
    "endless content-length": ([*GOOD, (b"content-length", b"9" * 4000)], 400),
    "two content-lengths": ([*GOOD, (b"content-length", b"3"), (b"content-length", b"4")], 400),
    "same content-length twice": (
        [*GOOD, (b"content-length", b"3")] * 1 + [(b"content-length", b"3")],
        400,
    ),
    "host other than authority": ([*GOOD, (b"host", b"evil.example")], 400),
    "host twice": ([*GOOD, (b"host", b"localhost:8443"), (b"host", b"localhost:8443")], 400),
    "body above the limit": ([*GOOD, (b"content-length", b"1001")], 413),
    "CONNECT": ([(b":method", b"CONNECT"), (b":authority", b"localhost:8443")], 501),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_request_that_breaks_a_rule_is_refused(case: str) -> None:
    fields, status = REFUSED[case]
    refusal = check_request(fields, body_bytes_max=1000)
    assert isinstance(refusal, Refusal)
    assert refusal.status == status
    assert refusal.malformed == (status == 400)
    assert refusal.reason


def test_a_good_request_is_let_in() -> None:
    fields = [*GOOD, (b"content-length", b"1000"), (b"te", b"trailers"), (b"x-a", b"1")]
    head = check_request(fields, body_bytes_max=1000)
    assert isinstance(head, RequestHead)
    assert (head.method, head.content_length) == ("POST", 1000)
    assert head.fields[0] == (b"host", b"localhost:8443")


def test_host_equal_to_authority_is_given_once() -> None:
    head = check_request([*GOOD, (b"host", b"LOCALHOST:8443")], 1000)
    assert isinstance(head, RequestHead)
    assert head.fields == [(b"host", b"localhost:8443")]


def test_cookie_crumbs_are_joined() -> None:
    head = check_request([*GOOD, (b"cookie", b"a=1"), (b"x", b"y"), (b"cookie", b"b=2")], 1000)
    assert isinstance(head, RequestHead)
    assert (b"cookie", b"a=1; b=2") in head.fields
    assert len(head.fields) == 3


def test_options_of_the_whole_server_is_let_in() -> None:
    fields = [(k, {b":method": b"OPTIONS", b":path": b"*"}.get(k, v)) for k, v in GOOD]
    assert isinstance(check_request(fields, 1000), RequestHead)


def test_the_scope_has_what_asgi_asks_for() -> None:
    head = check_request(GOOD, 1000)
    assert isinstance(head, RequestHead)
    state = {"a": 1}
    scope = build_scope(head, client=("1.2.3.4", 5), server=("::1", 8443), state=state)
    assert scope["asgi"] == {"version": "3.0", "spec_version": "2.3"}
    assert (scope["type"], scope["http_version"], scope["scheme"]) == ("http", "3", "https")
    assert (scope["path"], scope["raw_path"]) == ("/v1/chat x", b"/v1/chat%20x")
    assert scope["query_string"] == b"a=1&b"
    assert (scope["client"], scope["server"]) == (("1.2.3.4", 5), ("::1", 8443))
    assert scope["state"] == state
    assert scope["state"] is not state


def start(status: int = 200, headers: object = ()) -> dict[str, object]:
    return {"type": "http.response.start", "status": status, "headers": headers}


def body(data: bytes = b"", *, more: bool = False) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}


def test_response_fields_lose_connection_fields_and_capitals() -> None:
    fields = Response("GET").start(
        start(200, [(b"Content-Type", b"text/plain "), (b"Connection", b"close"), (b"TE", b"x")])
    )
    assert fields == [(b":status", b"200"), (b"content-type", b"text/plain")]


@pytest.mark.parametrize(
    "field", [(b":status", b"200"), (b"x y", b"1"), (b"", b"1"), (b"x", b"a\r\nset-cookie: b")]
)
def test_a_response_field_that_splits_the_answer_is_an_error(field: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="response field"):
        clean_fields([field])


@pytest.mark.parametrize("status", [0, 100, 101, 199, 600, "200"])
def test_a_status_that_is_not_final_is_an_error(status: object) -> None:
    with pytest.raises(ValueError, match="status"):
        Response("GET").start({"status": status})


@pytest.mark.parametrize("lengths", [[b"3", b"4"], [b"+3"], [b""]])
def test_a_content_length_that_lies_is_an_error(lengths: list[bytes]) -> None:
    with pytest.raises(ValueError, match="content-length"):
        Response("GET").start(start(200, [(b"content-length", value) for value in lengths]))


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
def test_an_answer_without_body_sends_none(method: str, status: int) -> None:
    response = Response(method)
    fields = response.start(start(status, [(b"content-length", b"3")]))
    assert ((b"content-length", b"3") in fields) == (status != 204)
    assert response.body(body(b"abc")) == (b"", True)


@pytest.mark.parametrize("sent", [b"ab", b"abcd"])
def test_a_body_unlike_its_content_length_is_an_error(sent: bytes) -> None:
    response = Response("GET")
    response.start(start(200, [(b"content-length", b"3")]))
    with pytest.raises(ValueError, match="content-length says 3"):
        response.body(body(sent))
    assert not response.complete


def test_a_body_may_come_in_pieces() -> None:
    response = Response("GET")
    response.start(start(200, [(b"content-length", b"3")]))
    assert response.body(body(b"ab", more=True)) == (b"ab", False)
    assert response.body(body(b"c")) == (b"c", True)
    assert response.complete


def test_messages_out_of_order_are_errors() -> None:
    response = Response("GET")
    with pytest.raises(RuntimeError, match=r"before http\.response\.start"):
        response.body(body())
    response.start(start())
    with pytest.raises(RuntimeError, match="twice"):
        response.start(start())
    response.body(body())
    with pytest.raises(RuntimeError, match="after the last"):
        response.body(body())


def test_our_own_errors_have_the_shape_of_the_api() -> None:
    fields, data = error_answer(503, "too many", retry_after_s=2)
    assert json.loads(data)["error"] == {
        "message": "too many",
        "type": "server_error",
        "param": None,
        "code": None,
    }
    assert (b"retry-after", b"2") in fields
    assert (b"content-length", b"%d" % len(data)) in fields
