"""What an error says about itself."""

from firstlight.shared.errors import CONFIG_CHARS_MAX, ConfigError


def test_an_error_that_quotes_a_lying_file_stays_readable() -> None:
    error = ConfigError("model.gguf: key " + "x" * 10_000_000)
    assert error.message.startswith("model.gguf: key x")
    assert len(error.message) == CONFIG_CHARS_MAX + 1
