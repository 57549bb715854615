"""What an engine was told, in order, and what it planned: written down, and played again.

A `Recorder` stands before an engine and passes every call on that can change a plan. For each it
writes a line of JSON, and with each step the digest of its plan and how long it took. `replay`
makes the same calls on another engine, and names the first step that plans otherwise. Both run on
a runner whose times and ids are functions of its plans: `timed.TimedRunner`.

A record holds the ids of prompts: it is for whoever looks for a fault, and no log.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, is_dataclass, replace
from functools import cache
from hashlib import blake2b
from typing import Any, get_args, get_origin, get_type_hints

from firstlight.shared.blocks import Buffer
from firstlight.shared.engine.engine import Engine
from firstlight.shared.engine.plan import Handover, StepPlan, StepResult
from firstlight.shared.errors import FirstlightError
from firstlight.shared.sampling import Draw
from firstlight.shared.types import Priority, Request, Sampling

Line = dict[str, Any]
RECORD_BYTES_MAX = 64 << 20
_NUMBER_MAX = 1e300
"""No time and no size is larger; NaN and infinity, which JSON in Python knows, are not numbers."""


def plan_digest(plan: StepPlan) -> str:
    """16 hex digits of all that a runner is told to do."""
    told = [
        (
            one.request,
            one.start,
            one.ids,
            one.drafted,
            one.table,
            [_draw(draw) for draw in one.draws],
        )
        for one in plan.sequences
    ]
    return blake2b(json.dumps(told).encode(), digest_size=8).hexdigest()


class Recorder:
    """Passes calls on to an engine and writes them down, up to `bytes_max`; then it says so once.

    `write` takes a line without its end. What is only asked of an engine is asked of `engine`.
    """

    def __init__(
        self, engine: Engine, write: Callable[[str], None], *, bytes_max: int = RECORD_BYTES_MAX
    ) -> None:
        self.engine = engine
        self._write, self._left = write, bytes_max
        self.full = False
        """Whether the record ends before the run."""

    def add(
        self,
        request: Request,
        *,
        epoch: int,
        committed: tuple[int, ...] = (),
        credit: int,
        now: float,
        prefill_only: bool = False,
    ) -> None:
        """As `Engine.add`; what it refuses is written too, as it is refused again."""
        self._note(
            "add",
            request=_request_line(request),
            epoch=epoch,
            committed=committed,
            credit=credit,
            now=now,
            prefill_only=prefill_only,
        )
        self.engine.add(
            request,
            epoch=epoch,
            committed=committed,
            credit=credit,
            now=now,
            prefill_only=prefill_only,
        )

    def candidate(
        self, request: str, start: int, ids: tuple[int, ...], sources: tuple[str, ...]
    ) -> None:
        """As `Engine.candidate`."""
        self._note("candidate", request=request, start=start, ids=ids, sources=sources)
        self.engine.candidate(request, start, ids, sources)

    def expect(self, request: str, end: int, hold_until_s: float) -> None:
        """As `Engine.expect`."""
        self._note("expect", request=request, end=end, hold_until_s=hold_until_s)
        self.engine.expect(request, end, hold_until_s)

    def land(self, block_hash: bytes, payload: Buffer) -> None:
        """As `Engine.land`."""
        self._note("land", block_hash=block_hash.hex(), payload=bytes(payload).hex())
        self.engine.land(block_hash, payload)

    def no_more(self, request: str) -> None:
        """As `Engine.no_more`."""
        self._note("no_more", request=request)
        self.engine.no_more(request)

    def credit(self, request: str, position: int) -> None:
        """As `Engine.credit`."""
        self._note("credit", request=request, position=position)
        self.engine.credit(request, position)

    def cancel(self, request: str) -> None:
        """As `Engine.cancel`."""
        self._note("cancel", request=request)
        self.engine.cancel(request)

    def pin(self, hashes: tuple[bytes, ...]) -> None:
        """As `Engine.pin`."""
        self._note("pin", hashes=_hex(hashes))
        self.engine.pin(hashes)

    def unpin(self, hashes: tuple[bytes, ...]) -> None:
        """As `Engine.unpin`."""
        self._note("unpin", hashes=_hex(hashes))
        self.engine.unpin(hashes)

    def release(self, handover: Handover) -> None:
        """As `Engine.release`."""
        line = {**asdict(handover), "hashes": _hex(handover.hashes)}
        self._note("release", handover=line)
        self.engine.release(handover)

    def flush_cache(self) -> None:
        """As `Engine.flush_cache`."""
        self._note("flush_cache")
        self.engine.flush_cache()

    def step(self, now: float) -> StepResult:
        """As `Engine.step`."""
        result = self.engine.step(now)
        self._note("step", now=now, plan=plan_digest(result.plan), ms=result.ms)
        return result

    def _note(self, do: str, **told: Any) -> None:
        if self.full:
            return
        line = json.dumps({"do": do, **told}, separators=(",", ":"))
        self._left -= len(line) + 1
        if self._left < 0:
            self.full, line = True, '{"do":"full"}'
        self._write(line)


def replay(lines: Iterable[str], engine: Engine) -> Iterator[StepResult]:
    """Make the calls of a record; yields what each step did.

    Raises `FirstlightError` at the first step whose plan is another than the recorded one, and for
    a line that is no call. A record that was full is replayed as far as it goes.
    """
    steps = 0
    for number, text in enumerate(lines, start=1):
        line = _read(text, number)
        do = line.pop("do")
        if do == "full":
            return
        if do != "step":
            _call(engine, do, line, number)
            continue
        _check(line, {"now": float, "plan": str, "ms": float}, do, number)
        result, steps = engine.step(line["now"]), steps + 1
        for what, here in (("plan", plan_digest(result.plan)), ("ms", result.ms)):
            if here != line[what]:
                raise FirstlightError(
                    f"step {steps} (line {number}): {what} is {here}, recorded was {line[what]}"
                )
        yield result


def _read(text: str, number: int) -> Line:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        line = None
    if not isinstance(line, dict) or line.get("do") not in (*_ARGUMENTS, "step", "full"):
        raise FirstlightError(f"line {number} of the record is no call: {text[:80]!r}")
    return line


def _call(engine: Engine, do: str, line: Line, number: int) -> None:
    """Repeat a call; what was refused then is refused now, and changed nothing."""
    try:
        made = _ARGUMENTS[do](line)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FirstlightError(f"line {number} of the record has no such {do}: {error}") from error
    _check(made, _hints(getattr(Engine, do)), do, number)
    size = len(made.get("payload", b""))
    if do == "land" and size != engine.block_bytes:
        raise FirstlightError(
            f"line {number} of the record has no such land: a block of {size} bytes, "
            f"here they have {engine.block_bytes}"
        )
    with suppress(FirstlightError):
        getattr(engine, do)(**made)


def _check(told: Line, hints: Line, do: str, number: int) -> None:
    """Raise `FirstlightError` unless there is a value of the right type for each name."""
    wrong = told.keys() ^ hints.keys()
    wrong |= {name for name in told.keys() & hints.keys() if not _conforms(told[name], hints[name])}
    if wrong:
        raise FirstlightError(f"line {number} of the record has no such {do}: {sorted(wrong)}")


@cache
def _hints(of: Any) -> Line:
    """Names and types of what a call takes, or of a value's fields."""
    return {name: hint for name, hint in get_type_hints(of).items() if name != "return"}


