"""Whether the load balancers that a node names can be reached, and are load balancers."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from firstlight.infra.checks.finding import Finding, bad, ok, warn
from firstlight.infra.checks.subject import Subject
from firstlight.shared.errors import ConfigError
from firstlight.shared.rpc import split_address
from firstlight.shared.tls import made_files, role_host
from firstlight.shared.types import Role

CONNECT_S = 1.5


def look_named(subject: Subject) -> list[Finding]:
    """Whether every edge and core names a load balancer at all."""
    if not subject.meant:
        return []
    found = []
    for role, settings in subject.nodes:
        if role is not Role.LB and not getattr(settings, "load_balancers", ()):
            do = "load_balancers: [host:8481], the control address of each"
            found.append(warn("load balancers", f"the {role} names none: it stays alone", do))
    return found


def addresses(subject: Subject) -> Iterator[tuple[str, Path]]:
    """Control address of each load balancer that a node names, and the authority to check it by."""
    for role, settings in subject.nodes:
        made = made_files(subject.tls_directory(settings), role, settings.node)
        for address in getattr(settings, "load_balancers", ()):
            yield address, settings.tls.ca_file or made.ca


def look_at(address: str, ca: Path) -> list[Finding]:
    """Connect, and shake hands as a node would: the name in the certificate is the role's."""
    name = f"load balancer {address}"
    try:
        host, port = split_address(address)
        with closing(socket.create_connection((host, port), timeout=CONNECT_S)) as plain:
            return [_handshake(name, plain, ca)]
    except ConfigError as error:
        return [bad(name, error.message, "load_balancers: [host:port]")]
    except OSError as error:
        reason = error.strerror or str(error) or "timed out"
        do = "start it, or open the way: routes, firewall, its control.listen"
        return [bad(name, f"cannot be reached: {reason}", do)]


def _handshake(name: str, plain: socket.socket, ca: Path) -> Finding:
    """Only the server is looked at; whether it takes this node's certificate it says on joining."""
    if not ca.exists():
        do = f"with an authority of its own here, copy that of the load balancer to {ca.parent}"
        return warn(name, f"reachable, but there is no {ca} to check it by", do)
    try:
        context = ssl.create_default_context(cafile=str(ca))
        context.set_alpn_protocols(["h2"])
        with context.wrap_socket(plain, server_hostname=role_host(Role.LB)):
            return ok(name, "reachable, and a load balancer of the same authority")
    except ssl.SSLCertVerificationError as error:
        do = f"name the control address of a load balancer whose authority is in {ca}"
        return bad(name, f"its certificate is refused: {error.verify_message}", do)
    except (ssl.SSLError, ConnectionError, TimeoutError) as error:
        do = "name the control port of a load balancer (8481 by default)"
        return bad(name, f"it does not speak TLS: {error}", do)
