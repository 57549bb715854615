"""What a run of a scenario makes of a laboratory that does not do as it is told."""

from math import inf
from types import SimpleNamespace
from typing import cast

import pytest

from firstlight.infra.lab.fault_plan import Fault
from firstlight.infra.lab.faults import Faults, Injected
from firstlight.infra.lab.lab import Lab
from firstlight.infra.lab.topology import LinkRule
from firstlight.infra.scenario import conduct
from firstlight.infra.scenario.conduct import Conductor
from firstlight.infra.scenario.figures import Row
from firstlight.infra.scenario.scenario import Scenario
from firstlight.shared.errors import ConfigError

SCENARIO = Scenario.model_validate(
    {
        "title": "two faults",
        "topology": {
            "regions": {"eu": {}},
            "nodes": {
                "lb": {"role": "lb", "region": "eu"},
                "edge": {"role": "edge", "region": "eu"},
                "core-1": {"role": "core", "region": "eu"},
                "core-2": {"role": "core", "region": "eu"},
            },
        },
        "phases": [{"name": "one", "load": [{"name": "row", "at": "edge", "edges": ["edge"]}]}],
    }
)


def test_a_fault_that_cannot_be_taken_back_is_a_problem_and_the_next_one_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[str] = []

    def end(faults: Faults, injected: Injected) -> None:
        ended.append(injected.targets[0])
        if injected.targets == ("core-1",):
            raise ConfigError("core-1 was killed and has not ended")

    monkeypatch.setattr(Faults, "end", end)
    monkeypatch.setattr(Faults, "inject", lambda faults, fault: Injected(fault, (fault.node,), 0))
    lab = cast(Lab, SimpleNamespace(mesh=None))
    conductor = Conductor(SCENARIO, lab, None, 1, lambda line: None)
    for node in ("core-1", "core-2"):
        conductor._inject(Fault(do="kill", node=node))
    conductor._end_until(inf)
    assert ended == ["core-1", "core-2"]
    assert conductor.found.problems == [
        "not taken back: kill core-1: core-1 was killed and has not ended"
    ]


class Router:
    """Notes what it is told to do to links."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, dict[str, float]]] = []

    def control(self) -> "Router":
        return self

    def __enter__(self) -> "Router":
        return self

    def __exit__(self, *_: object) -> None: ...

    def change(
        self, do: str, source: str, target: str, *, one_way: bool, link: dict[str, float]
    ) -> int:
        assert (do, one_way) == ("set", False)
        self.told.append((source, target, link))
        return 2


def test_links_that_a_phase_has_changed_stay_so_when_a_fault_of_links_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Faults, "end", lambda faults, injected: None)
    monkeypatch.setattr(Faults, "inject", lambda faults, fault: Injected(fault, (), 0))
    router = Router()
    lab = cast(Lab, SimpleNamespace(mesh=None, network=router))
    conductor = Conductor(SCENARIO, lab, None, 1, lambda line: None)
    changed = LinkRule(between=("edge", "core-1"), rtt_ms=80)
    conductor._links.append(changed)
    conductor._inject(Fault(do="link", source="edge", target="core-1", link={"loss": 0.1}))
    assert router.told == []
    conductor._end_until(inf)
    assert router.told == [("edge", "core-1", {"delay_ms": 40.0})]


class Nobody:
    """Clients that have asked nothing, and are done."""

    alive = False

    def __init__(self, *_: object) -> None:
        self.rows: dict[str, Row] = {}
        self.problems: list[str] = []

    def start(self) -> None: ...

    def end(self, join_s: float) -> None: ...


def test_a_fault_that_never_came_is_a_problem_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conduct, "Crowd", Nobody)
    monkeypatch.setattr(Faults, "wait_back", lambda faults, timeout_s: None)
    killed = {"at_s": 50, "fault": {"do": "kill", "node": "core-1"}}
    whole = SCENARIO.model_dump(by_alias=True, exclude_unset=True)
    whole["phases"][0]["faults"] = [killed]
    lab = cast(Lab, SimpleNamespace(mesh=None, network=Router()))
    conductor = Conductor(Scenario.model_validate(whole), lab, None, 1, lambda line: None)
    phase = conductor._scenario.phases[0]
    assert conductor._run_phase(phase, {"edge": None}, inf)
    assert conductor.found.problems == ["one: it never came: kill core-1, at 50.000 s"]
    assert conductor.found.schedule == ["one: kill core-1, at 50.000 s"]
