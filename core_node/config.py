"""The settings of a core process: one section a part, each a frozen dataclass beside its code."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from firstlight.core_node.drafting import DraftingSection
from firstlight.core_node.kv.disk import DiskConfig
from firstlight.core_node.kv.index import IndexConfig
from firstlight.shared.config import Region, Seconds, Settings
from firstlight.shared.engine.plan import EngineConfig
from firstlight.shared.engine.steptable import StepTable
from firstlight.shared.errors import ConfigError
from firstlight.shared.geography.site import SiteConfig
from firstlight.shared.routing.fetch import Way
from firstlight.shared.tls import TlsConfig


@dataclass(frozen=True, slots=True)
class GpuSection:
    """What a core does with its GPU, if `device` is one."""

    memory_share: float = 0.9
    """Of the memory that is free when the core starts, what weights, the largest step and the KV
    pool may take together: the pool gets what is left, in the place of `engine.blocks`."""
    graphs: bool = True
    """Steps are captured and replayed; false: every operation is launched each time. Changes no
    bit."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a share that is none."""
        if not 0 < self.memory_share <= 1:
            raise ConfigError(f"memory_share is {self.memory_share}, not above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class ModelSection:
    """What the core computes with."""

    path: Path | None = None
    """A GGUF file, or a folder with safetensors; null takes the packaged SmolLM2."""
    timed: Literal["h100-8b", "h100-70b", "smollm2-cpu"] | StepTable | None = None
    """Nothing is computed: steps take what this table says, and ids are a function of those before
    them. For laboratories and capacity planning; of `path` only the vocabulary is used."""
    name: str | None = None
    """What requests call it; null takes the file's or folder's own name."""
    weights: Literal["auto", "q4", "q8", "bf16", "f32"] = "auto"
    """`auto`: as the file holds them where the C++ kernels can, else 8 bits; float32 in torch; on a
    GPU as the file holds them where its kernels can, else bf16."""
    device: str = "cpu"
    """`cuda`, or `cuda:1` for the second one, computes on that GPU, or the core does not start."""
    gpu: GpuSection = GpuSection()
    kernels: Literal["auto", "cpu", "eager", "reference"] = "auto"
    """On a CPU. `cpu`: in C++, `eager`: in torch; `auto` takes the first where it can run."""
    window: int = 0
    """Tokens that a row sees, with `sinks` of the text's first ones beside them; 0: all. For texts
    longer than those that the model was trained on (docs/models.md says at what cost)."""
    sinks: int = 0
    threads: int = 1
    """Of one step. With torch's kernels it is part of the numerics class: cores that shall continue
    each other's answers have the same."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a timed core on a GPU."""
        if self.timed is not None and self.device != "cpu":
            raise ConfigError(f"device is {self.device!r}, not cpu: a timed core computes nothing")


@dataclass(frozen=True, slots=True)
class KvSection:
    """KV beyond one process: what is kept over a restart, and what cores lend each other."""

    index: IndexConfig = field(default_factory=IndexConfig)
    disk: DiskConfig = field(default_factory=DiskConfig)
    ways: tuple[Way, ...] = tuple(Way)
    """How a prefix that only the disk or another core has may come; the best of them is taken.

    Where a link is dear, `recompute` alone leaves it be. `fetch` alone waits for what is on its way
    whatever it takes, `split` alone computes beside it. Without both it is computed.
    """
    mac_key_file: Path | None = None
    """The secret that proves KV to be a core's own; the same for all cores that share KV.

    A second line holds the key before the current one. Null: made beside the certificates.
    """

    def __post_init__(self) -> None:
        """Raise `ConfigError` for ways that are none, or twice the same."""
        told = ", ".join(self.ways)
        if not self.ways or len(set(self.ways)) < len(self.ways):
            raise ConfigError(f"ways is [{told}], not one or more of {', '.join(Way)}, each once")


class CoreSettings(Settings):
    """Everything a core can be told."""

    node: str = "core"
    region: Region = "local"
    listen: str = "127.0.0.1:8500"
    """host:port of the links; port 0 picks a free one."""
    advertise: str | None = None
    """host:port that edges are told; null: as listened."""
    admin: str | None = "127.0.0.1:0"
    """host:port of health, metrics and the cache switch, on loopback; null: none."""
    site: SiteConfig = SiteConfig()
    load_balancers: tuple[str, ...] = ()
    """host:port of the control address of each replica."""
    tls: TlsConfig = TlsConfig()
    model: ModelSection = ModelSection()
    engine: EngineConfig = EngineConfig()
    drafting: DraftingSection = DraftingSection()
    kv: KvSection = KvSection()
    drain_s: Seconds = 10.0
    """How long running requests may take after SIGTERM; then they go on at other cores."""
    history: Path | None = None
    """Where a judge shall find what happened: a directory, or a .jsonl file for this node alone."""
    faults: Path | None = None
    """A Unix socket by which a laboratory makes this node fail; null: none."""
    log_level: str = "warning"
