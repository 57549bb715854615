"""What is remembered of streams, for how long, and what makes room for what."""

from dataclasses import dataclass

import pytest

from firstlight.edge_node.stream_log import IdempotencyKey, StreamLog, StreamsConfig
from firstlight.shared.errors import RequestError


@dataclass(eq=False)
class Asked:
    name: str
    tenant: str = "acme"
    key: IdempotencyKey | None = None
    choices: int = 1
    ids_kept: int = 10
    sent: bool = True

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(f"{self.name}-{i}" for i in range(self.choices)) if self.sent else ()


def log(**limits: float) -> StreamLog[Asked]:
    return StreamLog(StreamsConfig(**{"streams_max": 4, "ids_max": 100, "keep_s": 60.0} | limits))  # type: ignore[arg-type]


def entered(one: StreamLog[Asked], asked: Asked, now: float = 0.0) -> bool:
    found = one.enter(asked, now)
    one.sent_off(asked)
    return found


def named(key: str, body: bytes = b"{}", tenant: str = "acme", path: str = "/v1") -> IdempotencyKey:
    return IdempotencyKey.of(tenant, path, key, body)


def test_each_choice_is_found_by_its_id() -> None:
    kept, asked = log(), Asked("a", choices=2)
    entered(kept, asked)
    assert kept.find("acme", "a-0", 1.0) == (asked, 0)
    assert kept.find("acme", "a-1", 1.0) == (asked, 1)
    assert kept.find("acme", "a-2", 1.0) is None
    assert kept.find("other", "a-0", 1.0) is None


def test_what_somebody_is_connected_to_stays() -> None:
    kept, asked = log(), Asked("a")
    entered(kept, asked)
    assert kept.find("acme", "a-0", 1e6) is not None
    kept.rest(asked, 1e6)
    kept.wake(asked)
    assert kept.find("acme", "a-0", 2e6) is not None


def test_what_rests_is_forgotten_when_it_is_due() -> None:
    kept, asked = log(), Asked("a", key=named("k"))
    entered(kept, asked)
    kept.rest(asked, 100.0)
    assert kept.sweep(159.0) == 160.0
    assert kept.find("acme", "a-0", 159.0) is not None
    assert kept.find("acme", "a-0", 160.0) is None
    assert kept.named(named("k"), 160.0) is None
    assert (kept.streams, kept.ids, kept.sweep(160.0)) == (0, 0, None)


def test_the_oldest_that_rests_makes_room() -> None:
    kept = log(streams_max=3)
    asked = [Asked(name) for name in "abc"]
    for now, one in enumerate(asked):
        entered(kept, one, float(now))
    kept.rest(asked[1], 3.0)
    kept.rest(asked[0], 4.0)
    assert entered(kept, Asked("d"), 5.0)
    assert kept.find("acme", "b-0", 5.0) is None
    assert all(kept.find("acme", f"{name}-0", 5.0) for name in "acd")


def test_where_all_is_busy_nothing_new_is_entered() -> None:
    kept = log(streams_max=2)
    entered(kept, Asked("a", choices=2))
    late = Asked("b", key=named("k"))
    assert not entered(kept, late)
    assert kept.find("acme", "b-0", 1.0) is None
    assert kept.named(named("k"), 1.0) is None
    kept.rest(late, 1.0)
    assert (kept.streams, kept.ids) == (2, 10)


def test_a_request_beyond_all_limits_evicts_nobody() -> None:
    kept, asked = log(), Asked("a")
    entered(kept, asked)
    kept.rest(asked, 0.0)
    assert not entered(kept, Asked("b", choices=5))
    assert not entered(kept, Asked("c", ids_kept=101))
    assert kept.find("acme", "a-0", 1.0) is not None


def test_ids_that_came_since_count_when_a_request_rests() -> None:
    kept, old, new = log(), Asked("a"), Asked("b")
    entered(kept, old)
    entered(kept, new)
    kept.rest(old, 0.0)
    new.ids_kept = 95
    kept.rest(new, 1.0)
    assert kept.find("acme", "a-0", 1.0) is None
    assert (kept.streams, kept.ids) == (1, 95)


def test_ids_alone_above_the_limit_are_not_kept() -> None:
    kept, asked = log(), Asked("a")
    entered(kept, asked)
    asked.ids_kept = 101
    kept.rest(asked, 0.0)
    assert (kept.streams, kept.ids) == (0, 0)


def test_what_is_forgotten_leaves_nothing() -> None:
    kept, asked = log(), Asked("a", key=named("k"))
    entered(kept, asked)
    kept.forget(asked)
    kept.forget(asked)
    assert kept.find("acme", "a-0", 0.0) is None
    assert kept.named(named("k"), 0.0) is None
    assert (kept.streams, kept.ids) == (0, 0)


def test_ten_thousand_short_streams_stay_within_the_limits() -> None:
    kept = log(streams_max=64, ids_max=500)
    for number in range(10_000):
        asked = Asked(str(number), key=named(str(number)))
        assert entered(kept, asked, number / 1000)
        kept.rest(asked, number / 1000)
        assert kept.streams <= 64
        assert kept.ids <= 500
    maps = (kept._sizes, kept._resting, kept._by_stream, kept._by_key)
    assert {len(one) for one in maps} == {50}


def test_a_key_finds_the_same_request_and_refuses_another() -> None:
    kept, asked = log(), Asked("a", key=named("k"), sent=False)
    entered(kept, asked)
    assert kept.named(named("k"), 0.0) is asked
    for other in (named("k", b"{ }"), named("k", path="/v2")):
        with pytest.raises(RequestError, match="another body") as caught:
            kept.named(other, 0.0)
        assert (caught.value.http_status, caught.value.code) == (422, "idempotency_mismatch")
    assert kept.named(named("k", tenant="other"), 0.0) is None


def test_parts_of_a_key_cannot_be_shifted() -> None:
    assert named("bc", tenant="a").name != named("c", tenant="ab").name


@pytest.mark.parametrize("key", ["", "x" * 256, "a\nb", "ä", "\x7f"])
def test_a_key_that_is_none_is_refused(key: str) -> None:
    with pytest.raises(RequestError, match="printable") as caught:
        named(key)
    assert caught.value.param == "Idempotency-Key"


def test_a_key_may_have_255_characters() -> None:
    assert named("x" * 255) != named("x" * 254)


@pytest.mark.parametrize("limits", [{"streams_max": -1}, {"ids_max": -1}, {"keep_s": -0.1}])
def test_limits_below_nothing_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        log(**limits)
