"""Messages of links to our types and back; `convert_mesh` does it for those of the mesh.

`from_…` functions check what a peer can get wrong and raise `PeerError`, naming the field: a number
that no decision can be made with, a text or list that would be passed on to all nodes for ever.
"""

import re
import sys
from collections.abc import Collection, Iterable
from math import isfinite

from firstlight.shared.errors import BadNumberError, PeerError
from firstlight.shared.geography.subnets import is_ip
from firstlight.shared.proto import core_pb2
from firstlight.shared.routing.geo import on_earth
from firstlight.shared.stream import CHAIN_BYTES
from firstlight.shared.types import (
    MARK_DETAIL_CHARS_MAX,
    MARK_WHAT_CHARS_MAX,
    MARKS_MAX,
    SAMPLING_ORDER_VERSION,
    Commit,
    Done,
    Failed,
    Hint,
    HintCount,
    Load,
    Mark,
    NodeInfo,
    Priority,
    Request,
    Role,
    Sampling,
    TokenLogprobs,
)

TEXT_CHARS_MAX = 256
"""Of a name, a region, an address: every node's are told to all others."""
MODELS_MAX = 64
IPS_MAX = 16
STEP_TIMES_MAX = 256
HINT_SOURCES_MAX = 16
MESSAGE_CHARS_MAX = 1000
"""What is longer is cut: it goes on to a client."""
RETRY_AFTER_S_MAX = 3600.0
_LOAD_AMOUNTS = (
    "kv_used_share",
    "prefill_ms_per_token",
    "queued_prefill_ms",
    "prefill_token_ms",
    "prefill_pair_ms",
    "prefill_share",
)
_ADDRESS = re.compile(r"[A-Za-z0-9._%:\[\]-]+:[0-9]{1,5}")
"""It becomes the host of URLs, which clients are sent to."""


def to_open(request: Request, epoch: int, committed: Iterable[int]) -> core_pb2.Open:
    """A request, assigned to a core as `epoch`, with the ids committed so far."""
    sampling = request.sampling
    return core_pb2.Open(
        request=request.id,
        epoch=epoch,
        choice=request.choice,
        model=request.model,
        tokenizer_hash=request.tokenizer_hash,
        salt=request.salt,
        prompt=request.prompt,
        committed=committed,
        sampling=core_pb2.Sampling(
            order_version=SAMPLING_ORDER_VERSION,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            bias_ids=[token for token, _ in sampling.logit_bias],
            biases=[bias for _, bias in sampling.logit_bias],
            logprobs=sampling.logprobs,
        ),
        seed=request.seed,
        max_tokens=request.max_tokens,
        eos_ids=sorted(request.eos_ids),
        priority=int(request.priority),
        budget_s=request.budget_s,
    )


def from_open(message: core_pb2.Open) -> tuple[Request, int, tuple[int, ...]]:
    """(request, epoch, committed ids)."""
    wire = message.sampling
    if wire.order_version != SAMPLING_ORDER_VERSION:
        raise PeerError(
            f"open.sampling.order_version {wire.order_version}, expected {SAMPLING_ORDER_VERSION}"
        )
    if len(wire.bias_ids) != len(wire.biases):
        raise PeerError(f"open.sampling: {len(wire.bias_ids)} bias ids, {len(wire.biases)} biases")
    if message.priority not in Priority.__members__.values():
        raise PeerError(f"open.priority {message.priority}, expected 0 to {max(Priority)}")
    sampling = Sampling(
        temperature=wire.temperature,
        top_p=wire.top_p,
        top_k=wire.top_k,
        min_p=wire.min_p,
        repetition_penalty=wire.repetition_penalty,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        logit_bias=tuple(zip(wire.bias_ids, wire.biases, strict=True)),
        logprobs=wire.logprobs if wire.HasField("logprobs") else None,
    )
    request = Request(
        id=message.request,
        model=message.model,
        tokenizer_hash=message.tokenizer_hash,
        salt=message.salt,
        prompt=tuple(message.prompt),
        sampling=sampling,
        seed=message.seed,
        choice=message.choice,
        max_tokens=message.max_tokens,
        eos_ids=frozenset(message.eos_ids),
        priority=Priority(message.priority),
        budget_s=message.budget_s,
    )
    return request, message.epoch, tuple(message.committed)


def to_hint(hint: Hint) -> core_pb2.Hint:
    """A hint, for the wire."""
    return core_pb2.Hint(
        request=hint.request, start=hint.start, chain=hint.chain, ids=hint.ids, source=hint.source
    )


def from_hint(message: core_pb2.Hint) -> Hint:
    """A hint is never an error: what is wrong with it shows when it is used."""
    return Hint(message.request, message.start, message.chain, tuple(message.ids), message.source)


