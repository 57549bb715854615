"""Settings of the process that answers a name server's questions."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from firstlight.global_lb.config import LbKeys
from firstlight.global_lb.dns import Zone
from firstlight.shared.config import Settings
from firstlight.shared.errors import ConfigError
from firstlight.shared.geography.geoip import GeoipConfig
from firstlight.shared.geography.subnets import is_ip

_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})+")


@dataclass(frozen=True, slots=True)
class ZoneConfig:
    """A zone that is ours alone, delegated to name servers that ask us."""

    name: str = "firstlight.example"
    edges: tuple[str, ...] = ()
    """Names that lead to edges; none: the zone's own."""
    nameservers: tuple[str, ...] = ("ns1.firstlight.example",)
    """Names of the name servers, the first also of the SOA record."""
    addresses: dict[str, tuple[str, ...]] | None = None
    """Addresses of names in this zone, such as those of the name servers."""
    hostmaster: str = "hostmaster.firstlight.example"
    port: Annotated[int, Field(ge=1, le=65535)] = 443
    """Where edges listen that DNS may name."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a name or address that is none."""
        named = (self.name, self.hostmaster, *self.edges, *self.nameservers)
        for name in (*named, *(self.addresses or {})):
            if not _NAME.fullmatch(name):
                raise ConfigError(f"{name!r} is no name in small letters without a dot at its end")
        for name in (*self.edges, *(self.addresses or {})):
            if name != self.name and not name.endswith(f".{self.name}"):
                raise ConfigError(f"{name} does not lie in {self.name}")
        if not self.nameservers:
            raise ConfigError("nameservers: none, expected one or more")
        for name, addresses in (self.addresses or {}).items():
            for address in addresses:
                if not is_ip(address):
                    raise ConfigError(f"addresses.{name}: {address!r} is no address")

    @property
    def zone(self) -> Zone:
        """As answers need it."""
        return Zone(
            name=self.name,
            steered=frozenset(self.edges or (self.name,)),
            nameservers=self.nameservers,
            hosts=dict(self.addresses or {}),
            hostmaster=self.hostmaster,
            port=self.port,
        )


class DnsSettings(Settings):
    """One process beside one name server."""

    socket: Path = Path("/run/firstlight/dns.sock")
    """Where the name server asks; a file that is left there from before is replaced."""
    socket_mode: Annotated[str, Field(pattern="0[0-7]{3}")] = "0660"
    zone: ZoneConfig = ZoneConfig()
    sources: tuple[str, ...] = ("https://127.0.0.1:8480",)
    """Load balancers or edges that are asked which edges there are; all of them, each second."""
    ca_file: Path | None = None
    """Who signs their certificates; null: the development authority."""
    keys: LbKeys = LbKeys()
    geoip: GeoipConfig = GeoipConfig()
    log_level: str = "info"
