"""A capture on a CPU that is as strict as a graph on a GPU.

It runs once, and keeps every operation of torch and every launch of a kernel with the very tensors
and numbers that it was called with. A replay does exactly these again, in the same memory: whatever
Python would decide anew, or make of another number, it does not see. That a number was read back is
noted; on a device it would be an error.
"""

from collections.abc import Callable, MutableSequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime.interpreter import InterpretedFunction

_ALLOCATES = ("aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided")
_READS = ("aten::_local_scalar_dense",)
Call = Callable[[], None]


class Tape:
    """`kernels.gpu.capture.Capture`."""

    def __init__(self) -> None:
        self.reads = 0
        """Numbers that captured runs read back."""
        self.replays = 0

    def __call__(self, run: Call) -> Call:
        run()
        calls: list[Call] = []
        mode = _Recorder(calls)
        with mode, launches(calls):
            run()
        self.reads += mode.reads

        def replay() -> None:
            self.replays += 1
            for call in calls:
                call()

        return replay


class _Recorder(TorchDispatchMode):
    def __init__(self, calls: list[Call]) -> None:
        super().__init__()
        self._calls, self.reads = calls, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        out = func(*args, **given)
        name = func._schema.name
        self.reads += name in _READS
        aliases = [value.alias_info for value in func._schema.returns]
        if name in _ALLOCATES or name in _READS:
            return out
        if any(alias is not None and not alias.is_write for alias in aliases):
            return out  # a view: what it shows is what the replay writes there
        in_place = any(alias is not None for alias in aliases)
        self._calls.append(lambda: _again(func, args, given, None if in_place else out))
        return out


def _again(func: Any, args: Any, given: Any, out: Any) -> None:
    made = func(*args, **given)
    if out is None:
        return
    pairs = zip(out, made, strict=True) if isinstance(out, tuple | list) else ((out, made),)
    for kept, fresh in pairs:
        kept.copy_(fresh)


class launches:
    """Kernels run, and are kept, beside what torch is asked for."""

    def __init__(self, calls: MutableSequence[Call]) -> None:
        self._calls, self._run = calls, InterpretedFunction.run

    def __enter__(self) -> None:
        calls, run = self._calls, self._run

        def kept(kernel: Any, *args: Any, **given: Any) -> None:
            with _disable_current_modes():
                run(kernel, *args, **given)
            calls.append(lambda: run(kernel, *args, **given))

        InterpretedFunction.run = kept

    def __exit__(self, *_: object) -> None:
        InterpretedFunction.run = self._run
