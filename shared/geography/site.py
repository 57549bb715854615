"""Where a node stands, as its operator says. Sans-IO."""

from dataclasses import dataclass

from firstlight.shared.errors import ConfigError
from firstlight.shared.geography.subnets import is_ip
from firstlight.shared.routing.geo import Place, guess_ms, on_earth
from firstlight.shared.types import NodeInfo

IPS_MAX = 16


@dataclass(frozen=True, slots=True)
class SiteConfig:
    """What of a node's site others need to know; all of it may be left out."""

    latitude: float | None = None
    longitude: float | None = None
    """In degrees. Without them a database is asked about the node's address."""
    failure_domain: str = ""
    """Nodes of one domain fail together; empty: the region."""
    ips: tuple[str, ...] = ()
    """Addresses that DNS gives for an edge; none: that of `advertise`, if it is one."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for what is no place, or no address."""
        if (self.latitude is None) is not (self.longitude is None):
            raise ConfigError("latitude and longitude must be set together")
        if self.place is not None and not on_earth(*self.place):
            raise ConfigError(f"{self.place[0]}, {self.place[1]} is no place on earth")
        wrong = [address for address in self.ips if not is_ip(address)]
        if wrong or len(self.ips) > IPS_MAX:
            raise ConfigError(f"ips: {wrong or len(self.ips)}, expected up to {IPS_MAX} addresses")

    @property
    def place(self) -> tuple[float, float] | None:
        """Latitude and longitude."""
        if self.latitude is None or self.longitude is None:
            return None
        return self.latitude, self.longitude


def guess_rtt_ms(site: SiteConfig, node: NodeInfo, *, otherwise_ms: float) -> float:
    """From here to a node, before it is measured: by the distance, if both say where they stand."""
    here = None if site.place is None else Place(*site.place)
    return guess_ms(here, said_place(node), otherwise_ms=otherwise_ms)


def said_place(info: NodeInfo) -> Place | None:
    """The place that a node says."""
    return None if info.place is None else Place(*info.place)


def ips_of(info: NodeInfo) -> tuple[str, ...]:
    """Addresses that a client can be given without a further question to DNS."""
    host = info.address.rpartition(":")[0].strip("[]")
    return info.ips or ((host,) if is_ip(host) else ())
