"""What may be said at a laboratory's door."""

from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from firstlight.infra.lab.faults import Faults
from firstlight.infra.lab.lab import Lab
from firstlight.shared.errors import ConfigError


def test_a_fault_that_nobody_would_take_back_in_time_is_refused() -> None:
    faults = Faults(cast(Lab, SimpleNamespace(mesh=None)), None, Random(1))
    with pytest.raises(ConfigError, match="for_s: nobody keeps time here"):
        faults.command({"do": "kill", "node": "core", "for_s": 5})
