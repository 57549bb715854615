"""Settings of a load balancer."""

from dataclasses import dataclass, field
from pathlib import Path

from firstlight.global_lb.scale import ScaleConfig
from firstlight.shared.config import Region, Settings
from firstlight.shared.geography.geoip import GeoipConfig
from firstlight.shared.redis_client import RedisConfig
from firstlight.shared.tls import FrontConfig, TlsConfig


@dataclass(frozen=True, slots=True)
class LbHttp:
    """Where clients and people ask."""

    listen: str = "127.0.0.1:8480"
    """host:port; port 0 picks a free one."""
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1")
    """Names and addresses that the development certificate is made for."""


@dataclass(frozen=True, slots=True)
class LbControl:
    """Where nodes join."""

    listen: str = "127.0.0.1:8481"
    """host:port; port 0 picks a free one."""


@dataclass(frozen=True, slots=True)
class DrainsConfig:
    """Where it is kept which nodes an operator wants drained."""

    redis: RedisConfig = field(default_factory=RedisConfig)
    """The same for all replicas; without one the list lives as long as this process."""


@dataclass(frozen=True, slots=True)
class LbKeys:
    """Files with keys; what is null is made beside the certificates."""

    directory_file: Path | None = None
    """The private key that signs lists of edges; the same for all edges and load balancers."""


class LbSettings(Settings):
    """One load balancer process."""

    node: str = "lb-1"
    region: Region = "local"
    http: LbHttp = LbHttp()
    control: LbControl = LbControl()
    admin: str | None = None
    """host:port on loopback for operators, who may drain nodes there; null: nowhere."""
    drains: DrainsConfig = DrainsConfig()
    scale: ScaleConfig = ScaleConfig()
    tls: TlsConfig = TlsConfig()
    front: FrontConfig = FrontConfig()
    keys: LbKeys = LbKeys()
    geoip: GeoipConfig = GeoipConfig()
    history: Path | None = None
    """Where a judge shall find what happened: a directory, or a .jsonl file for this node alone."""
    faults: Path | None = None
    """A Unix socket by which a laboratory makes this node fail; null: none."""
    log_level: str = "info"
