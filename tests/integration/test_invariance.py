"""The check of `infra.bench.invariance`, short: no hint changes a text of the real model."""

import pytest

from firstlight.infra.bench.invariance import run
from firstlight.shared.errors import ConfigError
from firstlight.shared.model_files import default_model_path


def test_hints_of_no_kind_change_a_text_of_the_real_model():
    try:
        path = default_model_path()
    except ConfigError as error:
        pytest.skip(error.message)
    found = run(4, seed=2, threads=1, path=path)
    assert found["differing"] == {"ngram": [], "garbage": [], "replay": [], "mailbox": []}
    assert int(str(found["accepted"])) > 40
    assert int(str(found["refused"])) > 40
