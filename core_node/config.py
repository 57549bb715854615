"""The settings of a core process: one section a part, each a frozen dataclass beside its code."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from firstlight.shared.blocks import BLOCK_TOKENS
from firstlight.shared.config import Region, Seconds, Settings
from firstlight.shared.engine.plan import EngineConfig
from firstlight.shared.tls import TlsConfig


@dataclass(frozen=True, slots=True)
class ModelSection:
    """What the core computes with."""

    path: Path | None = None
    """A GGUF file, or a folder with safetensors; null takes the packaged SmolLM2."""
    name: str | None = None
    """What requests call it; null takes the file's or folder's own name."""
    weights: Literal["f32", "bf16"] = "f32"
    kernels: str = "cpu"
    threads: int = 1
    """Part of the numerics class: cores that shall continue each other's answers have the same."""


@dataclass(frozen=True, slots=True)
class DraftingSection:
    """Hints that the core makes for itself."""

    ngram: bool = True
    """What followed the last time that the text looked like this."""


@dataclass(frozen=True, slots=True)
class EngineSection:
    """Limits of the engine; `shared.engine.plan.EngineConfig` says what each means."""

    blocks: int = 1024
    """KV blocks of 16 tokens."""
    context_max: int = 8192
    """Tokens of a prompt and its answer; cut to the model's own, and to what the blocks hold."""
    sequences_max: int = 16
    waiting_max: int = 64
    step_tokens_max: int = 512
    prefill_chunk: int = 256
    step_max_ms: float = 100.0
    step_alone_max_ms: float = 250.0
    hint_ids_max: int = 7
    credit_timeout_s: float = 30.0
    speculation: Literal["auto", "always", "off"] = "auto"

    def limits(self, context_max: int) -> EngineConfig:
        """The engine's own configuration, for a model of this context. Raises `ConfigError`."""
        room = self.blocks * BLOCK_TOKENS
        values = asdict(self) | {"context_max": min(self.context_max, context_max, room)}
        return EngineConfig(**values)


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
    load_balancers: tuple[str, ...] = ()
    """host:port of the control address of each replica."""
    tls: TlsConfig = TlsConfig()
    model: ModelSection = ModelSection()
    engine: EngineSection = EngineSection()
    drafting: DraftingSection = DraftingSection()
    drain_s: Seconds = 10.0
    """How long running requests may take after SIGTERM; then they go on at other cores."""
    log_level: str = "warning"
