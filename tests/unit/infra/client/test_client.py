"""Which URLs make a client of a server."""

import pytest

from firstlight.client import Transport
from firstlight.infra.client.client import open_client
from firstlight.shared.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://localhost:99999", "the port is not a number from 1 to 65535"),
        ("https://localhost:8443/v1", "has a path"),
        ("localhost:8443", "is not a URL of a server"),
        ("ftp://localhost", "is not a URL of a server"),
        ("https://xn--a.com", "xn--a.com"),
    ],
)
def test_a_url_that_names_no_server_is_refused(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_client(url)


def test_a_transports_server_has_no_path_and_that_is_said() -> None:
    with pytest.raises(ConfigError, match="edge or load balancer, without a path, such as"):
        Transport("https://localhost:8443/v1")
