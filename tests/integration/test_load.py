"""`firstlight bench load` over sockets, against a server whose delays and failures are known."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from edge_tls import TlsFiles
from load_bed import FIRST_S, TOKEN_S, LoadServer, load_server

from firstlight.infra import cli
from firstlight.infra.bench.load import command
from firstlight.infra.bench.load.prompts import TracePrompts, Vocabulary
from firstlight.infra.bench.load.records import Record
from firstlight.infra.bench.load.run import Load, Run, Stop, run_load
from firstlight.infra.bench.load.schedule import steady
from firstlight.infra.bench.load.target import Where, reach
from firstlight.infra.client.response import HttpVersion
from firstlight.shared.model_files import default_model_path
from firstlight.shared.text.tokenizer import load_tokenizer

VERSIONS: list[HttpVersion] = ["1", "2", "3"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(load_tokenizer(default_model_path()))


@pytest.fixture
def words_at_hand(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "Vocabulary", lambda tokenizer: vocabulary)
    monkeypatch.setattr(command, "load_tokenizer", lambda path: None)


async def ran(
    server: LoadServer,
    tls: TlsFiles,
    words: Vocabulary,
    http: HttpVersion,
    count: int,
    *,
    rate: float = 20.0,
    cold: bool = False,
    timeout_s: float = 20.0,
    outstanding_max: int = 100,
    **where: Any,
) -> Run:
    arrivals = steady(rate, count / rate, (20, 5))
    load = Load(
        arrivals, TracePrompts(words, arrivals, 1), [cold] * count, timeout_s, outstanding_max
    )
    target = await reach(Where(server.url, http, ca=tls.ca, **where))
    async with target.connections:
        await target.learn()
        return await run_load(target, load, Stop(), lambda run: None)


def ttft_s(record: Record) -> float:
    return record.timing.ttft_ms / 1e3


@pytest.mark.parametrize("http", VERSIONS)
async def test_times_are_those_of_the_server(
    http: HttpVersion, tls: TlsFiles, vocabulary: Vocabulary
) -> None:
    with load_server(tls) as server:
        run = await ran(server, tls, vocabulary, http, 6)
    assert [record.miss for record in run.records] == [None] * 6
    for record in run.records:
        assert ttft_s(record) >= FIRST_S
        assert (record.tokens_out, record.tokens_in_told, len(record.events_s)) == (5, 20, 5)
        assert (record.ended_s or 0) - (record.sent_s or 0) >= FIRST_S + 4 * TOKEN_S
    assert min(map(ttft_s, run.records)) < FIRST_S + 1.0


@pytest.mark.parametrize("http", VERSIONS)
async def test_warm_requests_share_connections_and_cold_ones_have_their_own(
    http: HttpVersion, tls: TlsFiles, vocabulary: Vocabulary
) -> None:
    with load_server(tls) as server:
        warm = await ran(server, tls, vocabulary, http, 4, rate=2.0)
        seen = len(set(server.peers))
        server.peers.clear()
        cold = await ran(server, tls, vocabulary, http, 4, rate=2.0, cold=True)
        peers = set(server.peers)
    assert seen == 1
    assert [record.cold for record in warm.records] == [False] * 4
    assert len(peers) == 4
    assert [record.cold for record in cold.records] == [True] * 4
    for record in cold.records:
        assert record.connected_s is not None
        assert record.sent_s is not None
        assert record.sent_s < record.connected_s < record.events_s[0] - FIRST_S


@pytest.mark.parametrize("http", VERSIONS)
async def test_every_way_to_fail_is_a_miss_with_its_reason_and_nothing_is_sent_twice(
    http: HttpVersion, tls: TlsFiles, vocabulary: Vocabulary
) -> None:
    ways = ["ok", "429", "503", "500", "cut", "hang", "error", "nonsense", "empty", "ok"]
    with load_server(tls, behaviors=list(ways)) as server:
        run = await ran(server, tls, vocabulary, http, len(ways), rate=4.0, timeout_s=2.0)
        asked = len(server.bodies)
    told = {way: record.miss for way, record in zip(ways, run.records, strict=True)}
    assert told == {
        **{"ok": None, "429": "refused_429", "503": "refused_503", "500": "http_500"},
        **{"cut": "cut", "hang": "timeout", "error": "error", "nonsense": "error"},
        "empty": "no_text",
    }
    assert asked == len(ways)
    said = next(record.said for record in run.records if record.miss == "error")
    assert "engine broke" in said
    assert "\x1b" not in said


async def test_requests_are_sent_at_their_time_whatever_is_out(
    tls: TlsFiles, vocabulary: Vocabulary
) -> None:
    with load_server(tls, behaviors=["hang"] * 8) as server:
        run = await ran(server, tls, vocabulary, "1", 8, rate=8.0, timeout_s=4.0)
        arrived = [at - server.arrived_s[0] for at in server.arrived_s]
    assert [record.miss for record in run.records] == ["timeout"] * 8
    assert run.outstanding_most == 8
    assert arrived[-1] < 3.0  # all came before the first one had its time out


async def test_beyond_the_bound_a_request_is_a_miss_that_was_not_sent(
    tls: TlsFiles, vocabulary: Vocabulary
) -> None:
    with load_server(tls, behaviors=["hang"] * 6) as server:
        run = await ran(
            server, tls, vocabulary, "2", 6, rate=20.0, timeout_s=2.0, outstanding_max=2
        )
        asked = len(server.bodies)
    assert [r.miss for r in run.records] == ["timeout"] * 2 + ["not_sent"] * 4
    assert asked == 2
    assert {record.sent_s for record in run.records[2:]} == {None}


async def test_more_streams_than_a_connection_takes_get_another_one(
    tls: TlsFiles, vocabulary: Vocabulary
) -> None:
    with load_server(tls) as server:
        run = await ran(server, tls, vocabulary, "2", 80, rate=4000.0)
        peers = set(server.peers)
    assert [record.miss for record in run.records] == [None] * 80
    assert len(peers) == 2


async def test_a_chat_is_asked_by_its_messages_and_with_its_key(
    tls: TlsFiles, vocabulary: Vocabulary
) -> None:
    with load_server(tls) as server:
        run = await ran(server, tls, vocabulary, "1", 2, api="chat", key="secret", model="other")
    assert [record.tokens_out for record in run.records] == [5, 5]
    assert {body["model"] for body in server.bodies} == {"other"}
    assert all(len(body["messages"][0]["content"].split()) == 20 for body in server.bodies)
    assert server.keys == {"Bearer secret"}


def loaded(*arguments: str) -> int:
    return cli.run(["bench", "load", *arguments])


@pytest.mark.usefixtures("words_at_hand")
def test_the_command_prints_a_table_and_writes_an_object_and_a_page(
    tls: TlsFiles, tmp_path: Path, capsys: Capture
) -> None:
    found, shown = tmp_path / "found.json", tmp_path / "found.html"
    with load_server(tls, behaviors=["429"], cached=16) as server:
        code = loaded(
            *("--url", server.url, "--ca", str(tls.ca), "--rate", "5", "--arrivals", "fixed"),
            *("--duration-s", "1", "--tokens-in", "30", "--tokens-out", "3", "--http", "2"),
            *("--connections", "both", "--key", "hidden", "--sla-ttft-ms", "10"),
            *("--json", str(found), "--html", str(shown)),
        )
    assert code == 0
    out, err = capsys.readouterr()
    assert "4 answered of 5 due, 1 missed" in out
    assert err == ""  # no bar where there is no terminal
    told = json.loads(found.read_text())
    (side,) = told["sides"]
    assert side["figures"]["misses"] == {"refused_429": 1}
    assert side["figures"]["goodput"]["met"] == 0  # no answer came within 10 ms
    assert side["figures"]["prompts_miscounted"] == 0
    assert side["figures"]["tokens_cached"] == 64
    assert told["schedule"]["connections"] == "both"
    assert "hidden" not in out + found.read_text() + shown.read_text()
    assert shown.read_text().count("<svg") == 4


@pytest.mark.usefixtures("words_at_hand")
def test_with_a_dash_standard_output_is_one_object(tls: TlsFiles, capsys: Capture) -> None:
    with load_server(tls) as server:
        assert (
            loaded(
                *("--url", server.url, "--ca", str(tls.ca), "--rate", "4", "--duration-s", "1"),
                *("--tokens-out", "2", "--json", "-"),
            )
            == 0
        )
    out, err = capsys.readouterr()
    assert json.loads(out)["schema"] == "firstlight.load/1"
    assert "TTFT ms" in err


@pytest.mark.usefixtures("words_at_hand")
def test_a_trace_is_replayed_with_what_it_shares(
    tls: TlsFiles, tmp_path: Path, capsys: Capture
) -> None:
    rows = [(0, 1100, [0, 1, 2]), (500, 1100, [0, 1, 3]), (1000, 600, [4, 5])]
    trace = tmp_path / "t.jsonl"
    trace.write_text(
        "\n".join(
            json.dumps({"timestamp": at, "input_length": n, "output_length": 9, "hash_ids": ids})
            for at, n, ids in rows
        )
    )
    with load_server(tls, context=1032) as server:
        assert (
            loaded(
                *("--url", server.url, "--ca", str(tls.ca), "--trace", str(trace)),
                *("--speed", "2", "--max-tokens-out", "4"),
            )
            == 0
        )
    prompts = [body["prompt"].split() for body in server.bodies]
    assert [len(prompt) for prompt in prompts] == [1028, 1028, 600]
    assert prompts[0][:1024] == prompts[1][:1024]
    assert prompts[0][1024] != prompts[1][1024]
    assert prompts[0][0] != prompts[2][0]
    assert {body["max_tokens"] for body in server.bodies} == {4}
    assert server.arrived_s[-1] - server.arrived_s[0] == pytest.approx(0.5, abs=0.4)
    assert "trace" not in capsys.readouterr().err


@pytest.mark.usefixtures("words_at_hand")
def test_two_servers_are_asked_in_turn_with_one_schedule(
    tls: TlsFiles, tmp_path: Path, capsys: Capture
) -> None:
    found = tmp_path / "found.json"
    with load_server(tls) as a, load_server(tls) as b:
        assert (
            loaded(
                *("--url", a.url, "--against", b.url, "--against-http", "3", "--key", "k"),
                *("--ca", str(tls.ca), "--rate", "6", "--duration-s", "1", "--tokens-out", "3"),
                *("--json", str(found)),
            )
            == 0
        )
    assert "A / B" in capsys.readouterr().out
    told = json.loads(found.read_text())
    assert [side["target"]["http"] for side in told["sides"]] == ["1", "3"]
    assert [len(side["blocks"]) for side in told["sides"]] == [2, 2]
    planned = [[one["at_ms"] for one in side["requests"]] for side in told["sides"]]
    assert planned[0] == pytest.approx(planned[1], abs=0.01)
    assert {one["name"] for one in told["ratios"]} >= {"ttft_p50_ms", "goodput_share"}
    half = len(a.bodies) // 2
    assert a.arrived_s[half - 1] < b.arrived_s[0] < b.arrived_s[half - 1] < a.arrived_s[half]
    assert (a.keys, b.keys) == ({"Bearer k"}, {None})  # a key goes to its own server alone
    # What one asked, nobody asks again.
    texts = [body["prompt"] for body in a.bodies + b.bodies]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "ftp://x"], "not the URL of an API"),
        (["--url", "http://me:secret@x"], "use --key"),
        (["--url", "http://x", "--key", " "], "the key is empty"),
        (["--url", "http://x", "--rate", "1", "--trace", "t"], "two schedules"),
        (["--url", "http://x", "--speed", "2"], "--speed is for traces"),
        (["--url", "http://x", "--trace", "nowhere.csv"], "nowhere.csv"),
        (["--url", "http://x", "--against-http", "2"], "--against"),
        (["--url", "http://x", "--timeout-s", "inf"], "finite"),
        (["--url", "http://x", "--http", "3"], "HTTP/3 needs https"),
        (["--url", "http://127.0.0.1:9", "--duration-s", "1"], "127.0.0.1:9"),
    ],
)
@pytest.mark.usefixtures("words_at_hand")
def test_what_cannot_be_measured_is_one_line(
    arguments: list[str], said: str, capsys: Capture
) -> None:
    assert loaded(*arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert "secret" not in line


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_with_a_report_and_leaves_nothing(
    number: signal.Signals, code: int, tls: TlsFiles, tmp_path: Path
) -> None:
    found = tmp_path / "found.json"
    with load_server(tls, behaviors=["ok", "ok", *["forever"] * 500]) as server:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "firstlight", "bench", "load", "--url", server.url),
                *("--ca", str(tls.ca), "--rate", "10", "--duration-s", "60", "--http", "2"),
                *("--tokens-out", "4", "--json", str(found)),
            ],
            env={**os.environ, "FIRSTLIGHT_STATE_DIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            wait_until(lambda: len(server.bodies) >= 6 or process.poll() is not None)
            process.send_signal(number)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
        wait_until(lambda: server.out == 0)
        assert server.left == len(server.bodies) - 2
    assert process.returncode == code, err
    assert err == ""
    assert "CUT SHORT" in out
    told = json.loads(found.read_text())
    assert told["cut_short"] == number.name
    counts = told["sides"][0]["figures"]["counts"]
    assert (counts["answered"], counts["missed"]) == (2, 0)
    assert counts["unfinished"] == counts["due"] - 2 >= 4
    assert counts["planned"] > counts["due"]


async def test_a_run_that_is_stopped_waits_for_nothing(
    tls: TlsFiles, vocabulary: Vocabulary
) -> None:
    stop = Stop()
    with load_server(tls, behaviors=["hang"] * 3) as server:
        arrivals = steady(100.0, 0.03, (5, 5))
        load = Load(arrivals, TracePrompts(vocabulary, arrivals, 1), [False] * 3, 600.0, 10)
        target = await reach(Where(server.url, "3", ca=tls.ca))
        async with target.connections:
            running = asyncio.create_task(run_load(target, load, stop, lambda run: None))
            await asyncio.to_thread(wait_until, lambda: len(server.bodies) == 3)
            stop.ask("enough")
            run = await asyncio.wait_for(running, 10)
    assert run.cut_short == "enough"
    assert [(r.miss, r.ended_s) for r in run.records] == [(None, None)] * 3


def wait_until(holds: Any, timeout_s: float = 60.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.02)
