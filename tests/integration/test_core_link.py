"""The core's end of a link: real gRPC with mutual TLS on loopback, a backend driven by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from core_bed import PROMPT, Core, Edge, opened, opening, serve

from firstlight.core_node.backends.backend import Batch, Failure
from firstlight.shared import rpc, telemetry
from firstlight.shared.errors import DeadlineError, PeerError
from firstlight.shared.proto import core_pb2, core_pb2_grpc
from firstlight.shared.proto.convert import from_commits, from_done, from_failed, to_hint
from firstlight.shared.stream import CREDIT_TOKENS, TokenStream
from firstlight.shared.tls import ensure_ca, issue
from firstlight.shared.types import Done, Hint, HintCount, Mark, Role


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[Core]:
    async with serve(tmp_path) as served:
        yield served


async def test_the_first_frame_says_what_the_core_is(core: Core) -> None:
    async with core.edge() as edge:
        frame = await edge.read()
        assert frame.welcome.info.node == "core-eu"
        assert frame.welcome.info.tokenizer_hash == "abc123"
        assert frame.load.sequences_max == 8


async def test_the_load_comes_without_being_asked(core: Core) -> None:
    async with core.edge() as edge:
        await edge.read()
        started = asyncio.get_running_loop().time()
        for _ in range(3):
            assert (await edge.read()).HasField("load")
        assert asyncio.get_running_loop().time() - started < 1.5


async def test_a_ping_is_answered_at_once(core: Core) -> None:
    async with core.edge() as edge:
        await edge.read()
        started = asyncio.get_running_loop().time()
        for number in range(1, 11):
            await edge.send(ping=core_pb2.Ping(id=number))
            assert (await edge.until(lambda frame: frame.HasField("pong"))).pong == number
        assert asyncio.get_running_loop().time() - started < 1.0  # not ten load intervals


async def test_padding_is_taken_without_an_answer_unless_its_ping_has_a_number(core: Core) -> None:
    async with core.edge() as edge:
        await edge.read()
        for _ in range(4):
            await edge.send(ping=core_pb2.Ping(padding=bytes(16384)))
        await edge.send(ping=core_pb2.Ping(id=7, padding=bytes(16384)))
        answered = [frame.pong for frame in [await edge.read() for _ in range(2)] if frame.pong]
        assert answered == [7]


async def test_one_step_is_one_frame_with_all_commits_and_endings(core: Core) -> None:
    async with core.edge() as edge:
        a, b = await opened(core, edge, "a", "b")
        core.backend.deliver(
            Batch(
                (core.backend.commit(a, (5, 6)), core.backend.commit(b, (7,))),
                (Done(b, 1, (("edge", HintCount(3, 2, 1)),)),),
            )
        )
        frame = await edge.until(lambda frame: frame.commits)
        assert [(c.request, list(c.ids)) for c in frame.commits] == [("a", [5, 6]), ("b", [7])]
        assert [done.request for done in frame.done] == ["b"]
        assert frame.done[0].hints[0].accepted == 1
        assert frame.HasField("load")
        assert frame.load.opens_counted == 2


async def test_what_a_step_brought_is_counted(core: Core) -> None:
    def counts() -> list[float]:
        tokens, frames = "vllm:generation_tokens_total", "firstlight_link_frames_total"
        labels = {"model_name": "smol", "engine": "0"}
        return [
            telemetry.ENGINE_REGISTRY.get_sample_value(tokens, labels) or 0.0,
            telemetry.REGISTRY.get_sample_value(frames, {"direction": "in"}) or 0.0,
        ]

    tokens, frames = counts()
    async with core.edge() as edge:
        [a] = await opened(core, edge, "a")
        core.backend.deliver(Batch((core.backend.commit(a, (5, 6)),), rows=2))
        await edge.until(lambda frame: frame.commits)
        await core.told(lambda: counts()[0] == tokens + 2)
        assert counts()[1] > frames


async def test_the_initial_credit_counts_from_the_prompt_whatever_is_committed(core: Core) -> None:
    async with core.edge() as edge:
        await edge.send(opens=[opening("a"), opening("b", 2, (5,) * 100)])
        await core.told(lambda: len(core.backend.opened) == 2)
        credits = [credit for _, _, credit in core.backend.opened]
        assert credits == [3 + CREDIT_TOKENS, 3 + CREDIT_TOKENS]


async def test_hints_and_credits_reach_the_sequence(core: Core) -> None:
    async with core.edge() as edge:
        [handle] = await opened(core, edge, "a")
        chain = TokenStream(PROMPT).chain
        await edge.send(
            hints=[to_hint(Hint("a", 3, chain, tuple(range(500)), "edge-ngram"))],
            credits=[core_pb2.Credit(request="a", position=2000)],
        )
        await core.told(lambda: core.backend.hints)
        assert core.backend.credits == [(handle, 2000)]
        [hint] = core.backend.hints
        assert (hint.request, hint.start, hint.ids) == (handle, 3, tuple(range(64)))


async def test_a_cancelled_request_is_cancelled_once_and_hears_no_more(core: Core) -> None:
    async with core.edge() as edge:
        a, b = await opened(core, edge, "a", "b")
        cancel = core_pb2.Cancel(request="a", epoch=1)
        await edge.send(cancels=[cancel, cancel])
        await edge.send(cancels=[cancel])
        await core.told(lambda: core.backend.cancelled)
        late = core.backend.commit(a, (5,))
        core.backend.deliver(Batch((late, core.backend.commit(b, (6,)))))
        frame = await edge.until(lambda frame: frame.commits)
        assert [commit.request for commit in frame.commits] == ["b"]
        assert core.backend.cancelled == [a]


async def test_the_statistics_of_a_cancelled_request_still_come_once(core: Core) -> None:
    async with core.edge() as edge:
        [a] = await opened(core, edge, "a")
        await edge.send(cancels=[core_pb2.Cancel(request="a", epoch=1)])
        await core.told(lambda: core.backend.cancelled)
        done = Done(a, 0, (("edge", HintCount(3, 2, 1)),))
        core.backend.deliver(Batch((), (done, done)))
        frame = await edge.until(lambda frame: frame.done)
        assert [(d.request, d.epoch, d.hints[0].accepted) for d in frame.done] == [("a", 1, 1)]


async def test_a_request_cancelled_before_it_began_is_done_at_once(core: Core) -> None:
    core.backend.at_once = True
    async with core.edge() as edge:
        await opened(core, edge, "a")
        await edge.send(cancels=[core_pb2.Cancel(request="a", epoch=1)])
        frame = await edge.until(lambda frame: frame.done)
        assert (frame.done[0].request, list(frame.done[0].hints)) == ("a", [])


async def test_a_cancel_of_an_older_epoch_does_not_touch_the_newer(core: Core) -> None:
    async with core.edge() as edge:
        await edge.send(opens=[opening("a", 1), opening("a", 2)])
        await edge.send(cancels=[core_pb2.Cancel(request="a", epoch=1)])
        await edge.send(ping=core_pb2.Ping(id=1))
        await edge.until(lambda frame: frame.HasField("pong"))
        assert core.backend.cancelled == [core.backend.opened[0][0]]


async def test_a_higher_epoch_replaces_and_an_equal_one_is_stale(core: Core) -> None:
    async with core.edge() as edge:
        await opened(core, edge, "a")
        await edge.send(opens=[opening("a", 1)])
        failed = await edge.failed()
        assert (failed.request, failed.epoch, failed.kind) == ("a", 1, "stale")
        assert not failed.retry_elsewhere
        assert core.backend.cancelled == []
        await edge.send(opens=[opening("a", 2)])
        await core.told(lambda: len(core.backend.opened) == 2)
        first, second = (handle for handle, _, _ in core.backend.opened)
        assert core.backend.cancelled == [first]
        core.backend.deliver(Batch((core.backend.commit(second, (9,)),)))
        frame = await edge.until(lambda frame: frame.commits)
        assert frame.commits[0].epoch == 2


async def test_a_new_link_of_an_edge_takes_its_request_over(core: Core) -> None:
    async with core.edge() as old, core.edge() as new:
        [first] = await opened(core, old, "a")
        [second] = await opened(core, new, "a")
        assert core.backend.cancelled == [first]
        old.call.cancel()
        await asyncio.sleep(0.1)
        assert core.backend.cancelled == [first]  # the old link's end spares the successor
        core.backend.deliver(Batch((core.backend.commit(second, (9,)),)))
        assert (await new.until(lambda frame: frame.commits)).commits[0].request == "a"


async def test_an_edge_cannot_touch_the_requests_of_another(core: Core) -> None:
    async with core.edge("edge-eu") as eu, core.edge("edge-us") as us:
        [handle] = await opened(core, eu, "a")
        await us.send(
            cancels=[core_pb2.Cancel(request="a", epoch=9)],
            credits=[core_pb2.Credit(request="a", position=9999)],
            hints=[to_hint(Hint("a", 3, TokenStream(PROMPT).chain, (5,)))],
            ping=core_pb2.Ping(id=1),
        )
        await us.until(lambda frame: frame.HasField("pong"))
        assert (core.backend.cancelled, core.backend.credits, core.backend.hints) == ([], [], [])
        [other] = await opened(core, us, "a")
        assert other != handle
        core.backend.deliver(Batch((core.backend.commit(handle, (5,)),)))
        await eu.until(lambda frame: frame.commits)
        assert not any(frame.commits for frame in us.frames)


async def test_a_lost_link_cancels_its_sequences_and_no_others(core: Core) -> None:
    async with core.edge("edge-us") as other:
        [kept] = await opened(core, other, "z")
        async with core.edge() as edge:
            handles = await opened(core, edge, "a", "b")
        await core.told(lambda: len(core.backend.cancelled) == 2)
        assert sorted(core.backend.cancelled) == sorted(handles)
        core.backend.deliver(Batch((core.backend.commit(kept, (5,)),)))
        assert await other.until(lambda frame: frame.commits)


async def test_an_edge_that_closes_its_side_ends_the_link_cleanly(core: Core) -> None:
    async with core.edge() as edge:
        [handle] = await opened(core, edge, "a")
        await edge.call.done_writing()
        code, _ = await edge.status()
        assert code is grpc.StatusCode.OK
        assert core.backend.cancelled == [handle]


async def test_a_slow_reader_gets_merged_commits_that_add_up(core: Core) -> None:
    async with core.edge() as edge:
        [handle] = await opened(core, edge, "a")
        steps = 3000
        for step in range(steps):
            ids = (step % 1000, 1)
            core.backend.deliver(Batch((core.backend.commit(handle, ids, logprobs=20),)))
            if step % 50 == 0:
                await asyncio.sleep(0)  # the writer runs, the edge does not read
        follower, frames = TokenStream(PROMPT), 0
        follower.assign()
        while len(follower.ids) < 2 * steps:
            for message in (await edge.read()).commits:
                commit = from_commits(message)
                follower.receive(commit)
                assert len(commit.logprobs) == len(commit.ids)
                frames += 1
        assert follower.chain == core.backend.streams[handle].chain
        assert frames < steps / 10


async def test_an_edge_that_never_reads_is_lost_and_its_sequences_cancelled(
    tmp_path: Path,
) -> None:
    async with (
        serve(tmp_path, waiting_bytes_max=1 << 20) as core,
        core.edge("edge-us") as other,
        core.edge() as edge,
    ):
        [handle] = await opened(core, edge, "a")
        [kept] = await opened(core, other, "z")
        async with asyncio.timeout(20):
            while not core.backend.cancelled:
                ids = tuple(range(200))
                core.backend.deliver(Batch((core.backend.commit(handle, ids, logprobs=20),)))
                await asyncio.sleep(0)
        assert core.backend.cancelled == [handle]
        core.backend.deliver(Batch((core.backend.commit(kept, (5,)),)))
        assert await other.until(lambda frame: frame.commits)
        code, _ = await edge.status()  # it reads again, and learns that the link is gone
        assert code in {grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED}


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (lambda m: m.ClearField("sampling"), "request", "order_version 0"),
        (lambda m: m.sampling.bias_ids.append(4), "request", "1 bias ids, 0 biases"),
        (lambda m: setattr(m, "priority", 77), "request", "priority 77"),
        (lambda m: m.prompt.append(4_000_000_000), "request", "prompt[3] is 4000000000"),
        (lambda m: setattr(m, "request", ""), "request", "request id ''"),
        (lambda m: setattr(m, "request", "../x"), "request", "'../x'"),
        (lambda m: setattr(m, "salt", b""), "request", "salt of 0 bytes"),
        (lambda m: setattr(m, "model", "other"), "not_found", "'other'"),
        (lambda m: setattr(m, "tokenizer_hash", "zz"), "request", "'zz'"),
        (lambda m: setattr(m, "max_tokens", 0), "request", "max_tokens 0"),
        (lambda m: setattr(m.sampling, "temperature", float("nan")), "request", "temperature"),
        (lambda m: setattr(m, "budget_s", float("-inf")), "request", "budget_s -inf"),
        (lambda m: setattr(m, "epoch", 0), "request", "epoch 0"),
    ],
)
async def test_a_malformed_open_fails_its_request_and_not_the_link(
    core: Core, spoil: Callable[[Any], object], kind: str, words: str
) -> None:
    async with core.edge() as edge:
        message = opening("bad")
        spoil(message)
        await edge.send(opens=[message, opening("good")])
        failed = await edge.failed()
        assert (failed.kind, failed.retry_elsewhere) == (kind, False)
        assert words in failed.message
        assert failed.request == message.request
        await core.told(lambda: core.backend.opened)
        core.backend.deliver(Batch((core.backend.commit(core.backend.opened[0][0], (5,)),)))
        frame = await edge.until(lambda frame: frame.commits)
        assert frame.commits[0].request == "good"
        assert frame.load.opens_counted == 2


async def test_hints_credits_and_cancels_of_unknown_requests_are_ignored(core: Core) -> None:
    async with core.edge() as edge:
        await edge.send(
            hints=[core_pb2.Hint(request="x", chain=b"1", ids=[2**32 - 1], source="s" * 9999)],
            credits=[core_pb2.Credit(request="x", position=2**32 - 1)],
            cancels=[core_pb2.Cancel(request="x", epoch=1)],
            ping=core_pb2.Ping(id=4),
        )
        assert (await edge.until(lambda frame: frame.HasField("pong"))).pong == 4


async def raw_link(core: Core, frame: bytes) -> tuple[grpc.StatusCode, str]:
    """How the core answers bytes that we put on the wire as a frame."""
    address = f"127.0.0.1:{core.port}"
    async with rpc.channel(address, core.files(Role.EDGE, "edge-x"), Role.CORE) as channel:
        call = channel.stream_stream(
            "/firstlight.v1.Core/Link",
            request_serializer=lambda data: data,
            response_deserializer=core_pb2.CoreFrame.FromString,
        )()
        await call.write(frame)
        return await Edge(call).status()


@pytest.mark.parametrize(
    "frame",
    [b"\xff\xff\xff", b"\x0a\x05ab", opening().SerializeToString()[:-3], b"\x0a\x03\x0a\x01\xff"],
    ids=["garbage", "truncated", "another message", "not UTF-8"],
)
async def test_a_frame_that_cannot_be_parsed_ends_its_link_alone(core: Core, frame: bytes) -> None:
    async with core.edge() as other:
        code, words = await raw_link(core, frame)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "cannot be parsed" in words
        assert await opened(core, other, "a")


async def test_an_oversized_frame_ends_its_link_alone(core: Core) -> None:
    async with core.edge() as other:
        await other.read()
        address = f"127.0.0.1:{core.port}"
        files = core.files(Role.EDGE, "edge-x")
        credentials = grpc.ssl_channel_credentials(
            files.ca.read_bytes(), files.key.read_bytes(), files.cert.read_bytes()
        )
        options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.ssl_target_name_override", "core.firstlight.internal"),
        ]
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            call = core_pb2_grpc.CoreStub(channel).Link()
            big = core_pb2.Open(request="x", salt=bytes(rpc.RECEIVE_BYTES_MAX))
            await call.write(core_pb2.EdgeFrame(opens=[big]))
            code, _ = await Edge(call).status()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await opened(core, other, "a")


@pytest.mark.parametrize("role", [Role.CORE, Role.LB])
async def test_a_certificate_of_another_role_is_refused(core: Core, role: Role) -> None:
    async with core.edge("other", role) as edge:
        code, words = await edge.status()
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert f"role {role}" in words


async def test_a_certificate_of_another_authority_is_refused(core: Core, tmp_path: Path) -> None:
    other = ensure_ca(tmp_path / "other")
    stranger = issue(other, Role.EDGE, "edge-x", ["127.0.0.1"], tmp_path / "x")
    async with rpc.channel(f"127.0.0.1:{core.port}", stranger, Role.CORE) as channel:
        code, _ = await Edge(core_pb2_grpc.CoreStub(channel).Link()).status()
        assert code is grpc.StatusCode.UNAVAILABLE


async def test_a_full_core_says_when_to_come_back(core: Core) -> None:
    async with core.edge() as edge:
        core.backend.full = True
        await edge.send(opens=[opening("a")])
        failed = await edge.failed()
        assert (failed.kind, failed.retry_elsewhere, failed.retry_after_s) == ("capacity", True, 2)
        core.backend.full = False
        assert await opened(core, edge, "a")  # the same epoch: the first try left nothing behind


async def test_a_failure_of_one_sequence_is_told_after_its_commits(core: Core) -> None:
    async with core.edge() as edge:
        a, b = await opened(core, edge, "a", "b")
        core.backend.deliver(
            Batch((core.backend.commit(a, (5,)),), (), (Failure(a, DeadlineError("late")),))
        )
        frame = await edge.until(lambda frame: frame.failed)
        assert [commit.request for commit in frame.commits] == ["a"]
        assert (frame.failed[0].kind, frame.failed[0].message) == ("deadline", "late")
        core.backend.deliver(Batch((core.backend.commit(b, (6,)),)))
        assert await edge.until(lambda frame: frame.commits)


async def test_a_draining_core_refuses_new_requests_and_finishes_the_running(core: Core) -> None:
    async with core.edge() as edge:
        [handle] = await opened(core, edge, "a")
        draining = asyncio.create_task(core.server.drain(5))
        await edge.until(lambda frame: frame.load.draining)
        await edge.send(opens=[opening("b")])
        failed = await edge.failed()
        assert (failed.request, failed.kind, failed.retry_elsewhere) == ("b", "capacity", True)
        core.backend.deliver(Batch((core.backend.commit(handle, (5,)),), (Done(handle, 1),)))
        assert await asyncio.wait_for(draining, 2) == 0
        assert (await edge.until(lambda frame: frame.done)).commits


async def test_what_still_runs_at_the_drain_limit_is_sent_elsewhere(core: Core) -> None:
    async with core.edge() as edge:
        [handle] = await opened(core, edge, "a")
        assert await core.server.drain(0.05) == 1
        failed = await edge.failed()
        assert (failed.request, failed.kind, failed.retry_elsewhere) == ("a", "peer", True)
        assert core.backend.cancelled == [handle]


async def test_when_the_engine_fails_everything_is_sent_elsewhere(core: Core) -> None:
    async with core.edge() as edge:
        await opened(core, edge, "a", "b")
        core.server.fail_all(PeerError("the engine failed"))
        frame = await edge.until(lambda frame: frame.failed)
        assert sorted(failed.request for failed in frame.failed) == ["a", "b"]
        assert all(failed.retry_elsewhere for failed in frame.failed)
        await edge.send(opens=[opening("c")])
        assert (await edge.failed()).kind == "peer"


async def test_marks_travel_with_the_statistics_and_with_every_failure(core: Core) -> None:
    async with core.edge() as edge:
        a, b, c = await opened(core, edge, "a", "b", "c")
        marks = (Mark("queued", 0.0), Mark("finished", 9.5, "stop"))
        core.backend.deliver(
            Batch(done=(Done(a, 1, (), marks),), failures=(Failure(b, DeadlineError("x"), marks),))
        )
        frame = await edge.until(lambda frame: frame.done)
        assert from_done(frame.done[0]).marks == from_failed(frame.failed[0]).marks == marks
        core.server.fail_all(PeerError("it stops"))
        assert from_failed(await edge.failed()).marks == core.backend.marks(c)
