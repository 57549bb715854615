"""The client: finds the nearest edge, races two, goes on with a stream wherever it broke off.

`Transport` and `AsyncTransport` plug into httpx, and so into the `openai` package; `NearestEdges`
says which edges there are and how far. `docs/client.md` has examples that run.
"""

from firstlight.infra.client.edges import Edge, Ranked
from firstlight.infra.client.lookup import DistrustedError
from firstlight.infra.client.nearest import NearestEdges
from firstlight.infra.client.transport import AsyncTransport, Transport
from firstlight.shared.errors import ConfigError, FirstlightError, PeerError

__all__ = [
    "AsyncTransport",
    "ConfigError",
    "DistrustedError",
    "Edge",
    "FirstlightError",
    "NearestEdges",
    "PeerError",
    "Ranked",
    "Transport",
]
