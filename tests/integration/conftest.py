"""One real mesh for all integration tests that want one: five nodes, two loads of the model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from firstlight.infra.mesh import Mesh, start_mesh


@pytest.fixture(scope="session")
def mesh_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory of the session's mesh."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="session")
def session_mesh(mesh_state: Path) -> Iterator[Mesh]:
    """The session's mesh. Take `mesh` instead, which is whole at the start of every test."""
    mesh = start_mesh(mesh_state)
    try:
        yield mesh
    finally:
        left_over = mesh.stop()
    assert left_over == 0


@pytest.fixture
def mesh(session_mesh: Mesh) -> Mesh:
    """The session's mesh with all its nodes up, whatever an earlier test has killed."""
    dead = [
        name
        for name in session_mesh.plan.names
        if name not in session_mesh.children or not session_mesh.children[name].alive
    ]
    for name in dead:
        session_mesh.start_node(name)
    if dead:
        session_mesh.wait_ready(dead)
        session_mesh.wait_linked()
        session_mesh.running.write(session_mesh.state)
    return session_mesh
