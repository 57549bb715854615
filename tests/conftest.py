"""What tests of several folders share: the certificate of an edge, and a SIGINT that arrives."""

import os
import signal
from pathlib import Path

import pytest
from edge_tls import TlsFiles, write_tls_files

if not Path("/dev/nvidiactl").exists():  # before anything imports Triton, which looks only once
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """A certificate for localhost and the authority that signed it."""
    return write_tls_files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Shells start what is in the background deaf to SIGINT; programs under test inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
