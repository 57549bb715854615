"""One recorded run for all tests of the judge, and a copy of it to each test that alters it."""

import asyncio
from pathlib import Path

import pytest
from judge_bed import Altered, altered, record


@pytest.fixture(scope="session")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a healthy run with a killed core left."""
    return asyncio.run(record(tmp_path_factory.mktemp("run")))


@pytest.fixture
def run(histories: Path, tmp_path: Path) -> Altered:
    """That run, to be altered."""
    return altered(histories, tmp_path / "altered")
