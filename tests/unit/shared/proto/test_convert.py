"""What a peer can get wrong: refused at the door, with the field's name, and never passed on."""

import math
from collections.abc import Callable

import pytest

from firstlight.shared.errors import PeerError
from firstlight.shared.proto import control_pb2, core_pb2
from firstlight.shared.proto.convert import (
    MESSAGE_CHARS_MAX,
    RETRY_AFTER_S_MAX,
    from_commits,
    from_done,
    from_failed,
    from_load,
    from_node,
    to_done,
    to_failed,
    to_load,
    to_node,
)
from firstlight.shared.proto.convert_mesh import from_report, to_report
from firstlight.shared.types import (
    Done,
    Failed,
    HintCount,
    Load,
    Mark,
    NodeInfo,
    Report,
    Role,
)

CORE = NodeInfo("core-eu", Role.CORE, 7, "eu", "[::1]:8500", "class", ("tiny",), "hash", 64)
BAD_NUMBERS = (math.nan, math.inf, -math.inf, -1.0)


def changed(**fields: object) -> core_pb2.Node:
    node = to_node(CORE)
    for name, value in fields.items():
        node.ClearField(name)
        node.MergeFrom(core_pb2.Node(**{name: value}))
    return node


def test_an_honest_node_and_load_come_back_as_they_were() -> None:
    load = Load(running=2, sequences_max=8, kv_used_share=0.5, step_ms=((1, 2.0), (8, 4.0)))
    assert from_node(to_node(CORE)) == CORE
    assert from_load(to_load(load)) == load


@pytest.mark.parametrize("value", BAD_NUMBERS)
@pytest.mark.parametrize(
    ("field", "take"),
    [
        ("load.kv_used_share", lambda x: from_load(core_pb2.Load(kv_used_share=x))),
        ("load.prefill_ms", lambda x: from_load(core_pb2.Load(prefill_ms_per_token=x))),
        ("load.step_ms", lambda x: from_load(core_pb2.Load(step_ms=[{"rows": 1, "ms": x}]))),
        ("commits.queue_ms", lambda x: from_commits(core_pb2.Commits(chain=bytes(8), queue_ms=x))),
        ("commits.prefill", lambda x: from_commits(core_pb2.Commits(chain=bytes(8), prefill_ms=x))),
        ("retry_after_s", lambda x: from_failed(core_pb2.Failed(retry_after_s=x))),
        (
            "report.rtts",
            lambda x: from_report(
                control_pb2.Report(info=to_node(CORE), rtts=[{"core": "c", "ms": x}])
            ),
        ),
    ],
)
def test_a_number_that_no_decision_can_be_made_with_is_named(
    field: str, take: Callable[[float], object], value: float
) -> None:
    with pytest.raises(PeerError, match=field):
        take(value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"region": "x" * 100_000}, "100000 characters"),
        ({"models": ["m"] * 100_000}, "100000 entries"),
        ({"models": ["m" * 10_000]}, "10000 characters"),
        ({"address": "unix:/run/secret"}, "expected host:port"),
        ({"address": "dns://8.8.8.8/x:1"}, "expected host:port"),
        ({"address": "core-eu"}, "expected host:port"),
        ({"address": "k\u00f6ln:443"}, "expected host:port"),
        ({"address": "trusted@elsewhere:443"}, "expected host:port"),
        ({"address": "elsewhere:443?x:1"}, "expected host:port"),
        ({"role": "king"}, "role"),
        ({"node": ""}, "node.node is empty"),
    ],
)
def test_a_node_that_would_be_passed_on_to_all_is_bounded(
    fields: dict[str, object], words: str
) -> None:
    with pytest.raises(PeerError, match=words):
        from_node(changed(**fields))


def test_a_load_or_statistics_of_endless_length_are_refused() -> None:
    with pytest.raises(PeerError, match="step_ms has 9999 entries"):
        from_load(core_pb2.Load(step_ms=[core_pb2.StepMs(rows=1, ms=1.0)] * 9999))
    with pytest.raises(PeerError, match=r"done\.hints has 9999 entries"):
        from_done(core_pb2.Done(hints=[core_pb2.HintCount(source="x")] * 9999))


