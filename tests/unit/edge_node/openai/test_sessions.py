"""Who tells a choice, what is handed on, and what stays in memory."""

import gc

import pytest
from unit.edge_node.openai.script import ByteTokenizer, ScriptSource

from firstlight.edge_node.answer import Ask
from firstlight.edge_node.openai.objects import Chat, Origin
from firstlight.edge_node.openai.sessions import Call, Pace, Session, Sessions
from firstlight.edge_node.stream_log import IdempotencyKey, StreamsConfig
from firstlight.shared.errors import CapacityError
from firstlight.shared.types import Sampling

ORIGIN = Origin("chatcmpl-1", "m", 1700, 42, "edge-1", "eu", "h3")
KEY = IdempotencyKey.of("acme", "/v1", "k", b"{}")


def call(source: ScriptSource, n: int = 1) -> Call:
    ask = Ask("acme", "m", ((1, 2),), Sampling(), seed=1, max_tokens=9, context_max=99, n=n)
    chat = Chat(ByteTokenizer().token_bytes, logprobs=False)
    return Call(source, ask, chat, ORIGIN, lambda _: "cap", True, False, Pace())


@pytest.fixture
def source() -> ScriptSource:
    return ScriptSource([b"Hel", b"lo"])


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(StreamsConfig(streams_max=8))


async def test_what_runs_is_handed_on_to_who_wants_the_same(
    sessions: Sessions, source: ScriptSource
) -> None:
    session = sessions.begin(call(source), None)
    first = session.claim({0: 0})
    answer = session.answer_for(first)
    await answer.take()
    second = session.claim({0: 1})
    assert (first.displaced, second.free) == (True, False)
    session.leave(first)
    assert second.free
    assert session.answer_for(second) is answer
    (event,) = await answer.take()
    assert (event.text, event.ids, source.answers[0].closed) == ("el", (101, 108), 0)
    session.leave(second)
    assert source.answers[0].closed == 1


async def test_what_runs_for_more_choices_than_are_wanted_is_cancelled(
    sessions: Sessions, source: ScriptSource
) -> None:
    session = sessions.begin(call(source, n=2), None)
    first = session.claim({0: 0, 1: 0})
    await session.answer_for(first).take()
    second = session.claim({1: 0})
    session.leave(first)
    assert source.answers[0].closed == 1
    session.answer_for(second)
    asked = source.answers[1].ask
    assert (asked.picked, asked.committed) == ((1,), ((72, 101, 108), (72, 101, 108)))
    session.leave(second)


async def test_an_heir_that_goes_before_it_begins_leaves_nothing_running(
    sessions: Sessions, source: ScriptSource
) -> None:
    session = sessions.begin(call(source), None)
    first = session.claim({0: 0})
    session.answer_for(first)
    second = session.claim({0: 0})
    session.leave(second)
    session.leave(first)
    assert source.answers[0].closed >= 1
    assert not session.busy


async def test_a_third_waits_for_all_who_have_not_let_go(
    sessions: Sessions, source: ScriptSource
) -> None:
    session = sessions.begin(call(source), None)
    first, second, third = (session.claim({0: 0}) for _ in range(3))
    session.leave(second)
    assert not third.free
    session.leave(first)
    assert third.free
    session.leave(third)


async def test_a_request_that_failed_before_its_first_id_is_forgotten(
    sessions: Sessions, source: ScriptSource
) -> None:
    session = sessions.begin(call(source), KEY)
    turn = session.claim({0: 0})
    turn.failed = True
    session.leave(turn)
    assert sessions.named(KEY) is None


async def test_a_request_that_failed_while_another_waits_for_it_is_not_forgotten(
    sessions: Sessions, source: ScriptSource
) -> None:
    session = sessions.begin(call(source), KEY)
    first, second = session.claim({0: 0}), session.claim({0: 0})
    first.failed = True
    session.leave(first)
    assert sessions.named(KEY) is session
    session.leave(second)
    assert sessions.named(KEY) is session


async def test_ids_that_are_kept_outlive_what_failed(
    sessions: Sessions, source: ScriptSource
) -> None:
    session = sessions.begin(call(source), KEY)
    turn = session.claim({0: 0})
    await session.answer_for(turn).take()
    turn.failed = True
    session.leave(turn)
    assert sessions.named(KEY) is session
    assert session.progress(0).ids == (72, 101, 108)


async def test_a_key_without_room_is_refused_and_a_stream_without_is_not_kept(
    source: ScriptSource,
) -> None:
    sessions = Sessions(StreamsConfig(streams_max=0))
    with pytest.raises(CapacityError, match="no room"):
        sessions.begin(call(source), KEY)
    session = sessions.begin(call(source), None)
    turn = session.claim({0: 0})
    session.answer_for(turn)
    session.leave(turn)
    assert source.answers[0].closed == 1
    assert sessions.log.find("acme", "stream-0", 0.0) is None


async def test_ten_thousand_short_streams_leave_no_more_than_the_limit() -> None:
    source, sessions = ScriptSource([b"Hi"]), Sessions(StreamsConfig(streams_max=8))
    for _ in range(10_000):
        session = sessions.begin(call(source), None)
        turn = session.claim({0: 0})
        answer = session.answer_for(turn)
        while await answer.take():
            pass
        session.leave(turn)
        source.answers.clear()
    del session, turn, answer
    gc.collect()
    assert sum(type(one) is Session for one in gc.get_objects()) == 8
    assert (sessions.log.streams, sessions.log.ids) == (8, 8 * (2 + 3))
