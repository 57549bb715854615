"""Whether the ports that a node will listen on can be bound, for TCP and where needed for UDP."""

import errno
import socket
from collections.abc import Iterator

from firstlight.core_node.config import CoreSettings
from firstlight.edge_node.config import EdgeSettings
from firstlight.infra.checks.finding import Finding, bad, ok, warn
from firstlight.infra.checks.subject import NodeSettings, Subject
from firstlight.shared.errors import ConfigError
from firstlight.shared.rpc import split_address

Wanted = tuple[str, str, tuple[str, ...]]
"""Setting, address, and protocols."""


def look(subject: Subject) -> list[Finding]:
    """One finding an address of each node."""
    found = []
    for role, settings in subject.nodes:
        for setting, address, protocols in listened(settings):
            name = f"port {role} {setting}"
            found.append(judge(name, address, try_bind(address, protocols), meant=subject.meant))
    return found


def listened(settings: NodeSettings) -> Iterator[Wanted]:
    """Where a node of these settings listens."""
    if isinstance(settings, EdgeSettings):
        yield "listen", settings.listen, ("tcp", "udp")
    elif isinstance(settings, CoreSettings):
        yield "listen", settings.listen, ("tcp",)
        if settings.admin is not None:
            yield "admin", settings.admin, ("tcp",)
    else:
        yield "http.listen", settings.http.listen, ("tcp",)
        yield "control.listen", settings.control.listen, ("tcp",)


def judge(name: str, address: str, problem: tuple[str, int] | None, *, meant: bool) -> Finding:
    """`problem`: protocol and errno of the bind that failed. Defaults that are taken only warn."""
    _, _, port = address.rpartition(":")
    if problem is None:
        return ok(name, f"{address} is free" if port != "0" else f"{address}: any free port")
    protocol, number = problem
    if number == errno.EADDRINUSE:
        seen = f"{protocol} {address} is in use"
        do = f"see who has it (lsof -nP -i {protocol}:{port}), or listen elsewhere"
        return (bad if meant else warn)(name, f"{seen} (by this node, if it runs)", do)
    if number == errno.EACCES:
        return bad(name, f"{protocol} {address} is not permitted", "choose a port above 1023")
    if number == errno.EADDRNOTAVAIL:
        do = "listen on an address of this machine, or on 0.0.0.0"
        return bad(name, f"{address} is no address of this machine", do)
    return bad(name, f"{protocol} {address} cannot be used", "expected host:port of this machine")


def try_bind(address: str, protocols: tuple[str, ...]) -> tuple[str, int] | None:
    """Bind and let go; the protocol and errno of the first that fails."""
    try:
        host, port = split_address(address)
    except ConfigError:
        return protocols[0], errno.EINVAL
    kinds = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
    for protocol in protocols:
        try:
            family, kind, proto, _, where = socket.getaddrinfo(
                host, port, type=kinds[protocol], flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind, proto) as probe:
                if protocol == "tcp":
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
        except socket.gaierror:
            return protocol, errno.EADDRNOTAVAIL
        except OSError as error:
            return protocol, error.errno or errno.EINVAL
    return None
