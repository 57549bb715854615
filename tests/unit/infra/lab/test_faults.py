"""What may be said at a laboratory's door."""

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from firstlight.infra.judge.run_file import ENDING, RunRecord
from firstlight.infra.lab.acts import Acts
from firstlight.infra.lab.fault_plan import Fault
from firstlight.infra.lab.faults import Faults
from firstlight.infra.lab.lab import Lab
from firstlight.infra.lab.topology import Topology
from firstlight.shared.errors import ConfigError


def test_a_fault_that_nobody_would_take_back_in_time_is_refused() -> None:
    faults = Faults(cast(Lab, SimpleNamespace(mesh=None)), None, Random(1))
    with pytest.raises(ConfigError, match="for_s: nobody keeps time here"):
        faults.command({"do": "kill", "node": "core", "for_s": 5})


def test_a_fault_that_could_not_be_done_excuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(acts: Acts, fault: Fault) -> None:
        raise ConfigError("it cannot be killed")

    monkeypatch.setattr(Acts, "possible", lambda acts, fault: None)
    monkeypatch.setattr(Acts, "do", refuse)
    nodes = {"core": {"role": "core", "region": "eu"}}
    topology = Topology.model_validate({"regions": {"eu": {}}, "nodes": nodes})
    record = RunRecord.begin(tmp_path, seed=1, command="a try")
    lab = cast(Lab, SimpleNamespace(mesh=None, topology=topology))
    faults = Faults(lab, record, Random(1))
    with pytest.raises(ConfigError, match="cannot be killed"):
        faults.inject(Fault(do="kill", node="core"))
    assert len(record.run.faults) == 1
    assert not record.run.struck("core", ENDING, 0.0)
    assert faults.active == ()