def to_commits(commit: Commit) -> core_pb2.Commits:
    """A commit, for the wire."""
    return core_pb2.Commits(
        request=commit.request,
        epoch=commit.epoch,
        position=commit.position,
        ids=commit.ids,
        chain=commit.chain,
        logprobs=[
            core_pb2.Logprobs(
                chosen=item.chosen,
                top_ids=[token for token, _ in item.top],
                top=[logprob for _, logprob in item.top],
            )
            for item in commit.logprobs
        ],
        cached_tokens=commit.cached_tokens,
        queue_ms=commit.queue_ms,
        prefill_ms=commit.prefill_ms,
    )


def from_commits(message: core_pb2.Commits) -> Commit:
    """A commit, checked for its own consistency; the stream checks it against what is known."""
    if len(message.chain) != CHAIN_BYTES:
        raise PeerError(f"commits.chain of {len(message.chain)} bytes, expected {CHAIN_BYTES}")
    if message.logprobs and len(message.logprobs) != len(message.ids):
        raise PeerError(f"commits: {len(message.logprobs)} logprobs for {len(message.ids)} ids")
    for item in message.logprobs:
        if len(item.top_ids) != len(item.top):
            raise PeerError(f"commits.logprobs: {len(item.top_ids)} ids for {len(item.top)} values")
        if not all(map(isfinite, (item.chosen, *item.top))):
            raise PeerError("commits.logprobs holds a value that is not finite")
    return Commit(
        request=message.request,
        epoch=message.epoch,
        position=message.position,
        ids=tuple(message.ids),
        chain=message.chain,
        logprobs=tuple(
            TokenLogprobs(item.chosen, tuple(zip(item.top_ids, item.top, strict=True)))
            for item in message.logprobs
        ),
        cached_tokens=message.cached_tokens if message.HasField("cached_tokens") else None,
        queue_ms=amount("commits.queue_ms", message.queue_ms)
        if message.HasField("queue_ms")
        else None,
        prefill_ms=amount("commits.prefill_ms", message.prefill_ms)
        if message.HasField("prefill_ms")
        else None,
    )


def to_done(done: Done) -> core_pb2.Done:
    """Statistics, for the wire."""
    hints = [
        core_pb2.HintCount(
            source=source, offered=count.offered, verified=count.verified, accepted=count.accepted
        )
        for source, count in done.hints
    ]
    return core_pb2.Done(
        request=done.request, epoch=done.epoch, hints=hints, marks=map(_to_mark, done.marks)
    )


def from_done(message: core_pb2.Done) -> Done:
    """Statistics of a request."""
    few("done.hints", message.hints, HINT_SOURCES_MAX)
    return Done(
        message.request,
        message.epoch,
        tuple((h.source, HintCount(h.offered, h.verified, h.accepted)) for h in message.hints),
        _from_marks("done.marks", message.marks),
    )


def to_failed(failed: Failed) -> core_pb2.Failed:
    """A failure, for the wire."""
    return core_pb2.Failed(
        request=failed.request,
        epoch=failed.epoch,
        kind=failed.kind,
        message=failed.message,
        retry_elsewhere=failed.retry_elsewhere,
        retry_after_s=failed.retry_after_s,
        marks=map(_to_mark, failed.marks),
    )


def from_failed(message: core_pb2.Failed) -> Failed:
    """A failure of a request."""
    return Failed(
        request=message.request,
        epoch=message.epoch,
        kind=message.kind,
        message=message.message[:MESSAGE_CHARS_MAX],
        retry_elsewhere=message.retry_elsewhere,
        retry_after_s=min(RETRY_AFTER_S_MAX, amount("failed.retry_after_s", message.retry_after_s))
        if message.HasField("retry_after_s")
        else None,
        marks=_from_marks("failed.marks", message.marks),
    )


def to_load(load: Load) -> core_pb2.Load:
    """A load, for the wire."""
    return core_pb2.Load(
        running=load.running,
        queued=load.queued,
        queued_prefill_tokens=load.queued_prefill_tokens,
        sequences_max=load.sequences_max,
        kv_used_share=load.kv_used_share,
        steps=load.steps,
        step_ms=[core_pb2.StepMs(rows=rows, ms=ms) for rows, ms in load.step_ms],
        prefill_ms_per_token=load.prefill_ms_per_token,
        queued_prefill_ms=load.queued_prefill_ms,
        prefill_token_ms=load.prefill_token_ms,
        prefill_pair_ms=load.prefill_pair_ms,
        prefill_share=load.prefill_share,
        opens_counted=load.opens_counted,
        draining=load.draining,
    )


