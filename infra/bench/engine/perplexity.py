"""How well a model predicts a fixed text, by the form of its weights.

In-process and through the kernels that serve, in steps as a core makes them; the probabilities are
taken in float64, so that what differs is the model.
"""

from importlib.resources import files
from math import exp
from pathlib import Path

import torch

from firstlight.shared.blocks import BLOCK_TOKENS
from firstlight.shared.engine.kv.storage import KvStorage
from firstlight.shared.engine.model.batch import SequenceRows, join_rows
from firstlight.shared.engine.model.load import LoadedModel, load_model
from firstlight.shared.text.tokenizer import load_tokenizer

STEP_TOKENS = 256
REFERENCE = "bf16"


def perplexity(path: Path, weights: str, threads: int = 1) -> float:
    """exp of the mean negative log likelihood a token of the text, its first token given.

    Raises:
        ConfigError: the model cannot be loaded so.

    """
    text = files(__package__).joinpath("text.txt").read_text(encoding="utf-8")
    ids = load_tokenizer(path).encode(text, special=False)
    return exp(mean_nll(load_model(path, weights=weights, threads=threads), ids))


def mean_nll(model: LoadedModel, ids: list[int]) -> float:
    """Of ids 1 on, each after all before it. Two ids at least."""
    assert len(ids) > 1, len(ids)
    blocks = -(-len(ids) // BLOCK_TOKENS)
    kv, total = model.storage(blocks), 0.0
    for start in range(0, len(ids) - 1, STEP_TOKENS):
        total += _step_nll(model, kv, ids, start, min(start + STEP_TOKENS, len(ids) - 1))
    return total / (len(ids) - 1)


def _step_nll(model: LoadedModel, kv: KvStorage, ids: list[int], start: int, end: int) -> float:
    """The sum over what follows positions `start` to `end` − 1."""
    table = range(-(-end // BLOCK_TOKENS))
    rows = SequenceRows(ids[start:end], start, table, range(end - start))
    logits = model.transformer.logits(join_rows([rows]), kv).double()
    targets = torch.tensor(ids[start + 1 : end + 1])
    return float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))


def perplexities(path: Path, classes: list[str], threads: int) -> dict[str, float]:
    """Of each class of weights once, `bf16` first."""
    names = dict.fromkeys([REFERENCE, *classes])
    return {name: perplexity(path, name, threads) for name in names}
