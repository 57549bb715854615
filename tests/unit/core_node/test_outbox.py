"""What waits for a slow link: merged, bounded, in order."""

from firstlight.core_node.outbox import ENDINGS_MAX, FAILED_MAX, Outbox
from firstlight.shared.stream import TokenStream
from firstlight.shared.types import Commit, Done, Failed, TokenLogprobs

PROMPT = (1, 2, 3)


def commits(request: str, groups: list[tuple[int, ...]], epoch: int = 1) -> list[Commit]:
    """Commits of a request whose answer comes in these groups."""
    stream = TokenStream(PROMPT)
    out = []
    for ids in groups:
        position = stream.position
        out.append(Commit(request, epoch, position, ids, stream.append(ids)))
    return out


def test_commits_of_one_request_merge_into_one_that_a_follower_accepts() -> None:
    outbox = Outbox()
    for commit in commits("a", [(5,), (6, 7), (8,)]):
        outbox.commit(commit)
    [merged] = outbox.take().commits
    follower = TokenStream(PROMPT)
    follower.assign()
    assert follower.receive(merged) == (5, 6, 7, 8)


def test_merging_keeps_what_only_the_first_commit_says() -> None:
    first, second = commits("a", [(5,), (6,)])
    outbox = Outbox()
    outbox.commit(Commit("a", 1, first.position, (5,), first.chain, cached_tokens=16, queue_ms=1.5))
    outbox.commit(second)
    [merged] = outbox.take().commits
    assert (merged.cached_tokens, merged.queue_ms) == (16, 1.5)


def test_merging_keeps_a_logprob_entry_an_id() -> None:
    outbox = Outbox()
    for i, commit in enumerate(commits("a", [(5,), (6,)])):
        entry = TokenLogprobs(-0.5 * i, ((7, -1.0),))
        outbox.commit(Commit("a", 1, commit.position, commit.ids, commit.chain, logprobs=(entry,)))
    [merged] = outbox.take().commits
    assert [entry.chosen for entry in merged.logprobs] == [0.0, -0.5]


def test_each_request_has_its_own_commit_in_a_frame() -> None:
    outbox = Outbox()
    for commit in commits("a", [(5,), (6,)]) + commits("b", [(9,)]):
        outbox.commit(commit)
    assert [(c.request, c.ids) for c in outbox.take().commits] == [("a", (5, 6)), ("b", (9,))]


def test_epochs_of_one_request_do_not_merge() -> None:
    outbox = Outbox()
    for commit in commits("a", [(5,)]) + commits("a", [(5,)], epoch=2):
        outbox.commit(commit)
    assert [c.epoch for c in outbox.take().commits] == [1, 2]


def test_what_was_taken_is_gone_and_counts_no_more() -> None:
    outbox = Outbox()
    outbox.commit(commits("a", [(5,)])[0])
    outbox.pong(3)
    assert outbox
    assert outbox.waiting_bytes > 0
    outbox.take()
    assert not outbox
    assert outbox.waiting_bytes == 0
    assert outbox.take().commits == []


def test_a_frame_is_bounded_and_endings_wait_for_all_commits() -> None:
    outbox = Outbox()
    for request in "abc":
        outbox.commit(commits(request, [tuple(range(100))])[0])
    outbox.done(Done("c", 1))
    outbox.fail(Failed("b", 1, "peer", "x", True))
    frames = [outbox.take(bytes_max=300) for _ in range(3)]
    assert [[c.request for c in frame.commits] for frame in frames] == [["a"], ["b"], ["c"]]
    assert [len(frame.done) + len(frame.failed) for frame in frames] == [0, 0, 2]


def test_only_the_latest_ping_is_answered() -> None:
    outbox = Outbox()
    outbox.pong(1)
    outbox.pong(2)
    assert outbox.take().pong == 2
    assert outbox.take().pong is None


def test_forgotten_commits_are_not_sent() -> None:
    outbox = Outbox()
    outbox.commit(commits("a", [(5,)])[0])
    outbox.commit(commits("b", [(6,)])[0])
    outbox.forget("a", 1)
    outbox.forget("a", 1)
    assert [c.request for c in outbox.take().commits] == ["b"]
    assert outbox.waiting_bytes == 0


def test_too_many_bytes_or_failures_make_it_overfull() -> None:
    outbox = Outbox(waiting_bytes_max=500)
    outbox.commit(commits("a", [tuple(range(50))])[0])
    assert not outbox.overfull
    outbox.commit(commits("b", [tuple(range(150))])[0])
    assert outbox.overfull
    failures = Outbox()
    for i in range(FAILED_MAX + 1):
        failures.fail(Failed(str(i), 1, "request", "x", False))
    assert failures.overfull


def test_a_frame_takes_so_many_endings_and_the_next_one_the_rest() -> None:
    outbox = Outbox()
    for number in range(ENDINGS_MAX + 1):
        outbox.done(Done(f"d{number}", 1))
        outbox.fail(Failed(f"f{number}", 1, "peer", "gone", True))
    first, second = outbox.take(), outbox.take()
    assert (len(first.done), len(first.failed)) == (ENDINGS_MAX, ENDINGS_MAX)
    assert [done.request for done in second.done] == [f"d{ENDINGS_MAX}"]
    assert [failed.request for failed in second.failed] == [f"f{ENDINGS_MAX}"]
    assert not outbox
