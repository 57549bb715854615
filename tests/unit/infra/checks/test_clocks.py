"""Clocks: judged from values, and a skew measured against a server with a wrong `Date`."""

import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from edge_tls import TlsFiles

from firstlight.edge_node.config import EdgeSettings
from firstlight.global_lb.config import LbSettings
from firstlight.infra.checks import clocks
from firstlight.infra.checks.finding import Level
from firstlight.infra.checks.subject import Subject
from firstlight.shared.types import Role

NOW = datetime(2026, 6, 1, tzinfo=UTC)
StartDate = Callable[[timedelta], str]


@pytest.mark.parametrize(
    ("ran_s", "wall_s", "level"),
    [
        (0.05, 0.05, Level.OK),
        (0.0, 0.05, Level.BAD),
        (0.05, 60.0, Level.WARN),
        (0.05, -1.5, Level.WARN),
    ],
)
def test_both_clocks_run_at_the_same_pace(ran_s: float, wall_s: float, level: Level) -> None:
    assert clocks.judge_running(ran_s, wall_s).level is level


@pytest.mark.parametrize(
    ("start", "level"), [(NOW - timedelta(days=9), Level.OK), (NOW + timedelta(1), Level.BAD)]
)
def test_now_is_after_every_certificate_began(start: datetime, level: Level) -> None:
    assert clocks.judge_wall(NOW, [start]).level is level


def test_a_clock_at_its_epoch_is_broken() -> None:
    assert clocks.judge_wall(datetime(1970, 1, 1, tzinfo=UTC), []).level is Level.BAD


@pytest.mark.parametrize(
    ("skew_s", "level"), [(4.9, Level.OK), (-4.9, Level.OK), (5.1, Level.WARN), (-60, Level.WARN)]
)
def test_a_skew_of_more_than_five_seconds_is_warned_of(skew_s: float, level: Level) -> None:
    assert clocks.judge_skew("clock", skew_s).level is level


def test_this_machine_has_both_clocks(tmp_path: Path) -> None:
    subject = Subject(((Role.EDGE, EdgeSettings()),), tmp_path)
    assert [one.name for one in clocks.look_own(subject)] == ["monotonic clock", "wall clock"]


@pytest.fixture
def start_date(tls: TlsFiles) -> Iterator[StartDate]:
    """An HTTPS server whose clock is off by so much; returns its URL."""
    servers: list[HTTPServer] = []

    def start(off: timedelta) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response_only(200)
                self.send_header("Date", format_datetime(datetime.now(UTC) + off, usegmt=True))
                self.send_header("Content-Length", "0")
                self.end_headers()

        server = HTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.cert, tls.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
        return f"https://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("off_s", "level", "said"),
    [(0, Level.OK, "within"), (90, Level.WARN, "ahead"), (-90, Level.WARN, "behind")],
)
def test_another_clock_is_read_from_its_answers(
    off_s: int, level: Level, said: str, start_date: StartDate
) -> None:
    (found,) = clocks.compare(start_date(timedelta(seconds=off_s)))
    assert found.level is level
    assert said in found.seen


def test_a_load_balancer_that_is_silent_has_no_clock_to_compare() -> None:
    (found,) = clocks.compare("https://127.0.0.1:9")
    assert found.level is Level.WARN
    assert found.seen.startswith("not looked at, because")


def test_load_balancers_are_looked_for_at_their_default_port(tmp_path: Path) -> None:
    settings = EdgeSettings(load_balancers=("10.0.0.1:9000", "[fd00::1]:9000", "nonsense"))
    subject = Subject(((Role.EDGE, settings), (Role.LB, LbSettings())), tmp_path)
    assert clocks.balancer_urls(subject) == ["https://10.0.0.1:8480", "https://[fd00::1]:8480"]
