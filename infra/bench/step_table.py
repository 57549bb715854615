"""Measures the step-time table of a model on this machine, for cores that only take the time.

    python -m firstlight.infra.bench.step_table [--threads 2] [--repeats 7] [--model PATH]

Steps of many shapes are run in this process, each some times: decodes of short sequences give the
points, decodes of long ones what context costs, chunks of prompts at several positions what a
prefill token and a pair cost. The last line is one object that a core takes as `model.timed`; above
it stands each shape with what the table makes of it.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from statistics import median

import numpy as np

from firstlight.infra.bench.machine import heading
from firstlight.shared.blocks import BLOCK_TOKENS, blocks_for
from firstlight.shared.drafting.prefilltimes import pairs
from firstlight.shared.engine.model.load import LoadedModel, load_model
from firstlight.shared.engine.plan import SequencePlan, StepPlan
from firstlight.shared.engine.runner import TorchRunner, measured_copies
from firstlight.shared.engine.steptable import StepTable
from firstlight.shared.model_files import default_model_path
from firstlight.shared.sampling import Draw, History
from firstlight.shared.types import Sampling

DECODES = (1, 2, 4, 8, 16, 32, 64)
SHORT = BLOCK_TOKENS
LONG = ((1, 512), (1, 1024), (4, 512), (16, 256))
"""(sequences, context) of decodes that read a context."""
CHUNKS = ((16, 0), (64, 0), (256, 0), (64, 512), (16, 960), (128, 896))
"""(tokens, position) of chunks that nothing is sampled of."""


class Shapes:
    """Plans of a shape, and how long their steps take."""

    def __init__(self, model: LoadedModel, repeats: int) -> None:
        most = max(n * blocks_for(context) for n, context in (*LONG, (max(DECODES), SHORT)))
        self._blocks, self._repeats, self._random = most, repeats, Random(1)
        self._vocab = model.config.vocab
        self.runner = TorchRunner(model, model.storage(most, 1))

    def decodes(self, sequences: int, context: int) -> tuple[StepPlan, float]:
        """A step of so many sequences with one row each."""
        return self._measured([self._sequence(n, context - 1, 1, 1) for n in range(sequences)])

    def chunk(self, tokens: int, position: int) -> tuple[StepPlan, float]:
        """A step of one chunk of a prompt."""
        return self._measured([self._sequence(0, position, tokens, 0)])

    def _sequence(self, number: int, start: int, tokens: int, draws: int) -> SequencePlan:
        count = blocks_for(start + tokens)
        table = tuple((number * count + place) % self._blocks for place in range(count))
        ids = tuple(self._random.randrange(self._vocab) for _ in range(tokens))
        draw = Draw(Sampling(), 1, 0, start + tokens, History(()))
        return SequencePlan(f"{number}", start, ids, 0, table, (draw,) * draws)

    def _measured(self, sequences: Sequence[SequencePlan]) -> tuple[StepPlan, float]:
        plan = StepPlan(tuple(sequences))
        times = [self.runner.run(plan).ms for _ in range(self._repeats + 1)]
        return plan, median(times[1:])


def table(shapes: Shapes) -> tuple[StepTable, list[tuple[str, StepPlan, float]]]:
    """The table that fits best, and all that it was fitted to."""
    found = [(f"{n} decode", *shapes.decodes(n, SHORT)) for n in DECODES]
    rising = np.maximum.accumulate([ms for _, _, ms in found])
    points = tuple((n, round(float(ms), 3)) for n, ms in zip(DECODES, rising, strict=True))
    alone = StepTable(points)
    read = [(n, context, *shapes.decodes(n, context)) for n, context in LONG]
    more_ms = [max(ms - alone.ms(n), 0.0) / (n * context) for n, context, _, ms in read]
    found += [(f"{n} decode at {context}", plan, ms) for n, context, plan, ms in read]
    chunks = [(tokens, position, *shapes.chunk(tokens, position)) for tokens, position in CHUNKS]
    token_ms, pair_ms = _rates([(t, pairs(t, p), ms - points[0][1]) for t, p, _, ms in chunks])
    found += [(f"{t} tokens from {p}", plan, ms) for t, p, plan, ms in chunks]
    speed = measured_copies(shapes.runner, 1)
    made = StepTable(
        points,
        token_ms=token_ms,
        pair_ms=pair_ms,
        context_ms=float(np.median(more_ms)),
        block_copy_ms=shapes.runner.block_bytes / speed * 1000 if speed else 0.0,
        block_bytes=shapes.runner.block_bytes,
    )
    return made, found


def _rates(chunks: Sequence[tuple[int, int, float]]) -> tuple[float, float]:
    """token_ms and pair_ms of (tokens, pairs, ms), by least squares of relative errors."""
    rows = np.array([[tokens, looked_at] for tokens, looked_at, _ in chunks], dtype=float)
    took = np.maximum(np.array([ms for *_, ms in chunks]), 1e-3)
    (token_ms, pair_ms), *_ = np.linalg.lstsq(rows / took[:, None], np.ones(len(took)), rcond=None)
    return max(float(token_ms), 0.0), max(float(pair_ms), 0.0)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--model", type=Path, default=None)
    options = parser.parse_args()
    print(heading(), flush=True)
    model = load_model(options.model or default_model_path(), threads=options.threads)
    print(f"{model.name}, {model.kernels}, medians of {options.repeats}")
    made, found = table(Shapes(model, options.repeats))
    for name, plan, ms in found:
        print(f"  {name:24} {ms:8.2f} ms, by the table {made.step_ms(plan):8.2f}")
    print(json.dumps(asdict(made)))


if __name__ == "__main__":
    main()
