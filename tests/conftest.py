"""What tests of several folders share: the certificate of an edge on this machine."""

import pytest
from edge_tls import TlsFiles, write_tls_files


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """A certificate for localhost and the authority that signed it."""
    return write_tls_files(tmp_path_factory.mktemp("tls"))
