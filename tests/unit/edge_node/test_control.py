"""What an edge says of itself, and how old its word from others is."""

import asyncio
from pathlib import Path
from random import Random

from firstlight.edge_node.control import EdgeControl, load_of
from firstlight.edge_node.view import MeshMemory
from firstlight.shared import telemetry
from firstlight.shared.clock import monotonic_s
from firstlight.shared.tls import NodeFiles
from firstlight.shared.types import Load, MeshView, NodeInfo, Role


def test_an_edge_that_is_told_to_stop_drains() -> None:
    stop = asyncio.Event()
    assert load_of({1, 2}, stop) == Load(running=2)
    stop.set()
    assert load_of({1}, stop) == Load(running=1, draining=True)


def test_the_age_of_the_last_view_grows_until_the_next() -> None:
    memory, path = MeshMemory(), Path("unused.pem")
    EdgeControl(
        NodeInfo("edge", Role.EDGE, 1, "eu", "127.0.0.1:1"),
        NodeFiles(path, path, path),
        [],
        memory,
        load=Load,
        rtt_ms=lambda: (),
        rng=Random(1),
    )
    memory.merge(MeshView("lb", 1, ()), monotonic_s() - 60)
    age_s = telemetry.REGISTRY.get_sample_value("firstlight_mesh_view_age_seconds")
    assert age_s is not None
    assert 60 <= age_s < 120
