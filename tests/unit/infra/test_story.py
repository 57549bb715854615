"""A timeline in words: what was slow first, then phases, reasons, and all that happened."""

from copy import deepcopy
from typing import Any

import pytest
from rich.console import Console

from firstlight.infra.story import BAR_CELLS, bar, routing, show, summary


def phase(name: str, node: str, begin_ms: float, ms: float, choice: int = 0) -> dict[str, Any]:
    return {"choice": choice, "phase": name, "node": node, "begin_ms": begin_ms, "ms": ms}


def entry(ms: float, node: str, what: str, **facts: object) -> dict[str, Any]:
    return {"ms": ms, "node": node, "what": what, **facts}


CANDIDATES = [
    {"core": "core-eu", "region": "eu", "expected_ttft_ms": 390.2, "reason": "cold"},
    {"core": "core-us", "region": "us", "expected_ttft_ms": 1500.0, "reason": "hot: load 0.90"},
]
ENDED = {
    "finish": "stop", "tokens": 12, "cached_tokens": 16, "moved": 1, "continuation": "exact",
    "hints": {"edge-ngram": {"offered": 6, "verified": 5, "accepted": 3}},
}  # fmt: skip
STORY: dict[str, Any] = {
    "object": "firstlight.timeline",
    "id": "chatcmpl-1",
    "edge": "edge-eu",
    "status": "finished",
    "streams": ["s0"],
    "first_token_ms": 412.0,
    "total_ms": 1412.0,
    "phases": [
        phase("read and tokenize", "edge-eu", 0.0, 11.0),
        phase("network", "edge-eu → core-eu", 11.0, 10.0),
        phase("queue", "core-eu", 21.0, 80.0),
        phase("prefill", "core-eu", 101.0, 301.0),
        phase("network", "core-eu → edge-eu", 402.0, 10.0),
        phase("decode", "core-eu", 412.0, 999.9),
        phase("ending", "edge-eu", 1411.9, 0.1),
    ],
    "entries": [
        entry(0.0, "edge-eu", "received"),
        entry(11.0, "edge-eu", "routed", choice=0, core="core-eu", reason="home region",
              candidates=CANDIDATES),
        entry(21.0, "core-eu", "queued", choice=0, epoch=1, detail="39 tokens", core_ms=0.0,
              placed="by guess"),
        entry(30.0, "edge-eu", "left", choice=0, core="core-eu", how="lost", why="move",
              reason="it broke off", wait_ms=0.0),
        entry(31.0, "edge-eu", "moved", choice=0, why="lost",
              **{"from": "core-eu", "to": "core-us"}),
        entry(412.0, "edge-eu", "first text", choice=0),
        entry(1412.0, "edge-eu", "ended", choice=0, **ENDED),
    ],
    "left_out": 0,
}  # fmt: skip


def changed(**fields: Any) -> dict[str, Any]:
    return {**deepcopy(STORY), **fields}


def shown(story: dict[str, Any]) -> str:
    console = Console(width=120, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(show(story))
    return capture.get()


def test_the_first_token_is_explained_with_the_largest_phase_first() -> None:
    assert summary(STORY)[1] == (
        "412 ms to the first token: 301 prefill on core-eu, 80 queue on core-eu, 20 network, "
        "11 read and tokenize on edge-eu"
    )


def test_the_whole_is_explained_too_and_small_parts_are_one() -> None:
    first, _, all_of_it = summary(STORY)
    assert first == "chatcmpl-1 at edge-eu: finished after 1,412 ms"
    assert all_of_it == (
        "1,412 ms in all: 1,000 decode on core-eu, 301 prefill on core-eu, 80 queue on core-eu, "
        "20 network, 11 read and tokenize on edge-eu"
    )


def test_a_failure_says_its_error_and_where_the_time_went() -> None:
    failed = entry(11.0, "edge-eu", "failed", kind="capacity", status=503, code="overloaded",
                   param=None, message="all 2 cores are full")  # fmt: skip
    story = changed(
        status="failed",
        first_token_ms=None,
        total_ms=11.0,
        phases=STORY["phases"][:1],
        entries=[STORY["entries"][0], failed],
    )
    assert summary(story) == [
        "chatcmpl-1 at edge-eu: failed after 11 ms",
        "error: 503 overloaded: all 2 cores are full",
        "11 ms in all: 11 read and tokenize on edge-eu",
    ]


def test_an_error_about_the_request_names_what_was_wrong_but_not_in_words() -> None:
    failed = entry(1.0, "edge-eu", "failed", kind="request", status=400, code=None,
                   param="temperature", message=None)  # fmt: skip
    story = changed(status="failed", first_token_ms=None, phases=[], entries=[failed])
    assert summary(story)[1] == "error: 400 request in temperature: as the answer said"


def test_the_reasons_of_routing_are_words() -> None:
    assert list(routing(STORY)) == [
        "core-eu in eu, 390 ms expected to the first token (cold), chosen: home region",
        "  behind it core-us in us, 1,500 ms expected to the first token (hot: load 0.90)",
    ]


@pytest.mark.parametrize(
    ("begin_ms", "ms", "drawn"),
    [
        (0.0, 100.0, "█" * BAR_CELLS),
        (50.0, 25.0, " " * (BAR_CELLS // 2) + "█" * (BAR_CELLS // 4)),
        (0.0, 0.1, "▏"),
        (100.0, 0.0, " " * (BAR_CELLS - 1) + "▏"),
    ],
)
def test_a_bar_stands_where_its_phase_does(begin_ms: float, ms: float, drawn: str) -> None:
    assert bar(begin_ms, ms, 100.0) == drawn


def test_a_bar_of_nothing_is_a_thin_line() -> None:
    assert bar(0.0, 0.0, 0.0) == "▏"


def test_phases_are_shown_node_by_node_with_bars() -> None:
    lines = shown(STORY).splitlines()
    queue = next(n for n, line in enumerate(lines) if line.startswith("core-eu  "))
    assert "queue" in lines[queue]
    assert lines[queue + 1].split()[:3] == ["prefill", "101.0", "301.0"]  # the node is said once
    assert "███████" in lines[queue + 1]


def test_everything_that_happened_is_shown_in_order() -> None:
    text = shown(STORY)
    for words in (
        "core-eu: home region",
        "39 tokens",
        "core-eu lost: it broke off",
        "core-eu → core-us: lost",
        "stop, 12 tokens; 16 cached; hints accepted: edge-ngram 3 of 6; moved 1×, exact",
        "a core's times: by guess",
    ):
        assert words in text
    assert "not kept" not in text


def test_several_choices_have_bars_and_names_of_their_own() -> None:
    story = changed(streams=["s0", "s1"])
    story["phases"] += [phase("queue", "core-us", 0.0, 5.0, choice=1)]
    text = shown(story)
    assert "choice 0" in text
    assert "choice 1" in text
    assert next(routing(story)).startswith("choice 0: core-eu in eu")
    assert "0: 39 tokens" in text


def test_what_was_not_kept_is_said() -> None:
    assert "7 more were not kept" in shown(changed(left_out=7))


def test_what_a_node_says_cannot_command_the_terminal() -> None:
    story = changed(id="x\x1b[2J")
    story["entries"][2]["detail"] = "[bold]39\x1b]0;title\x07"
    text = shown(story)
    assert "\x1b" not in text
    assert "[bold]39" in text