@pytest.mark.parametrize(
    "logprobs",
    [
        core_pb2.Logprobs(chosen=math.nan),
        core_pb2.Logprobs(chosen=-1.0, top_ids=[1], top=[-math.inf]),
        core_pb2.Logprobs(chosen=-1.0, top_ids=[1, 2], top=[-1.0]),
    ],
)
def test_logprobs_that_no_json_can_carry_are_refused(logprobs: core_pb2.Logprobs) -> None:
    message = core_pb2.Commits(ids=[1], chain=bytes(8), logprobs=[logprobs])
    with pytest.raises(PeerError, match=r"commits\.logprobs"):
        from_commits(message)


def test_what_a_failure_says_to_a_client_is_bounded() -> None:
    failed = from_failed(core_pb2.Failed(message="x" * 1_000_000, retry_after_s=1e300))
    assert len(failed.message) == MESSAGE_CHARS_MAX
    assert failed.retry_after_s == RETRY_AFTER_S_MAX


def test_a_sketch_travels_with_a_report_and_one_of_another_size_is_ignored() -> None:
    info = NodeInfo("core-eu", Role.CORE, 7, "eu", "127.0.0.1:1")
    sketch = bytes(range(256)) * 4
    assert from_report(to_report(Report(info, 1, sketch=sketch))).sketch == sketch
    assert from_report(to_report(Report(info, 1, sketch=b"old"))).sketch == b""


def test_statistics_and_failures_come_back_as_they_were() -> None:
    marks = (Mark("queued", 0.0, "39 tokens"), Mark("first id", 12.5))
    done = Done("r", 2, (("edge", HintCount(3, 2, 1)),), marks)
    failed = Failed("r", 2, "deadline", "late", False, 1.5, marks)
    assert from_done(to_done(done)) == done
    assert from_failed(to_failed(failed)) == failed


@pytest.mark.parametrize(
    ("marks", "words"),
    [
        ([{"what": "x"}] * 33, r"marks has 33 entries, at most 32"),
        ([{"what": ""}], r"marks\.what of 0 characters, 1 to 40"),
        ([{"what": "x" * 41}], r"marks\.what of 41 characters, 1 to 40"),
        ([{"what": "x", "detail": "d" * 201}], r"marks\.detail of 201 characters, at most 200"),
        ([{"what": "x", "ms": math.nan}], r"marks\.ms is nan"),
        ([{"what": "x", "ms": -1.0}], r"marks\.ms is -1\.0"),
    ],
)
def test_marks_that_are_too_many_too_long_or_at_no_time_are_refused(
    marks: list[dict[str, object]], words: str
) -> None:
    with pytest.raises(PeerError, match=r"done\." + words):
        from_done(core_pb2.Done(marks=[core_pb2.Mark(**mark) for mark in marks]))
    with pytest.raises(PeerError, match=r"failed\." + words):
        from_failed(core_pb2.Failed(marks=[core_pb2.Mark(**mark) for mark in marks]))


EDGE = NodeInfo(
    "e",
    Role.EDGE,
    7,
    "eu",
    "e.test:443",
    place=(51.5, -0.1),
    failure_domain="eu-1",
    ips=("192.0.2.1", "2001:db8::1"),
)


def test_the_site_of_a_node_comes_back_as_it_was() -> None:
    assert from_node(to_node(EDGE)) == EDGE


@pytest.mark.parametrize("place", [(91.0, 0.0), (0.0, 181.0), (math.nan, 0.0), (0.0, math.inf)])
def test_a_node_that_is_nowhere_has_no_place_and_is_a_node_all_the_same(
    place: tuple[float, float],
) -> None:
    message = to_node(EDGE)
    message.latitude, message.longitude = place
    assert from_node(message).place is None
    half = to_node(EDGE)
    half.ClearField("longitude")
    assert from_node(half).place is None


def test_what_is_no_address_is_not_passed_on() -> None:
    message = to_node(EDGE)
    message.ips.extend(["x", "fe80::1%eth0", ""])
    assert from_node(message).ips == EDGE.ips


def test_more_addresses_or_a_longer_domain_than_anyone_has_are_refused() -> None:
    many, long = to_node(EDGE), to_node(EDGE)
    many.ips.extend(["192.0.2.1"] * 16)
    long.failure_domain = "x" * 1000
    for message in (many, long):
        with pytest.raises(PeerError):
            from_node(message)
