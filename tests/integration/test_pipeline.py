"""The edge's way of a request over real links, to cores with a runner that needs no model."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import doubles
import pytest
from pipeline_bed import PROMPT, TOKENIZER, Mesh, a_mesh, alone, ask, events, read, settled

from firstlight.edge_node.answer import Event
from firstlight.edge_node.draft import NgramDraft
from firstlight.edge_node.drafting import DraftingConfig, drafters_of
from firstlight.shared.blocks import block_hashes, root_hash, tenant_salt
from firstlight.shared.clock import monotonic_s
from firstlight.shared.engine.oracle import OracleConfig
from firstlight.shared.errors import CapacityError, FirstlightError, PeerError, RequestError
from firstlight.shared.proto import core_pb2
from firstlight.shared.proto.convert import to_commits, to_failed
from firstlight.shared.routing.ejection import FAILURES_MAX
from firstlight.shared.routing.sketch import HotPrefixes
from firstlight.shared.stream import CREDIT_TOKENS, TokenStream
from firstlight.shared.types import (
    Commit,
    Failed,
    FinishReason,
)


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    async with a_mesh(tmp_path) as made:
        yield made


async def test_an_answer_is_what_the_engine_alone_would_say(mesh: Mesh) -> None:
    ids, _, finish, stats = await read(mesh, ask(seed=5))
    assert ids == alone(5)
    assert finish is FinishReason.LENGTH
    assert (stats.core, stats.region, stats.moved) == ("core-eu", "eu", 0)
    assert stats.completion_tokens == 40
    assert stats.ttft_ms.prefill > 0


@pytest.mark.parametrize("at", [1, 7, 20, 30])
async def test_a_core_killed_in_the_middle_changes_no_id(mesh: Mesh, at: int) -> None:
    ids, _, _, stats = await read(mesh, ask(seed=at), at=at)
    assert ids == alone(at)
    assert (stats.moved, stats.core, stats.continuation) == (1, "core-us", "exact")


async def test_the_next_core_computes_only_what_was_not_committed(mesh: Mesh) -> None:
    _, _, _, stats = await read(mesh, ask(seed=2), at=25)
    assert stats.core == "core-us"
    prefill_steps = 3  # prompt and committed ids, in chunks of at most 24
    assert mesh.engines["core-us"].steps <= 40 - 25 + prefill_steps


async def test_a_core_killed_beyond_the_first_credit_is_taken_over_at_once(mesh: Mesh) -> None:
    count = CREDIT_TOKENS + 60
    asked = ask(seed=12, prompts=(PROMPT[:4],), max_tokens=count)
    async with asyncio.timeout(30):
        ids, _, _, stats = await read(mesh, asked, at=CREDIT_TOKENS + 20)
    assert (len(ids), stats.moved) == (count, 1)


async def test_a_core_that_answers_between_its_losses_is_not_ejected(mesh: Mesh) -> None:
    for seed in range(FAILURES_MAX + 1):
        await mesh.linked(2)
        _, _, _, stats = await read(mesh, ask(seed=seed, max_tokens=4))
        assert stats.core == "core-eu"
        await mesh.lose_link("core-eu")


async def test_a_core_that_is_lost_again_and_again_is_left_out_for_a_while(mesh: Mesh) -> None:
    for _ in range(FAILURES_MAX):
        await mesh.linked(2)
        await mesh.lose_link("core-eu")
    await mesh.linked(2)
    _, _, _, stats = await read(mesh, ask(max_tokens=4))
    assert stats.core == "core-us"


async def test_requests_that_were_cancelled_are_not_counted_for_ever(mesh: Mesh) -> None:
    for seed in range(3):
        answer = mesh.pipeline.open(ask(seed=seed, max_tokens=400))
        async for _ in events(answer):
            break
        answer.close()
    await settled(mesh, ["core-eu", "core-us"])
    loads = [link.load for link in mesh.pool.links]
    async with asyncio.timeout(5):
        while sum(load.opens_counted for load in loads) < 3 or any(
            load.in_flight for load in loads
        ):
            await asyncio.sleep(0.02)
            loads = [link.load for link in mesh.pool.links]
    assert [link.state(monotonic_s()).unseen_opens for link in mesh.pool.links] == [0, 0]


async def test_twenty_answers_on_a_killed_core_all_go_on(mesh: Mesh) -> None:
    first = read(mesh, ask(seed=100), at=5)
    rest = [read(mesh, ask(seed=100 + number)) for number in range(1, 20)]
    answers = await asyncio.gather(first, *rest)
    assert [ids for ids, *_ in answers] == [alone(100 + number) for number in range(20)]


async def test_hints_change_no_id(mesh: Mesh) -> None:
    asked = ask(seed=9, prompts=(PROMPT * 2,))
    with_hints, *_, stats = await read(mesh, asked)
    without, *_ = await read(mesh, replace(asked, hints=False))
    assert with_hints == without
    assert stats.hints["edge-ngram"].offered > 0


async def test_a_stop_string_ends_the_answer_and_frees_the_core(mesh: Mesh) -> None:
    ids, text, _, _ = await read(mesh, ask(seed=3, max_tokens=200))
    stop = text[3:5]
    assert stop
    short, cut, finish, _ = await read(mesh, ask(seed=3, max_tokens=200, stop=(stop,)))
    assert finish is FinishReason.STOP
    assert cut == text[: text.index(stop)]
    assert short == ids[: len(short)]
    await settled(mesh, ["core-eu", "core-us"])


async def test_a_stop_string_ends_the_answer_where_it_would_have_on_the_lost_core(
    mesh: Mesh,
) -> None:
    _, text, _, _ = await read(mesh, ask(seed=3, max_tokens=120))
    stop = text[8:10]
    assert text.index(stop) == 8
    _, cut, finish, stats = await read(mesh, ask(seed=3, max_tokens=120, stop=(stop,)), at=4)
    assert (cut, finish) == (text[:8], FinishReason.STOP)
    assert stats.moved == 1


async def test_who_committed_first_is_known_even_if_it_hands_over_in_the_same_frame(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    for engine in mesh.engines.values():
        engine._runner.step_s = 2.0  # type: ignore[attr-defined]
    learned: list[str] = []
    monkeypatch.setattr(
        mesh.pipeline.router, "learn", lambda assignment, *_, **__: learned.append(assignment.core)
    )
    answer = mesh.pipeline.open(ask(seed=1))
    request, epoch = answer._flights[0].choice.request, 1
    author = TokenStream(request.prompt)
    commit = Commit(
        request.id, epoch, author.position, (100,), author.append((100,)), cached_tokens=0
    )
    failed = Failed(request.id, epoch, "peer", "it stops", True)
    link = mesh.pool.link("core-eu")
    assert link is not None
    link._take(
        core_pb2.CoreFrame(commits=[to_commits(commit)], failed=[to_failed(failed)]), monotonic_s()
    )
    assert answer.stats(0).core == "core-us"
    await asyncio.sleep(0.01)
    assert learned == ["core-eu"]
    answer.close()


async def test_closing_an_answer_early_frees_the_core(mesh: Mesh) -> None:
    answer = mesh.pipeline.open(ask(seed=4, max_tokens=400))
    async for _ in events(answer):
        break
    answer.close()
    await settled(mesh, ["core-eu", "core-us"])
    assert mesh.pipeline.answers == set()
    assert mesh.engines["core-eu"].blocks.used == 0


async def test_a_client_that_takes_nothing_stops_the_core_at_its_credit(mesh: Mesh) -> None:
    answer = mesh.pipeline.open(ask(seed=6, prompts=(PROMPT[:4],), max_tokens=1500))
    steps = -1
    async with asyncio.timeout(30):
        while steps != (steps := answer.stats(0).completion_tokens):  # noqa: ASYNC110
            await asyncio.sleep(0.5)
    assert steps == CREDIT_TOKENS
    answer.close()
    await settled(mesh, ["core-eu"])


async def test_a_move_gives_no_credit_that_the_client_did_not(mesh: Mesh) -> None:
    answer = mesh.pipeline.open(ask(seed=6, prompts=(PROMPT[:4],), max_tokens=1500))
    async with asyncio.timeout(30):
        while answer.stats(0).completion_tokens < CREDIT_TOKENS:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await mesh.kill_core("core-eu")
    async with asyncio.timeout(10):
        while not mesh.engines["core-us"].has_work:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.5)
    assert answer.stats(0).completion_tokens == CREDIT_TOKENS
    answer.close()
    await settled(mesh, ["core-us"])


async def test_two_choices_of_one_ask_differ(mesh: Mesh) -> None:
    answer = mesh.pipeline.open(ask(seed=8, n=2))
    ids: dict[int, list[int]] = {0: [], 1: []}
    async for event in events(answer):
        ids[event.index] += event.ids
    answer.close()
    assert len(ids[0]) == len(ids[1]) == 40
    assert ids[0] == alone(8)
    assert ids[0] != ids[1]


async def test_prompts_of_one_ask_are_answered_as_if_alone(mesh: Mesh) -> None:
    answer = mesh.pipeline.open(ask(seed=8, prompts=(PROMPT, PROMPT[:3]), n=2))
    ids: dict[int, list[int]] = {index: [] for index in range(4)}
    async for event in events(answer):
        ids[event.index] += event.ids
    answer.close()
    for index, prompt in ((0, PROMPT), (2, PROMPT[:3])):
        single, *_ = await read(mesh, ask(seed=8, prompts=(prompt,)))
        assert ids[index] == single
    assert len({tuple(found) for found in ids.values()}) == 4


async def test_what_came_before_an_error_is_taken_before_it(mesh: Mesh) -> None:
    answer = mesh.pipeline.open(ask(seed=8))
    first = await answer.take()
    assert first
    waiting = Event(0, "last words", (1,), 99)
    answer.push(waiting)
    answer.fail(PeerError("gone"))
    assert waiting in await answer.take()
    with pytest.raises(PeerError, match="gone"):
        await answer.take()
    answer.close()


async def test_a_drafter_that_drafts_on_and_is_always_wrong_changes_no_id(mesh: Mesh) -> None:
    config = DraftingConfig(oracle=OracleConfig(acceptance=1.0, token_ms=1.0))
    mesh.pipeline.drafters = drafters_of(config, answer_ids=lambda: range(1, 100))
    ids, *_, stats = await read(mesh, ask(seed=8))
    assert ids == alone(8)
    count = stats.hints["edge-oracle"]
    assert count.offered > 40
    assert count.accepted < 5, "it foretells timed cores, and this is none"


async def test_drafts_see_every_id_once_and_in_order(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    calls: list[int] = []

    def follow(self: NgramDraft, stream: TokenStream, now: float, rtt_ms: float) -> None:
        seen.extend(stream.ids[len(seen) :])
        calls.append(stream.position)

    monkeypatch.setattr(NgramDraft, "follow", follow)
    ids, *_ = await read(mesh, ask(seed=8))
    assert seen == ids[:-1]  # nothing follows the last
    assert len(calls) > 10


async def test_nothing_is_drafted_for_an_answer_that_was_closed(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NgramDraft, "hint", lambda *_: pytest.fail("it was drafted"))
    mesh.pipeline.open(ask(seed=8)).close()
    await asyncio.sleep(0.01)


async def test_each_prompt_earns_its_share_of_retries(mesh: Mesh) -> None:
    earned: list[float] = []
    mesh.pipeline.retries.request = earned.append  # type: ignore[method-assign]
    mesh.pipeline.open(ask(prompts=(PROMPT, PROMPT[:3]), n=2)).close()
    assert len(earned) == 2


async def test_an_answer_ends_where_the_context_does(mesh: Mesh) -> None:
    ids, _, finish, _ = await read(mesh, ask(seed=5, max_tokens=900, context_max=len(PROMPT) + 30))
    assert (ids, finish) == (alone(5)[:30], FinishReason.LENGTH)


async def test_what_was_opened_is_cancelled_when_another_choice_is_refused(tmp_path: Path) -> None:
    async with a_mesh(tmp_path, sequences_max=1, waiting_max=1) as mesh:
        with pytest.raises(CapacityError):
            mesh.pipeline.open(ask(n=20, max_tokens=1000))
        assert mesh.pipeline.answers == set()
        await settled(mesh, ["core-eu", "core-us"])


async def test_without_a_core_the_answer_is_a_capacity_error(mesh: Mesh) -> None:
    for name in ("core-eu", "core-us"):
        await mesh.kill_core(name)
    await mesh.linked(0)
    with pytest.raises(CapacityError):
        mesh.pipeline.open(ask())
    assert mesh.pipeline.answers == set()


async def test_both_cores_killed_before_a_token_is_one_clear_error(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        for engine in mesh.engines.values():
            engine._runner.step_s = 2.0  # type: ignore[attr-defined]
        answer = mesh.pipeline.open(ask())
        await mesh.kill_core("core-eu")
        await asyncio.sleep(0.3)
        await mesh.kill_core("core-us")
        with pytest.raises(FirstlightError, match="died before its first token") as caught:
            async for _ in events(answer):
                pass
        assert (caught.value.http_status, caught.value.code) == (500, "poison")
        answer.close()


async def test_links_that_fall_silent_before_a_token_are_no_poison(tmp_path: Path) -> None:
    async with a_mesh(tmp_path) as mesh:
        for engine in mesh.engines.values():
            engine._runner.step_s = 1.0  # type: ignore[attr-defined]
        answer = mesh.pipeline.open(ask(max_tokens=2))
        for name in ("core-eu", "core-us"):
            assert answer.stats(0).core == name
            await mesh.lose_link(name)  # as a timer of the edge does
            await mesh.linked(2)
        for engine in mesh.engines.values():
            engine._runner.step_s = 0.0  # type: ignore[attr-defined]
        assert [event.finish async for event in events(answer)][-1] is FinishReason.LENGTH
        assert answer.stats(0).moved == 2
        answer.close()


@pytest.mark.parametrize(("kind", "code"), [("died", "poison"), ("peer", None)])
async def test_two_cores_whose_engine_fails_before_a_token_are_poison_and_drained_ones_are_not(
    tmp_path: Path, kind: str, code: str | None
) -> None:
    async with a_mesh(tmp_path) as mesh:
        for engine in mesh.engines.values():
            engine._runner.step_s = 1.0  # type: ignore[attr-defined]
        answer = mesh.pipeline.open(ask())
        request = answer._flights[0].choice.request.id
        for epoch, name in enumerate(("core-eu", "core-us"), 1):
            failed = Failed(request, epoch, kind, "it ends", True)
            link = mesh.pool.link(name)
            assert link is not None
            load = core_pb2.Load(draining=True)
            link._take(core_pb2.CoreFrame(failed=[to_failed(failed)], load=load), monotonic_s())
        error = answer._error
        assert (None if error is None else error.code) == code
        answer.close()


async def test_a_full_home_region_spills_to_the_next(tmp_path: Path) -> None:
    async with a_mesh(tmp_path, sequences_max=1, waiting_max=1) as mesh:
        asked = [ask(seed=number, max_tokens=100) for number in range(3)]
        answers = [mesh.pipeline.open(one) for one in asked]
        cores = {answer.stats(0).core for answer in answers}
        for answer in answers:
            answer.close()
        assert cores == {"core-eu", "core-us"}


async def test_more_tokens_than_any_core_holds_are_refused_by_name(mesh: Mesh) -> None:
    with pytest.raises(RequestError, match="exceed the context of every core") as caught:
        mesh.pipeline.open(ask(max_tokens=5000, context_max=8192))
    assert caught.value.code == "context_length_exceeded"


async def test_a_refusal_of_the_request_itself_is_not_retried(mesh: Mesh) -> None:
    answer = mesh.pipeline.open(ask(prompts=((1, 2, doubles.VOCAB),)))
    with pytest.raises(RequestError, match="expected an id below 128"):
        async for _ in events(answer):
            pass
    answer.close()
    assert answer.stats(0).moved == 0


async def test_a_prompt_goes_to_the_core_whose_sketch_has_its_prefix(mesh: Mesh) -> None:
    await mesh.start_core("core-eu-2", "eu")
    prompts = [[start, *range(1, 120)] for start in range(100, 112)]
    root = root_hash(tokenizer_hash=TOKENIZER, salt=tenant_salt(bytes(32), tenant="local"))
    cores, hot = ("core-eu", "core-eu-2"), (HotPrefixes(), HotPrefixes())
    for number, prompt in enumerate(prompts):
        hot[number % 2].touch(block_hashes(root, prompt))
    mesh.announce({core: one.sketch for core, one in zip(cores, hot, strict=True)})
    await mesh.linked(3)
    served = []
    for prompt in prompts:
        _, _, _, stats = await read(mesh, ask(prompts=(tuple(prompt),), max_tokens=1))
        served.append(stats.core)
    assert served == [*cores] * 6


async def test_who_takes_over_a_running_answer_gets_its_credit_from_the_core(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = mesh.pipeline.open(ask(max_tokens=1000))
    await answer.take()
    link = mesh.pool.link(answer.stats(0).core)
    assert link is not None
    granted: list[int] = []
    monkeypatch.setattr(link, "credit", lambda request, position: granted.append(position))
    answer.rewind({0: 600})  # what it has, whoever told it
    answer.close()
    assert granted == [len(PROMPT) + 600 + CREDIT_TOKENS]
