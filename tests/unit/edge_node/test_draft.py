"""The edge's drafter: hints that belong to the stream as it is."""

import doubles

from firstlight.edge_node.draft import HINT_IDS_MAX, Draft
from firstlight.shared.stream import TokenStream


def test_a_repetition_is_offered_where_the_stream_stands() -> None:
    request = doubles.request(prompt=(1, 2, 3, 4, 5, 9, 9))
    stream = TokenStream(request.prompt)
    draft = Draft(request)
    stream.append((1, 2))
    hint = draft.after((1, 2), stream)
    assert hint is not None
    assert (hint.start, hint.chain) == (stream.position, stream.chain)
    assert hint.ids[:3] == (3, 4, 5)
    assert len(hint.ids) <= HINT_IDS_MAX


def test_without_a_repetition_there_is_no_hint() -> None:
    request = doubles.request(prompt=(1, 2, 3))
    assert Draft(request).after((), TokenStream(request.prompt)) is None
