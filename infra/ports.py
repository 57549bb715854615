"""Free ports on loopback for a local mesh.

Picked at random from a range that lies below what Linux and macOS hand out to outgoing
connections, and free for TCP and UDP alike. Nothing reserves a port between the look and the
child's own bind, so the mesh begins again with other ports if a child finds its port taken.
"""

import random
import socket

from firstlight.shared.errors import ConfigError

PORT_FIRST, PORT_LAST = 20_000, 31_999
_TRIES_MAX = 400


def free_ports(count: int, rng: random.Random, host: str = "127.0.0.1") -> list[int]:
    """`count` different ports that TCP and UDP can bind now; `ConfigError` if there are too few."""
    found: list[int] = []
    for _ in range(_TRIES_MAX):
        port = rng.randint(PORT_FIRST, PORT_LAST)
        if port not in found and _free(host, port):
            found.append(port)
        if len(found) == count:
            return found
    raise ConfigError(
        f"found {len(found)} free ports on {host} in {PORT_FIRST}..{PORT_LAST}, need {count}"
    )


def _free(host: str, port: int) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True
