"""Steps over memory that stays where it is: what differs between two of them are numbers in it.

Every shape of step (`buckets`) has its layout of one buffer of inputs; its launches are captured
when it first comes and replayed from then on. The host writes the numbers of a plan, sends them in
one copy, replays, and sends what is asked of sampled rows while the device is busy with the layers.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firstlight.kernels.gpu.capture import Run, launch_again
from firstlight.kernels.gpu.kernels import GpuKernels
from firstlight.kernels.plan import AttentionPlan
from firstlight.shared.engine.device import asked as asking
from firstlight.shared.engine.device.asked import Asked
from firstlight.shared.engine.device.buckets import SPAN_ROWS, Bucket, Limits, captured
from firstlight.shared.engine.device.decoder import Decoder
from firstlight.shared.engine.device.inputs import Inputs, Writer, clear, fields
from firstlight.shared.engine.device.packed import Staging, size_of
from firstlight.shared.engine.plan import StepPlan

_ASKED_BYTES = 64 << 10
"""At first; doubled whenever penalties look at more."""


@dataclass(frozen=True)
class _Prepared:
    """One shape: where its numbers are written, and what runs it."""

    inputs: Inputs
    size: int
    replay: Run
    kept: bool
    """Whether it was captured."""


class Steps:
    """A decoder over one pool, for steps within limits."""

    def __init__(
        self, decoder: Decoder, kernels: GpuKernels, pages: Tensor, limits: Limits, vocab: int
    ) -> None:
        self._decoder, self._kernels, self._pages = decoder, kernels, pages
        self._limits, self._vocab = limits, vocab
        self._writer = Writer(pages.shape[2], vocab)
        device = kernels.device
        self._inputs = Staging(device, size_of(fields(limits.largest)))
        self._asked = Staging(device, _ASKED_BYTES)
        hidden = decoder.hidden
        self._rows = torch.empty(limits.rows, hidden, dtype=decoder.dtype, device=device)
        """What the layers leave of each row."""
        self._none = torch.empty(0, 2, dtype=torch.int32, device=device)
        self._prepared: dict[Bucket, _Prepared] = {}

    @property
    def captures(self) -> int:
        """Shapes that were captured so far."""
        return sum(one.kept for one in self._prepared.values())

    def run(self, plan: StepPlan) -> tuple[Asked, NDArray[np.int32]] | None:
        """Keys and values of all rows; what was asked, and what became of it (`asked.choose`).

        None if nothing was asked. Raises `ValueError` for a plan that contradicts the limits, the
        pool or the vocabulary, before anything is launched.
        """
        context = max(one.start + len(one.ids) for one in plan.sequences)
        bucket = self._limits.bucket(plan.rows, context)
        if len(plan.sequences) > bucket.sequences:
            raise ValueError(
                f"a step of {len(plan.sequences)} sequences, expected at most {bucket.sequences}"
            )
        prepared = self._prepared.get(bucket) or self._prepare(bucket)
        self._writer.write(plan, prepared.inputs)
        self._inputs.send(prepared.size)
        prepared.replay()
        asked = asking.ask(plan, self._vocab)
        if asked is None:
            # Nothing is read back, so nothing else waits: the next step would write its numbers
            # over those that are not yet sent, and this one would seem to take no time.
            self._kernels.wait()
            return None
        there = asking.send(asked, self._room(asking.size_bytes(asked)))
        logits = self._decoder.head(self._rows.index_select(0, there["rows"]))
        found = asking.choose(asked, there, logits, self._kernels.form)
        return asked, found.cpu().numpy()

    def _prepare(self, bucket: Bucket) -> _Prepared:
        own = fields(bucket)
        here, there = self._inputs.views(own)
        # What is captured must be harmless to run: rows of no sequence.
        inputs = {name: tensor.numpy() for name, tensor in here.items()}
        clear(inputs)
        self._inputs.send(size_of(own))
        kept = captured(bucket, self.captures)
        capture = self._kernels.capture if kept else launch_again
        replay = capture(lambda: self._layers(bucket, there))
        made = _Prepared(inputs, size_of(own), replay, kept)
        self._prepared[bucket] = made
        return made

    def _layers(self, bucket: Bucket, there: dict[str, Tensor]) -> None:
        """All that is captured: a function of the inputs and of the pool."""
        plan = AttentionPlan(
            tables=there["tables"].index_select(0, there["owners"]),
            spans=there["spans"],
            tiles=self._none,
            positions=there["positions"],
            slots=there["slots"],
            rows=bucket.rows,
            rows_max=SPAN_ROWS,
            context_max=bucket.context,
            blocks=self._pages.shape[2],
            window=0,
            sinks=0,
        )
        rows = self._decoder.layers(there["ids"], plan, self._pages)
        self._rows[: bucket.rows].copy_(rows)

    def _room(self, size: int) -> Staging:
        held = self._asked.host.numel()
        if size > held:
            self._asked = Staging(self._kernels.device, max(size, 2 * held))
        return self._asked
