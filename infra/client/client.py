"""`open_client`: the one way to talk to an edge, whatever the HTTP version."""

import ssl
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from firstlight.infra.client.http3 import Http3Client
from firstlight.infra.client.response import Client, HttpVersion
from firstlight.infra.client.tcp import TcpClient
from firstlight.shared.errors import ConfigError


def open_client(
    url: str,
    http: HttpVersion = "2",
    *,
    ca_file: Path | None = None,
    server_name: str | None = None,
    connect_timeout_s: float = 5.0,
    tls: ssl.SSLContext | None = None,
    keep_warm_s: float = 0.0,
) -> Client:
    """A client of the server at `url` (scheme, host and port); it connects at its first request.

    `ca_file` holds the certificates to trust in place of the system's; `server_name` is the name
    that the server's certificate must carry when it is not the host of the URL. `keep_warm_s`: for
    so long an idle connection of HTTP/3 is kept alive. Raises `ConfigError` for a URL or version
    that cannot be served.
    """
    parts = urlsplit(url)
    try:
        port = parts.port or 443
    except ValueError as error:
        raise ConfigError(f"{url!r}: the port is not a number from 1 to 65535") from error
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise ConfigError(f"{url!r} is not a URL of a server, such as https://localhost:8443")
    try:
        _ = httpx.URL(url).host
    except (httpx.InvalidURL, UnicodeError) as error:  # an internationalized name that is none
        raise ConfigError(f"{url!r}: {error}") from error
    if parts.path not in ("", "/"):
        raise ConfigError(f"{url!r} has a path; expected a server, such as https://localhost:8443")
    if http == "3":
        if parts.scheme != "https":
            raise ConfigError(f"HTTP/3 needs https, not {url!r}")
        return Http3Client(
            parts.hostname,
            port,
            ca_file=ca_file,
            server_name=server_name,
            connect_timeout_s=connect_timeout_s,
            keep_warm_s=keep_warm_s,
        )
    if http not in ("1", "2"):
        raise ConfigError(f"http is {http!r}; it can be '1', '2' or '3'")
    return TcpClient(
        f"{parts.scheme}://{parts.netloc}",
        http2=http == "2",
        ca_file=ca_file,
        server_name=server_name,
        connect_timeout_s=connect_timeout_s,
        tls=tls,
    )
