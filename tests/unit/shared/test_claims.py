"""Whose word is newer, and which words no node can mean."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reports import report

from firstlight.shared.claims import another_process, implausible, supersedes
from firstlight.shared.routing.spill import Row
from firstlight.shared.types import Demand, Following, Load, NodeInfo, Report, Role

EDGE = NodeInfo("e", Role.EDGE, 1, "lon", "e:1")


def test_an_honest_report_is_plausible() -> None:
    load = Load(
        running=3,
        queued=1,
        queued_prefill_tokens=90_000,
        sequences_max=64,
        kv_used_share=1.0,
        step_ms=((1, 9.0), (64, 31.0)),
        prefill_ms_per_token=0.02,
    )
    assert implausible(report(load=load)) == ""
    row = Row((("lon", 0.75), ("par", 0.2)), 0.05)
    honest = Report(EDGE, 1, Load(), (("c1", 0.0), ("c2", 456.0)), False, b"", Demand(1e6))
    assert implausible(replace(honest, following=Following("lb", row))) == ""


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (Load(running=1 << 40), "running"),
        (Load(queued=1 << 40), "queued"),
        (Load(sequences_max=0), "room for 0"),
        (Load(queued_prefill_tokens=1 << 50), "tokens queued"),
        (Load(kv_used_share=2.5), "KV 2.5"),
        (Load(kv_used_share=math.nan), "KV nan"),
        (Load(step_ms=((1, math.inf),)), "step of 1 rows in inf ms"),
        (Load(prefill_ms_per_token=1e-9), "1e-09 ms a prompt token"),
        (Load(prefill_ms_per_token=math.nan), "nan ms a prompt token"),
        (Load(prefill_ms_per_token=-1.0), "-1.0 ms a prompt token"),
    ],
)
def test_a_load_that_no_core_has_is_named(load: Load, words: str) -> None:
    assert words in implausible(report(load=load))


@pytest.mark.parametrize(
    "absurd",
    [
        Report(EDGE, 1, rtt_ms=(("c1", 5.0), ("c2", 1e9))),
        Report(EDGE, 1, rtt_ms=(("c1", math.nan),)),
        Report(EDGE, 1, demand=Demand(work_per_s=1e20)),
        Report(EDGE, 1, demand=Demand(requests_per_s=-1.0)),
        Report(EDGE, 1, following=Following("lb", Row((("lon", 0.5),), 0.2))),
    ],
)
def test_what_an_edge_cannot_have_measured_is_named(absurd: Report) -> None:
    assert implausible(absurd)


NAMED = st.builds(
    lambda incarnation, region, port, seq: Report(
        NodeInfo("n", Role.CORE, incarnation, region, f"n:{port}"), seq
    ),
    st.integers(1, 3),
    st.sampled_from(["lon", "par"]),
    st.integers(1, 2),
    st.integers(1, 3),
)


@given(NAMED, NAMED)
def test_of_two_different_words_exactly_one_supersedes_the_other(one: Report, two: Report) -> None:
    assert supersedes(one, two) + supersedes(two, one) == (one != two)


@given(NAMED, NAMED, NAMED)
def test_words_are_in_one_order(one: Report, two: Report, three: Report) -> None:
    if supersedes(one, two) and supersedes(two, three):
        assert supersedes(one, three)


def test_only_the_loser_of_two_processes_is_another_process() -> None:
    old, new = report(incarnation=1, seq=9), report(incarnation=2, seq=1)
    assert another_process(old, new)
    assert not another_process(new, old)
    assert not another_process(report(seq=1), report(seq=2))
