"""The settings of an edge process: one section a part, each a frozen dataclass beside its code."""

from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from firstlight.edge_node.drafting import DraftingConfig
from firstlight.edge_node.http.limits import HttpLimits
from firstlight.edge_node.journal import JournalConfig
from firstlight.edge_node.stream_log import StreamsConfig
from firstlight.edge_node.timeline import TimelineLimits
from firstlight.edge_node.upstream.warmth import LinksConfig
from firstlight.shared.config import Region, Seconds, Settings
from firstlight.shared.geography.geoip import GeoipConfig
from firstlight.shared.geography.site import SiteConfig
from firstlight.shared.tls import FrontConfig, TlsConfig


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """Whose tokenizer and chat template the edge uses; cores must have the same tokenizer."""

    path: Path | None = None
    """A GGUF file or a model folder; null takes the packaged SmolLM2."""


@dataclass(frozen=True, slots=True)
class KeysConfig:
    """Files with keys; what is null is not asked for, or made beside the certificates."""

    tenants_file: Path | None = None
    """`tenant: sha256-of-key` lines; null lets everyone in, on a loopback listener only."""
    salt_file: Path | None = None
    """The secret that separates tenants in the prefix cache; the same for all edges."""
    stream_file: Path | None = None
    """The secret that lets a client go on with a stream at another edge; the same for all edges.

    A second line holds the key before the current one, whose streams can still be gone on with.
    """
    directory_file: Path | None = None
    """The private key that signs lists of edges; the same for all edges and load balancers."""


@dataclass(frozen=True, slots=True)
class SharingConfig:
    """Who may see, by the time that an answer takes, what others have asked before."""

    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Group: its tenants, who share cached prefixes; all others share with nobody."""


class EdgeSettings(Settings):
    """Everything an edge can be told."""

    node: str = "edge"
    region: Region = "local"
    listen: str = "127.0.0.1:8443"
    """host:port, the same number for UDP (HTTP/3) and TCP (HTTP/2, 1.1)."""
    advertise: str | None = None
    """host:port that clients are told; null: as listened."""
    site: SiteConfig = SiteConfig()
    geoip: GeoipConfig = GeoipConfig()
    load_balancers: tuple[str, ...] = ()
    """host:port of the control address of each replica."""
    tls: TlsConfig = TlsConfig()
    front: FrontConfig = FrontConfig()
    keys: KeysConfig = KeysConfig()
    sharing: SharingConfig = SharingConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    drafting: DraftingConfig = DraftingConfig()
    http: HttpLimits = HttpLimits()
    links: LinksConfig = LinksConfig()
    timelines: TimelineLimits = TimelineLimits()
    streams: StreamsConfig = StreamsConfig()
    journal: JournalConfig = JournalConfig()
    drain_s: Seconds = 10.0
    """How long running answers may take after SIGTERM."""
    metrics: bool | None = None
    """Whether `/metrics` is served to clients; null: only on a loopback listener."""
    history: Path | None = None
    """Where a judge shall find what happened: a directory, or a .jsonl file for this node alone."""
    faults: Path | None = None
    """A Unix socket by which a laboratory makes this node fail; null: none."""
    log_level: str = "warning"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
