"""A desk that answers about three edges, with a database that knows London and Tokyo."""

from pathlib import Path
from typing import Any

from mmdb_bed import write_database

from firstlight.shared.geography.desk import Desk
from firstlight.shared.geography.geoip import Geoip
from firstlight.shared.geography.signing import Signer
from firstlight.shared.types import Load, NodeInfo, Report, Role

SIGNER = Signer([bytes(range(32))])
PLACES = {"lon": (51.5, -0.1), "par": (48.9, 2.4), "tok": (35.7, 139.7)}
LONDONER, STRANGER = "81.2.69.7", "198.51.100.1"


def edge(node: str, **load: Any) -> Report:
    info = NodeInfo(
        node, Role.EDGE, 1, node, f"{node}.test:443", place=PLACES.get(node), ips=("192.0.2.1",)
    )
    return Report(info, 1, Load(**load))


def desk(folder: Path, *reports: Report, now: list[float] | None = None) -> Desk:
    """That of the edge in Tokyo."""
    write_database(folder / "places.mmdb")
    geoip = Geoip(folder)
    geoip.refresh()
    clock = now or [0.0]
    told = reports or tuple(map(edge, PLACES))
    return Desk("tok", lambda: told, geoip, SIGNER, now=lambda: clock[0])
