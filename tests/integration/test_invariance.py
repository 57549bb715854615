"""The check of `infra.bench.invariance`, short: no hint changes a text of the real model."""

from firstlight.infra.bench.invariance import run
from firstlight.shared.model_files import default_model_path


def test_hints_of_no_kind_change_a_text_of_the_real_model():
    found = run(4, seed=2, threads=1, path=default_model_path())
    assert found["differing"] == {"ngram": [], "garbage": [], "replay": [], "mailbox": []}
    assert int(str(found["accepted"])) > 12
    assert int(str(found["refused"])) > 40
