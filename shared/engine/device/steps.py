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
from firstlight.shared.engine.plan import SequencePlan, StepPlan
from firstlight.shared.sampling import Draw, History
from firstlight.shared.types import Sampling

_ASKED_BYTES = 64 << 10
"""At first; doubled whenever penalties look at more."""
_DRAWN = (1, 2, 16, 65, 128)
"""Numbers of sampled rows that differ in the programs that they need: Triton has one for 1, one for
multiples of 16 and one for others, and products have others beyond 64 rows."""
_WITH_ALL = Sampling(top_k=2, top_p=0.9, repetition_penalty=1.1, frequency_penalty=0.1, logprobs=1)


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
        self._rows = torch.zeros(limits.rows, hidden, dtype=decoder.dtype, device=device)
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
        return asked, self._chosen(asked)

    def warm(self) -> None:
        """Launches once what steps are made of: a program that is compiled while clients wait takes
        seconds, in which an engine that hangs looks the same."""
        for bucket in self._limits.various:
            if bucket not in self._prepared:
                self._prepare(bucket).replay()
                self._kernels.wait()  # the next shape writes its numbers in the same memory
        for count in _DRAWN:
            if count <= self._limits.sequences:
                for sampling in (Sampling(), _WITH_ALL):
                    asked = asking.ask(_drawing(count, sampling), self._vocab)
                    assert asked is not None
                    self._chosen(asked)

    def _chosen(self, asked: Asked) -> NDArray[np.int32]:
        """What `asking.choose` says of rows that the layers left, on the host."""
        there = asking.send(asked, self._room(asking.size_bytes(asked)))
        logits = self._decoder.head(self._rows.index_select(0, there["rows"]))
        return asking.choose(asked, there, logits, self._kernels.form).cpu().numpy()

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


def _drawing(count: int, sampling: Sampling) -> StepPlan:
    draw = Draw(sampling, seed=0, choice=0, position=1, history=History((), (0,)))
    return StepPlan((SequencePlan("warm", 0, (0,), 0, (0,), (draw,)),) * count)
