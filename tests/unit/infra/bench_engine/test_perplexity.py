"""Perplexity: against a sum by hand, and independent of the steps."""

from math import log
from typing import Any

import pytest
import torch

from firstlight.infra.bench.engine import perplexity
from firstlight.shared.engine.model.load import load_model
from firstlight.shared.model_files import default_model_path

IDS = [504, 2365, 6354, 28, 284, 965, 314, 260, 1215, 282]


class Table:
    """A model whose logits depend on the token before alone."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.rows = logits
        self.positions: list[int] = []

    @property
    def transformer(self) -> "Table":
        return self

    def storage(self, blocks: int) -> Any:
        return blocks

    def logits(self, batch: Any, kv: Any) -> torch.Tensor:
        self.positions += batch.positions.tolist()
        return self.rows[batch.ids][batch.logit_rows]


def test_the_mean_is_over_every_token_but_the_first() -> None:
    model: Any = Table(torch.tensor([[0.0, log(3.0)], [0.0, 0.0]]))
    found = perplexity.mean_nll(model, [0, 1, 1, 0])
    assert found == pytest.approx((log(4 / 3) + log(2) + log(2)) / 3)
    assert model.positions == [0, 1, 2]


def test_steps_do_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(default_model_path(), threads=1)
    whole = perplexity.mean_nll(model, IDS * 2)
    monkeypatch.setattr(perplexity, "STEP_TOKENS", 3)
    assert perplexity.mean_nll(model, IDS * 2) == pytest.approx(whole, rel=1e-3)
