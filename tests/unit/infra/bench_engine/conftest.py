"""The packaged tokenizer, read once."""

import pytest

from firstlight.infra.bench.engine import command
from firstlight.shared.model_files import default_model_path
from firstlight.shared.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(default_model_path())


@pytest.fixture
def tokenizer_at_hand(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "load_tokenizer", lambda path: tokenizer)
