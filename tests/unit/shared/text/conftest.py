"""The tokenizer of the default model, read once for all tests of text."""

import pytest

from firstlight.shared.model_files import default_model_path
from firstlight.shared.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return load_tokenizer(default_model_path())
