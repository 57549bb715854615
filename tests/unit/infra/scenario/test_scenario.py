"""What a scenario file says, and how a wrong one is refused."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from firstlight.infra.scenario.scenario import drawn, expanded
from firstlight.infra.scenario.scenario_file import find_scenario, load_scenario
from firstlight.shared.errors import ConfigError

TOPOLOGY: dict[str, Any] = {
    "regions": {"eu": {}},
    "nodes": {
        "lb": {"role": "lb", "region": "eu"},
        "edge": {"role": "edge", "region": "eu"},
        "core": {"role": "core", "region": "eu"},
        "user": {"role": "client", "region": "eu"},
    },
}
LOAD: dict[str, Any] = {"name": "some", "at": "user", "edges": ["edge"]}


def phase(*loads: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"name": "first", "load": [LOAD | load for load in loads or ({},)], **more}


def written(folder: Path, *phases: object, topology: object = TOPOLOGY) -> Path:
    path = folder / "scenario.yaml"
    whole = {"title": "A try", "topology": topology, "phases": list(phases)}
    path.write_text(yaml.safe_dump(whole, sort_keys=False))
    return path


def refusal(folder: Path, *phases: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load_scenario(written(folder, *phases))
    return caught.value.message


def test_a_topology_may_stand_in_a_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mesh.yaml").write_text(yaml.safe_dump(TOPOLOGY))
    read = load_scenario(written(tmp_path, phase(), topology="mesh.yaml"))
    assert set(read.topology.nodes) == {"lb", "edge", "core", "user"}


def test_a_phase_is_repeated_for_each_combination_with_the_values_as_they_are() -> None:
    wanted = {"name": "$a and ${b}0", "settle_s": "$a", "load": [{"name": "row $a $b"}]}
    assert expanded([{**wanted, "each": {"a": [1.5, 2], "b": ["x"]}}]) == [
        {"name": "1.5 and x0", "settle_s": 1.5, "load": [{"name": "row 1.5 x"}]},
        {"name": "2 and x0", "settle_s": 2, "load": [{"name": "row 2 x"}]},
    ]


def test_values_that_belong_together_stand_in_a_list() -> None:
    phases = expanded([{"name": "$a $b", "each": [{"a": 1, "b": 2}, {"a": 3, "b": 4}]}])
    assert phases == [{"name": "1 2"}, {"name": "3 4"}]


def test_each_that_holds_no_lists_is_refused(tmp_path: Path) -> None:
    assert "each" in refusal(tmp_path, {**phase(), "each": {"a": 1}})
    assert "200" in refusal(tmp_path, {**phase(), "each": {"a": list(range(300))}})


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ({"at": "nobody"}, "phases.0.load.0.at: no node is called 'nobody'"),
        ({"edges": ["core"]}, "phases.0.load.0.edges: 'core'"),
        ({"bound": {"row": "other"}}, "phases.0.load.0: row 'other'"),
        ({"keep": {"ttft_p50_ms": {"at_most": {"plus": 1}}}}, "there is none"),
        ({"keep": {"moved": [{"at_most": {"row": "other"}}]}}, "phases.0.load.0: row 'other'"),
        ({"keep": {"speed": {"at_most": 1}}}, "speed"),
        ({"keep": {"failed": {}}}, "limits nothing"),
        ({"per_s": 5, "together": 4}, "expected one of them"),
        ({"bound": {"plus": 3}}, "expected one of them"),
        ({"prompt_tokens": 0}, "prompt_tokens"),
        ({"count": 100_000, "prompt_tokens": 1000}, "at most 20000000"),
        ({"bound": {"row": "some", "times": 1e300}}, "times"),
    ],
)
def test_a_load_that_cannot_be_is_refused_by_its_path(
    tmp_path: Path, load: dict[str, Any], said: str
) -> None:
    assert said in refusal(tmp_path, phase(load))


def test_two_rows_of_one_name_are_refused(tmp_path: Path) -> None:
    assert "another row is called 'some'" in refusal(tmp_path, phase(), phase())


def test_a_fault_without_one_time_or_with_an_unknown_row_is_refused(tmp_path: Path) -> None:
    kill = {"do": "kill", "node": "core"}
    for times in ({}, {"at_s": 1, "at_token": 2}):
        assert "expected one of them" in refusal(tmp_path, phase(faults=[{"fault": kill, **times}]))
    said = refusal(tmp_path, phase(faults=[{"fault": kill, "at_token": 2, "load": "other"}]))
    assert "phases.0.faults.0.load: 'other', expected one of some" in said


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"between": ["eu", "us"], "rtt_ms": 3}, "phases.0.links.0.between: 'us'"),
        ({"from": "eu", "rtt_ms": 3}, "phases.0.links.0.to: missing"),
    ],
)
def test_a_link_that_a_phase_cannot_change_is_refused_before_anything_runs(
    tmp_path: Path, rule: dict[str, Any], said: str
) -> None:
    assert said in refusal(tmp_path, phase(links=[rule]))


def test_a_limit_that_is_no_number_is_refused(tmp_path: Path) -> None:
    said = refusal(tmp_path, phase({"keep": {"failed": {"at_most": float("nan")}}}))
    assert "phases.0.load.0.keep.failed.at_most" in said


def test_a_bound_may_be_a_row_of_an_earlier_phase(tmp_path: Path) -> None:
    later = phase({"name": "later", "bound": {"row": "some", "plus": 10}})
    assert load_scenario(written(tmp_path, phase(), later)).phases[1].load[0].bound is not None


def test_a_number_is_itself_and_two_are_the_ends_of_a_lot() -> None:
    assert drawn(3.0, Random(1)) == 3.0
    lots = [drawn((1.0, 2.0), Random(seed)) for seed in range(50)]
    assert all(1.0 <= lot <= 2.0 for lot in lots)
    assert len(set(lots)) > 40


def test_a_name_that_is_neither_a_file_nor_known_says_what_is_known() -> None:
    with pytest.raises(ConfigError, match=r"nothing\.such: no such file"):
        find_scenario("nothing.such")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"at_s": 1, "fault": {"do": "kill", "node": "other"}}, "no node is called 'other'"),
        (
            {"at_s": 1, "fault": {"do": "hang", "node": "edge"}},
            "edge has the role edge, expected core",
        ),
        ({"at_s": 1, "fault": {"do": "kill", "node": "its core"}}, "known at a token only"),
        ({"at_token": 3, "stream": 1, "fault": {"do": "kill", "node": "core"}}, "stream: 1"),
        ({"at_token": 3, "fault": {"do": "hang", "node": "its edge"}}, "expected core"),
        (
            {"at_token": 3, "fault": {"do": "partition", "from": "its core", "to": "nowhere"}},
            "'nowhere', expected a region or a node",
        ),
        (
            {"at_s": 1, "fault": {"do": "link", "from": "*", "to": "*", "link": {"loss": 7}}},
            "link.loss: 7",
        ),
        (
            {"at_s": 1, "fault": {"do": "link", "from": "*", "to": "*", "link": {}}},
            "expected properties",
        ),
        ({"at_s": -1, "fault": {"do": "kill", "node": "core"}}, "at_s"),
        ({"at_token": [2, 17], "fault": {"do": "kill", "node": "core"}}, "answers have 16"),
    ],
)
def test_a_fault_that_cannot_come_is_refused_before_anything_runs(
    tmp_path: Path, fault: dict[str, Any], said: str
) -> None:
    assert said in refusal(tmp_path, phase(faults=[fault]))