def from_load(message: core_pb2.Load) -> Load:
    """A load; a core that says it takes no sequences at all is taken to take one."""
    few("load.step_ms", message.step_ms, STEP_TIMES_MAX)
    kv_used_share, prefill_ms = message.kv_used_share, message.prefill_ms_per_token
    queued_ms, share = message.queued_prefill_ms, message.prefill_share
    token_ms, pair_ms = message.prefill_token_ms, message.prefill_pair_ms
    step_ms = tuple([(item.rows, item.ms) for item in message.step_ms])
    # An edge reads a thousand a second: all numbers at once (the sum is as finite as they are), and
    # one by one only to name what is wrong.
    amounts = [kv_used_share, prefill_ms, queued_ms, token_ms, pair_ms, share]
    amounts += [ms for _, ms in step_ms]
    if min(amounts) < 0.0 or not isfinite(sum(amounts)):
        _name_wrong(message)
    return Load(
        message.running,
        message.queued,
        message.queued_prefill_tokens,
        message.sequences_max or 1,
        kv_used_share,
        message.steps,
        step_ms,
        prefill_ms,
        queued_ms,
        token_ms,
        pair_ms,
        share or 1.0,
        message.opens_counted,
        message.draining,
    )


def _name_wrong(message: core_pb2.Load) -> None:
    """Raise `BadNumberError` for the first number of a load that is none to go by."""
    for name in _LOAD_AMOUNTS:
        amount(f"load.{name}", getattr(message, name))
    for item in message.step_ms:
        amount("load.step_ms", item.ms)


def to_node(info: NodeInfo) -> core_pb2.Node:
    """A node, for the wire."""
    latitude, longitude = info.place or (None, None)
    return core_pb2.Node(
        node=info.node,
        role=str(info.role),
        incarnation=info.incarnation,
        region=info.region,
        address=info.address,
        numerics_class=info.numerics_class,
        models=info.models,
        tokenizer_hash=info.tokenizer_hash,
        context_max=info.context_max,
        latitude=latitude,
        longitude=longitude,
        failure_domain=info.failure_domain,
        ips=info.ips,
    )


def from_node(message: core_pb2.Node) -> NodeInfo:
    """A node; its name, role, region and address must be there."""
    if message.role not in Role.__members__.values():
        raise PeerError(f"node.role {message.role!r}, expected one of {', '.join(Role)}")
    for field in ("node", "region", "address"):
        if not getattr(message, field):
            raise PeerError(f"node.{field} is empty")
    few("node.models", message.models, MODELS_MAX)
    few("node.ips", message.ips, IPS_MAX)
    texts = (message.node, message.region, message.address, message.numerics_class)
    more = (message.tokenizer_hash, message.failure_domain, *message.models, *message.ips)
    for text in (*texts, *more):
        if len(text) > TEXT_CHARS_MAX:
            raise PeerError(
                f"node: {text[:40]!r}… of {len(text)} characters, at most {TEXT_CHARS_MAX} expected"
            )
    if not _ADDRESS.fullmatch(message.address):
        raise PeerError(f"node.address {message.address!r}, expected host:port")
    return NodeInfo(
        node=message.node,
        role=Role(message.role),
        incarnation=message.incarnation,
        region=sys.intern(message.region),  # the same object in all: grouped by in each choice
        address=message.address,
        numerics_class=message.numerics_class,
        models=tuple(message.models),
        tokenizer_hash=message.tokenizer_hash,
        context_max=message.context_max,
        place=_place(message),
        failure_domain=message.failure_domain,
        ips=tuple(address for address in message.ips if is_ip(address)),
    )


def _place(message: core_pb2.Node) -> tuple[float, float] | None:
    """A node that says nonsense of its place is one of which no place is known."""
    if not (message.HasField("latitude") and message.HasField("longitude")):
        return None
    place = message.latitude, message.longitude
    return place if on_earth(*place) else None


def _to_mark(mark: Mark) -> core_pb2.Mark:
    return core_pb2.Mark(what=mark.what, ms=mark.ms, detail=mark.detail)


def _from_marks(field: str, messages: Collection[core_pb2.Mark]) -> tuple[Mark, ...]:
    """They are kept a while and shown to whoever asked: no more, and no longer, than ours."""
    few(field, messages, MARKS_MAX)
    for mark in messages:
        if not 0 < len(mark.what) <= MARK_WHAT_CHARS_MAX:
            raise PeerError(
                f"{field}.what of {len(mark.what)} characters, 1 to {MARK_WHAT_CHARS_MAX} expected"
            )
        if len(mark.detail) > MARK_DETAIL_CHARS_MAX:
            raise PeerError(
                f"{field}.detail of {len(mark.detail)} characters, "
                f"at most {MARK_DETAIL_CHARS_MAX} expected"
            )
    return tuple(Mark(mark.what, amount(f"{field}.ms", mark.ms), mark.detail) for mark in messages)


def amount(field: str, value: float) -> float:
    """A number that can be added and compared: a time, a share, a duration.

    Raises `BadNumberError` for any other.
    """
    if not (isfinite(value) and value >= 0.0):
        raise BadNumberError(f"{field} is {value}, expected a number from 0 on")
    return value


def few(field: str, items: Collection[object], most: int) -> None:
    """Raise `PeerError` for a list that is longer than `most`."""
    if len(items) > most:
        raise PeerError(f"{field} has {len(items)} entries, at most {most} expected")
