"""A whole laboratory without namespaces: its distances, a partition, and its end."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from firstlight.infra.lab.fault_plan import parse
from firstlight.infra.lab.faults import Faults
from firstlight.infra.lab.lab import Lab, start_lab
from firstlight.shared.errors import ConfigError

TOPOLOGY = {
    "regions": {"eu": {}, "us": {}},
    "nodes": {
        "lb": {"role": "lb", "region": "us"},
        "edge": {"role": "edge", "region": "eu"},
        "core": {"role": "core", "region": "us", "settings": {"engine": {"blocks": 64}}},
        "user": {"role": "client", "region": "eu"},
    },
    "links": [
        {"between": ["eu", "us"], "rtt_ms": 60},
        {"between": ["user", "edge"], "rtt_ms": 10},
    ],
}
FIRSTLIGHT = [sys.executable, "-m", "firstlight"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    state = tmp_path_factory.mktemp("relayed")
    file = state / "topology.yaml"
    file.write_text(yaml.safe_dump(TOPOLOGY))
    started = start_lab(file, state, relay=True)
    try:
        yield started
    finally:
        left = started.stop()
    assert left == 0
    assert list((state / "lab" / "runs").iterdir()) == []


def chat(lab: Lab, http: str, code: int = 0) -> dict[str, Any]:
    question = ["chat", "--json", "--http", http, "--max-tokens", "6", "Say something."]
    done = subprocess.run(
        [*FIRSTLIGHT, "lab", "shell", "user", "--", *FIRSTLIGHT, *question],
        env={**os.environ, "FIRSTLIGHT_STATE_DIR": str(lab.run.parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return dict(json.loads(done.stdout)) if code == 0 else {"error": done.stderr}


@pytest.mark.parametrize("http", ["3", "2"])
def test_a_user_waits_for_the_way_to_the_core_and_back(lab: Lab, http: str) -> None:
    answer = chat(lab, http)
    assert (answer["edge"], answer["core"]) == ("edge", "core")
    assert answer["ttft_ms"]["client_first_token"] >= 70


def test_each_link_is_its_own(lab: Lab) -> None:
    chat(lab, "2")
    with lab.network.control() as control:
        ways = {(path["from"], path["to"]) for path in control.stats()["paths"]}
    assert {("user", "edge"), ("edge", "core"), ("core", "lb"), ("operator", "edge")} <= ways


def test_a_user_is_cut_off_and_comes_back(lab: Lab) -> None:
    with lab.network.control() as control:
        control.change("partition", "user", "edge")
        assert "firstlight: " in chat(lab, "2", code=1)["error"]
        control.change("heal")
        assert chat(lab, "2")["core"] == "core"


def test_nodes_fail_without_root_too_but_for_what_needs_it(lab: Lab) -> None:
    faults = Faults(lab, None, Random(1))
    for said in (
        {"do": "freeze", "node": "core"},
        {"do": "hang", "node": "core"},
        {"do": "clock", "node": "lb", "shift_s": 60},
        {"do": "partition", "from": "user", "to": "edge"},
    ):
        injected = faults.inject(parse(said))
        stat = Path(f"/proc/{lab.mesh.children['core'].process.pid}/stat").read_text()
        assert (stat.rpartition(")")[2].split()[0] == "T") == (said["do"] == "freeze")
        faults.end(injected)
        faults.wait_back(30)
    with pytest.raises(ConfigError, match="disk: core has no disk of its own: that needs root"):
        faults.inject(parse({"do": "disk", "node": "core"}))
    assert faults.active == ()
    assert chat(lab, "2")["core"] == "core"


def test_a_restarted_core_serves_behind_its_relay(lab: Lab) -> None:
    faults = Faults(lab, None, Random(1))
    faults.inject(parse({"do": "restart", "node": "core"}))
    faults.wait_back(60)
    assert chat(lab, "2")["core"] == "core"
