"""A row's logits are its own to the bit: alone, in a batch, chunked, as a draft, and rebuilt."""

from random import Random

import pytest
import torch
from cpp_kernels import cpp

from firstlight.shared.engine.kv.storage import KvStorage
from firstlight.shared.engine.model.batch import SequenceRows, join_rows
from firstlight.shared.engine.model.load import LoadedModel

BLOCKS = 160
LENGTH = 150  # crosses the border of a 128 position piece


def tokens(seed: int, count: int) -> list[int]:
    random = Random(seed)
    return [random.randrange(17, 49_000) for _ in range(count)]


KINDS = [
    pytest.param((kernels, threads), marks=marks, id=f"{kernels}-{threads}")
    for kernels, marks in (("eager", ()), ("cpu", cpp))
    for threads in (1, 2)
]


@pytest.fixture(scope="module", params=KINDS)
def shallow(request, first_layers):
    kernels, threads = request.param
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    yield first_layers(kernels, threads)
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def expected(shallow: LoadedModel, prefill) -> torch.Tensor:
    """Logits of the last 9 rows of one sequence, computed in one chunk, alone."""
    kv = shallow.storage(BLOCKS)
    return prefill(shallow, kv, tokens(0, LENGTH), list(range(10)), last=9)


def decode(shallow: LoadedModel, kv: KvStorage, table: list[int], position: int) -> torch.Tensor:
    row = SequenceRows([tokens(0, LENGTH)[position]], position, table, (0,))
    return shallow.transformer.logits(join_rows([row]), kv)[0]


@pytest.mark.parametrize("chunk", [16, 64, 100])
def test_a_prompt_run_in_chunks_has_the_logits_of_one_run_whole(chunk, expected, shallow, prefill):
    kv = shallow.storage(BLOCKS)
    table = Random(chunk).sample(range(BLOCKS), 10)
    assert torch.equal(prefill(shallow, kv, tokens(0, LENGTH), table, chunk, last=9), expected)


def test_a_prompt_over_512_rows_has_the_logits_of_one_run_in_chunks_of_512(shallow, prefill):
    ids = tokens(3, 530)
    kv = shallow.storage(BLOCKS)

    def last(chunk: int, table: list[int]) -> torch.Tensor:
        for start in range(0, len(ids), chunk):
            rows = SequenceRows(ids[start : start + chunk], start, table, (0,))
            logits = shallow.transformer.logits(join_rows([rows]), kv)
        final = SequenceRows(ids[-1:], len(ids) - 1, table, (0,))
        return torch.stack((logits[0], shallow.transformer.logits(join_rows([final]), kv)[0]))

    whole, chunked = last(530, list(range(34))), last(512, list(range(40, 74)))
    assert torch.equal(whole[1], chunked[1])


def test_decoding_token_by_token_has_the_logits_of_prefill(expected, shallow, prefill):
    kv, table = shallow.storage(BLOCKS), list(range(20, 30))
    prefill(shallow, kv, tokens(0, LENGTH - 9), table)
    for index, position in enumerate(range(LENGTH - 9, LENGTH)):
        assert torch.equal(decode(shallow, kv, table, position), expected[index])


@pytest.mark.parametrize("rows", [2, 3, 4, 5, 9])
def test_row_i_of_a_verified_draft_has_the_logits_of_that_row_alone(
    rows, expected, shallow, prefill
):
    kv, table = shallow.storage(BLOCKS), list(range(10))
    ids = tokens(0, LENGTH)
    prefill(shallow, kv, ids[:-rows], table)
    part = SequenceRows(ids[-rows:], LENGTH - rows, table, range(rows))
    assert torch.equal(shallow.transformer.logits(join_rows([part]), kv), expected[-rows:])


def test_a_wrong_draft_that_was_overwritten_leaves_no_trace(expected, shallow, prefill):
    kv, table = shallow.storage(BLOCKS), list(range(10))
    ids = tokens(0, LENGTH)
    prefill(shallow, kv, ids[:-9] + tokens(99, 9), table)
    assert torch.equal(decode(shallow, kv, table, LENGTH - 9), expected[0])


@pytest.mark.parametrize("size", [2, 3, 5, 16, 64])
def test_a_sequence_in_a_batch_has_the_logits_it_has_alone(size, expected, shallow, prefill):
    kv, table = shallow.storage(BLOCKS), list(range(150, 160))
    ids, random = tokens(0, LENGTH), Random(size)
    prefill(shallow, kv, ids[:-1], table)
    others = []
    for other in range(size - 1):  # neighbours of several kinds: decodes, drafts, prompts
        count = random.choice((1, 1, 1, 2, 5, 12))
        first = random.choice((0, 7, 20))
        others.append(SequenceRows(tokens(other + 1, count), first, [2 * other, 2 * other + 1], ()))
    place = random.randrange(size)
    mine = SequenceRows(ids[-1:], LENGTH - 1, table, (0,))
    batch = join_rows([*others[:place], mine, *others[place:]])
    assert torch.equal(shallow.transformer.logits(batch, kv)[0], expected[-1])


def test_two_sequences_that_share_blocks_have_the_logits_of_their_own(expected, shallow, prefill):
    kv, table = shallow.storage(BLOCKS), list(range(10))
    ids = tokens(0, LENGTH)
    prefill(shallow, kv, ids[:-6], table)  # 144 rows: nine full blocks
    forked = [*table[:9], 100]
    parts = [
        SequenceRows(ids[-6:], LENGTH - 6, forked, range(6)),
        SequenceRows(tokens(5, 3), LENGTH - 6, table, range(3)),
    ]
    logits = shallow.transformer.logits(join_rows(parts), kv)
    assert torch.equal(logits[:6], expected[-6:])
    assert not torch.equal(logits[6], expected[-6])


@cpp
def test_the_number_of_threads_changes_no_bit_of_the_kernels_in_c(first_layers, prefill):
    # 600 keys are several chunks, which one sequence alone shares out among threads.
    found = []
    for threads in (1, 2, 3, 5):
        model = first_layers("cpu", threads)
        kv = model.storage(40)
        whole = prefill(model, kv, tokens(0, 600), list(range(38)), last=3)
        row = SequenceRows([17], 600, list(range(38)), (0,))
        found.append(torch.cat((whole, model.transformer.logits(join_rows([row]), kv))))
    assert all(torch.equal(one, found[0]) for one in found)
    assert len({first_layers("cpu", threads).kernels for threads in (1, 2)}) == 1


def test_all_layers_of_the_model_keep_rows_independent(loaded, prefill):
    kv = loaded.storage(40)
    ids = tokens(0, 135)
    whole = prefill(loaded, kv, ids, list(range(9)), last=2)
    prefill(loaded, kv, ids[:-1], list(range(10, 19)), 64)
    parts = [
        SequenceRows(tokens(1, 5), 0, [30], ()),
        SequenceRows(ids[-1:], 134, list(range(10, 19)), (0,)),
        SequenceRows(tokens(2, 1), 0, [31], ()),
    ]
    assert torch.equal(loaded.transformer.logits(join_rows(parts), kv)[0], whole[-1])
