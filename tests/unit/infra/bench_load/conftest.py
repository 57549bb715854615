"""The packaged vocabulary, read once."""

import pytest

from firstlight.infra.bench.load.prompts import Vocabulary
from firstlight.shared.model_files import default_model_path
from firstlight.shared.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(default_model_path())


@pytest.fixture(scope="session")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer)
