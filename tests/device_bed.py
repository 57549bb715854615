"""The runner of a GPU on a CPU: its kernels interpreted, or in torch where they are not tested."""

from pathlib import Path
from typing import Any
from weakref import finalize

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from firstlight.kernels.gpu.capture import Capture, launch_again
from firstlight.kernels.gpu.kernels import GpuKernels
from firstlight.shared.engine.device.model import GpuModel
from firstlight.shared.engine.device.runner import GpuRunner
from firstlight.shared.engine.kv.storage import KvStorage
from firstlight.shared.engine.model.load import open_model
from firstlight.shared.engine.plan import EngineConfig

CPU = torch.device("cpu")


def gpu_kernels(
    form: str = "gpu", *, capture: Capture = launch_again, free_bytes: int = 1 << 30
) -> GpuKernels:
    """As if there were a GPU with so much free memory."""
    return GpuKernels(CPU, None, free_bytes, capture, form)


def gpu_model(
    folder: Path, form: str = "gpu", *, weights: str = "f32", capture: Capture = launch_again
) -> GpuModel:
    _, config, source = open_model(folder)
    return GpuModel(config, source, gpu_kernels(form, capture=capture), weights)


def gpu_runner(model: GpuModel, limits: EngineConfig) -> GpuRunner:
    kv = KvStorage(model.config, limits.blocks, limits.host_blocks, model.form)
    return GpuRunner(model, kv, limits.fitted(model.config.context_max))


class Held(TorchDispatchMode):
    """The most that tensors which torch was asked for took at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if all(value.alias_info is None for value in func._schema.returns):
            for one in out if isinstance(out, tuple | list) else (out,):
                if isinstance(one, torch.Tensor):
                    self._change(one.nbytes)
                    finalize(one, self._change, -one.nbytes)
        return out

    def _change(self, size: int) -> None:
        self.bytes += size
        self.most = max(self.most, self.bytes)
