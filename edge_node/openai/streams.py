"""How a client comes back to a stream: by its id, by the key that it gave, by ids, by the journal.

GET /v1/streams/{id}?starting_after=n      here, from what this edge remembers
POST … Idempotency-Key                     here, the same request again
POST … firstlight.resume                   at any edge, with ids, or with what the journal has
"""

from dataclasses import replace

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from firstlight.edge_node import meter
from firstlight.edge_node.answer import Ask
from firstlight.edge_node.journal import Journal
from firstlight.edge_node.openai.reply import Reply
from firstlight.edge_node.openai.schema import Resume
from firstlight.edge_node.openai.sessions import Call, Sessions
from firstlight.edge_node.resume import Seals, check_committed, check_offsets, from_journal
from firstlight.edge_node.stream_log import IdempotencyKey
from firstlight.edge_node.tenants import Tenants
from firstlight.shared.errors import NotFoundError, RequestError

_KEY = "idempotency-key"
_OFFSET_DIGITS_MAX = 10
_SHOWN_CHARS_MAX = 40


class Streams:
    """The handlers, with what they need."""

    def __init__(
        self,
        tenants: Tenants,
        seals: Seals,
        vocab: int,
        sessions: Sessions,
        journal: Journal | None,
    ) -> None:
        self.seals = seals
        self._tenants, self._vocab = tenants, vocab
        self._sessions, self._journal = sessions, journal

    async def get(self, request: Request) -> Response:
        """`GET /v1/streams/{id}?starting_after=n`: what came after the first n ids, then the rest.

        Takes the stream over from whoever is connected to it.
        """
        if request.method != "GET":  # a HEAD must not take over
            raise HTTPException(405, "GET expected", headers={"allow": "GET"})
        tenant = self._tenants.of(request.headers.get("authorization"))
        has = _starting_after(request)
        session, index = self._sessions.find(tenant, request.path_params["stream"])
        known = len(session.progress(index).ids)
        if has > known:
            raise RequestError(
                f"starting_after {has}, but this stream has {known} ids so far",
                param="starting_after",
            )
        session.check_tellable([index])
        meter.gone_on("here")
        # Whoever has ids of the answer has what stood before it.
        dialect = session.call.dialect.later() if has else None
        return Reply(session, has={index: has}, dialect=dialect)

    def reply(self, call: Call, key: IdempotencyKey | None) -> Reply:
        """The answer to a new request, or to one that is known by its key, from its beginning.

        Raises `RequestError` for a key that means another request, or an answer that is not kept.
        """
        known = self._sessions.named(key) if key is not None else None
        if known is None:
            return Reply(self._sessions.begin(call, key))
        known.check_tellable(range(known.choices))
        meter.gone_on("key")
        return Reply(known)

    async def resumed(self, ask: Ask, resume: Resume, *, stream: bool) -> Ask:
        """`ask`, to go on with what the client or the journal has. Raises `FirstlightError`."""
        if not stream:
            raise RequestError("firstlight.resume without stream: true", param="stream")
        if (resume.ids is None) == (resume.streams is None):
            raise RequestError(
                "firstlight.resume: either ids, or streams with offsets, expected",
                param="firstlight.resume.ids",
            )
        if resume.ids is None:
            return await self._from_journal(ask, resume)
        committed = tuple(tuple(ids) for ids in resume.ids)
        ask = replace(ask, committed=committed, numerics_class=resume.numerics_class)
        check_committed(ask, self._vocab)
        self.seals.check(resume.cap, ask)
        meter.gone_on("ids")
        return ask

    async def _from_journal(self, ask: Ask, resume: Resume) -> Ask:
        streams, offsets = resume.streams or [], resume.offsets or []
        check_offsets(ask, len(streams), offsets)
        self.seals.check(resume.cap, ask)
        if ask.sampling.logprobs is not None:
            raise RequestError(
                "the journal has no logprobs: send firstlight.resume.ids", param="logprobs"
            )
        if self._journal is None:
            raise RequestError(
                "this edge keeps no journal of streams: send firstlight.resume.ids",
                param="firstlight.resume.streams",
                code="journal_unavailable",
            )
        written = await self._journal.read(ask, streams)
        ask = from_journal(ask, written, offsets, resume.numerics_class)
        try:
            check_committed(ask, self._vocab)
        except (
            RequestError
        ) as error:  # proven to be ours, and still not for this tokenizer or model
            raise NotFoundError(
                f"the journal cannot be used: {error.message}", code="resume_unknown"
            ) from None
        meter.gone_on("journal")
        return ask


def key_of(request: Request, tenant: str, raw: bytes) -> IdempotencyKey | None:
    """The request's `Idempotency-Key`, if it has one. Raises `RequestError`."""
    given = request.headers.getlist(_KEY)
    if not given:
        return None
    if len(given) > 1:
        raise RequestError(f"{len(given)} Idempotency-Key headers, one expected", param=_KEY)
    return IdempotencyKey.of(tenant, request.scope["path"], given[0], raw)


def _starting_after(request: Request) -> int:
    given = request.query_params.getlist("starting_after") or ["0"]
    text = given[0]
    if len(given) > 1 or not (
        text.isascii() and text.isdigit() and len(text) <= _OFFSET_DIGITS_MAX
    ):
        raise RequestError(
            f"starting_after {text[:_SHOWN_CHARS_MAX]!r}: the last offset that you have expected, "
            "one number from 0",
            param="starting_after",
        )
    return int(text)
