"""A window and sinks: texts longer than any that a model was trained on."""

import pytest
import torch
from families_bed import CASES, random_model, some_ids, their_logits, write_model

from firstlight.core_node.config import ModelSection
from firstlight.core_node.loading import load_engine
from firstlight.shared.engine.model.batch import SequenceRows, join_rows
from firstlight.shared.engine.model.load import load_model
from firstlight.shared.engine.plan import EngineConfig
from firstlight.shared.errors import ConfigError

IDS = some_ids(300)
TABLE = [7, 2, 9, 0, 4, 11, 1, 5, 3, 8, 6, 10, 18, 12, 17, 13, 16, 14, 15]
WINDOW, SINKS = 20, 4


@pytest.fixture(scope="module")
def shallow(tmp_path_factory):
    """One layer: what a row sees is then all that its logits depend on."""
    config, kind, extra = CASES["llama-3"]
    CASES["one-layer"] = (config, kind, extra | {"num_hidden_layers": 1})
    theirs = random_model("one-layer")
    CASES.pop("one-layer")
    return theirs, write_model(tmp_path_factory.mktemp("one"), theirs)


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    theirs = random_model("qwen3")
    theirs.config.max_position_embeddings = 64
    return theirs, write_model(tmp_path_factory.mktemp("two"), theirs)


def load(folder, kernels="eager", window=WINDOW, sinks=SINKS):
    return load_model(folder, kernels=kernels, weights="f32", window=window, sinks=sinks)


@pytest.mark.parametrize("kernels", ["eager", "reference"])
def test_a_row_sees_sinks_and_window_as_one_short_text(kernels, shallow, prefill):
    theirs, folder = shallow
    model = load(folder, kernels)
    found = prefill(model, model.storage(19), IDS, TABLE, 50, last=300)
    for position in (0, 3, 4, 19, 23, 24, 25, 127, 128, 150, 299):
        seen = IDS[: position + 1]
        if len(seen) > SINKS + WINDOW:
            seen = IDS[:SINKS] + seen[-WINDOW:]
        expected = their_logits(theirs, seen)[-1]
        assert (found[position] - expected).abs().max() < 2e-5 * expected.abs().max(), position


def test_a_text_that_fits_has_the_logits_of_the_whole(deep, prefill):
    theirs, folder = deep
    model = load(folder, window=50)
    ids = IDS[:54]
    found = prefill(model, model.storage(4), ids, [0, 1, 2, 3], 16, last=54)
    expected = their_logits(theirs, ids)
    assert (found - expected).abs().max() < 2e-5 * expected.abs().max()


def test_a_text_may_be_longer_than_the_model_was_trained_for(deep, prefill):
    _, folder = deep
    model = load(folder)
    assert model.config.context_max > len(IDS)
    eager = prefill(model, model.storage(19), IDS, TABLE, last=9)
    other = load(folder, "reference")
    assert (eager - prefill(other, other.storage(19), IDS, TABLE, last=9)).abs().max() < 1e-4
    plain = load(folder, window=0, sinks=0)
    with pytest.raises(ValueError, match=r"positions has a value outside of 0…63"):
        prefill(plain, plain.storage(19), IDS, TABLE, last=9)


def test_rows_keep_their_bits_in_company_and_in_chunks(deep, prefill):
    _, folder = deep
    model = load(folder)
    expected = prefill(model, model.storage(19), IDS, TABLE, last=3)
    kv = model.storage(30)
    prefill(model, kv, IDS[:-3], TABLE, 16)
    parts = [
        SequenceRows(some_ids(40), 0, [20, 21, 22], ()),
        SequenceRows(IDS[-3:], 297, TABLE, range(3)),
        SequenceRows([5], 0, [23], ()),
    ]
    assert torch.equal(model.transformer.logits(join_rows(parts), kv), expected)


def test_what_a_window_has_passed_is_not_seen_through_one_layer(shallow, prefill):
    _, folder = shallow
    model = load(folder)
    expected = prefill(model, model.storage(19), IDS, TABLE, last=1)
    for position, seen in ((3, True), (4, False), (279, False), (280, True)):
        ids = list(IDS)
        ids[position] ^= 1
        found = prefill(model, model.storage(19), ids, TABLE, last=1)
        assert torch.equal(found, expected) is not seen, position


def test_another_window_is_another_numerics_class(shallow):
    _, folder = shallow
    classes = {load(folder, window=size, sinks=n).numerics_class for size, n in ((9, 1), (9, 2))}
    assert len(classes | {load(folder, window=0, sinks=0).numerics_class}) == 3


@pytest.mark.parametrize(
    ("window", "sinks", "wrong"),
    [
        (20, 0, "sinks 0 and window 20"),
        (0, 4, "sinks 4 and window 0"),
        (20, 129, "sinks 129"),
        (-5, 4, "window -5"),
        (61, 4, "4 sinks and a window of 61 are more than the 64 positions"),
    ],
)
def test_a_window_that_cannot_be_is_refused(window, sinks, wrong, deep):
    with pytest.raises(ConfigError, match=wrong):
        load(deep[1], window=window, sinks=sinks)


def test_a_model_with_a_window_of_its_own_takes_no_other(tmp_path):
    write_model(tmp_path, random_model("mistral-window"))
    with pytest.raises(ConfigError, match="the mistral model has a window of its own"):
        load(tmp_path)


def test_a_core_told_so_takes_longer_texts(deep):
    _, folder = deep
    section = ModelSection(path=folder, kernels="eager", window=WINDOW, sinks=SINKS)
    loaded = load_engine(section, EngineConfig(blocks=20, context_max=4096))
    assert loaded.offer.context_max == 20 * 16
    plain = load_engine(ModelSection(path=folder, kernels="eager"), EngineConfig(blocks=20))
    assert plain.offer.context_max == 64