def _conforms(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation says, all that is in it included."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is tuple and parts[-1] is not ...:
        same = isinstance(value, tuple) and len(value) == len(parts)
        return same and all(map(_conforms, value, parts))
    if origin in (tuple, frozenset):
        return isinstance(value, origin) and all(_conforms(one, parts[0]) for one in value)
    if parts:
        return any(_conforms(value, part) for part in parts)
    if hint is float:
        return type(value) in (int, float) and abs(value) <= _NUMBER_MAX
    if isinstance(hint, type) and is_dataclass(hint):
        hints = _hints(hint)
        return isinstance(value, hint) and all(
            _conforms(getattr(value, one.name), hints[one.name]) for one in fields(hint)
        )
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _as_told(line: Line) -> Line:
    return line


_ARGUMENTS: dict[str, Callable[[Line], Line]] = {
    "add": lambda line: {
        **line,
        "request": _request(line["request"]),
        "committed": tuple(line["committed"]),
    },
    "candidate": lambda line: {
        **line,
        "ids": tuple(line["ids"]),
        "sources": tuple(line["sources"]),
    },
    "expect": _as_told,
    "land": lambda line: {name: bytes.fromhex(line[name]) for name in ("block_hash", "payload")},
    "no_more": _as_told,
    "credit": _as_told,
    "cancel": _as_told,
    "pin": lambda line: {"hashes": _unhex(line["hashes"])},
    "unpin": lambda line: {"hashes": _unhex(line["hashes"])},
    "release": lambda line: {
        "handover": replace(Handover(**line["handover"]), hashes=_unhex(line["handover"]["hashes"]))
    },
    "flush_cache": _as_told,
}
"""What each call takes, from its line."""


def _request_line(request: Request) -> Line:
    line = asdict(request)
    return {**line, "salt": request.salt.hex(), "eos_ids": sorted(request.eos_ids)}


def _request(line: Line) -> Request:
    sampling = Sampling(
        **{**line["sampling"], "logit_bias": tuple(map(tuple, line["sampling"]["logit_bias"]))}
    )
    return Request(
        **{
            **line,
            "prompt": tuple(line["prompt"]),
            "salt": bytes.fromhex(line["salt"]),
            "eos_ids": frozenset(line["eos_ids"]),
            "priority": Priority(line["priority"]),
            "sampling": sampling,
        }
    )


def _draw(draw: Draw) -> tuple[object, ...]:
    return draw.position, draw.seed, draw.choice, draw.drafted


def _hex(hashes: Sequence[bytes]) -> list[str]:
    return [one.hex() for one in hashes]


def _unhex(hashes: Sequence[str]) -> tuple[bytes, ...]:
    return tuple(map(bytes.fromhex, hashes))
