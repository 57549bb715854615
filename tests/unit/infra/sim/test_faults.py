"""Faults of a simulation as they are written."""

import pytest
from sim_bed import mesh

from firstlight.infra.sim.faults import Fault, parse_fault
from firstlight.shared.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kill:core-3@60+20", Fault("kill", "core-3", 60.0, 20.0)),
        ("kill:core-3@60", Fault("kill", "core-3", 60.0)),
        ("region:seoul@0.5+60", Fault("region", "seoul", 0.5, 60.0)),
        ("slow:core-5@30+90x3", Fault("slow", "core-5", 30.0, 90.0, 3.0)),
    ],
)
def test_a_fault_is_read_as_it_is_written(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    "text", ["", "kill", "kill:core-1", "slow:core-1@3", "kill:core-1@3x2", "slow:core-1@3x0"]
)
def test_what_is_no_fault_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_fault(text)


@pytest.mark.parametrize("whom", ["core-6", "core-x", "seoul"])
def test_a_core_that_is_not_there_cannot_be_struck(whom: str) -> None:
    with pytest.raises(ConfigError, match="core-0 to core-5"):
        mesh(faults=(Fault("kill", whom, 1.0),))


def test_a_region_that_is_not_there_cannot_be_struck() -> None:
    with pytest.raises(ConfigError, match="ashburn, frankfurt, seoul"):
        mesh(faults=(Fault("region", "atlantis", 1.0),))


def test_a_region_is_all_of_its_cores() -> None:
    assert Fault("region", "b", 1.0).servers(3, ("a", "b")) == [3, 4, 5]
