"""Two namespaces with a router between them, where the machine allows that."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from firstlight.infra.lab.namespaces import missing
from firstlight.infra.lab.network import Network, start_network
from firstlight.infra.lab.topology_file import load_topology

WITHOUT_ROOT = {"test_relay_lab.py", "test_scenarios.py"}
needs_namespaces = pytest.mark.skipif(bool(missing()), reason=f"no namespaces: {missing()}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and item.path.name not in WITHOUT_ROOT:
            item.add_marker(needs_namespaces)


@pytest.fixture
def two_nodes(tmp_path: Path) -> Path:
    """A topology of two nodes, 20 ms apart."""
    node = {"role": "client", "region": "here"}
    file = tmp_path / "two.yaml"
    whole = {
        "regions": {"here": {}},
        "nodes": {"one": node, "other": node},
        "inside": {"rtt_ms": 20},
    }
    file.write_text(yaml.safe_dump(whole))
    return file


@pytest.fixture
def network(two_nodes: Path, tmp_path: Path) -> Iterator[Network]:
    made = start_network(load_topology(two_nodes), two_nodes, tmp_path)
    try:
        yield made
    finally:
        left = made.close()
    assert left == []
