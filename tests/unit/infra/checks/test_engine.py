"""torch, the processor and the model, judged from what they would say of themselves."""

from pathlib import Path
from typing import Any

import pytest

from firstlight.global_lb.config import LbSettings
from firstlight.infra.checks import engine
from firstlight.infra.checks.finding import Level
from firstlight.infra.checks.subject import Subject, plain
from firstlight.shared.types import Role

FACTS: dict[str, Any] = {
    "version": "2.13.0+cpu",
    "cuda": None,
    "capability": "AVX512",
    "onednn": True,
    "threads": 2,
}
MODERN = frozenset({"avx2", "avx512f", "amx_tile", "amx_bf16"})


def test_the_build_is_named() -> None:
    (cpu,) = engine.judge_torch(FACTS)
    (cuda,) = engine.judge_torch({**FACTS, "version": "2.13.0", "cuda": "13.0"})
    assert cpu.seen == "2.13.0+cpu, for the CPU"
    assert cuda.seen == "2.13.0, for CUDA 13.0"


def test_a_build_without_onednn_is_warned_of() -> None:
    _, found = engine.judge_torch({**FACTS, "onednn": False})
    assert (found.name, found.level) == ("onednn", Level.WARN)


@pytest.mark.parametrize(
    ("capability", "flags", "bf16", "level"),
    [
        ("AVX512", MODERN, True, Level.OK),
        ("AVX2", frozenset({"avx2"}), False, Level.OK),
        ("AVX2", frozenset({"avx2"}), True, Level.WARN),
        ("DEFAULT", frozenset({"avx2"}), False, Level.WARN),
        ("DEFAULT", frozenset({"sse4_2"}), False, Level.WARN),
        ("DEFAULT", frozenset(), True, Level.OK),
    ],
    ids=["amx", "avx2", "bf16-in-software", "switched-off", "old", "not-x86"],
)
def test_the_processor_is_judged_by_what_torch_uses_of_it(
    capability: str, flags: frozenset[str], bf16: bool, level: Level
) -> None:
    facts = {**FACTS, "capability": capability}
    assert engine.judge_processor(facts, flags, bf16=bf16).level is level


def test_flags_are_those_of_the_first_processor(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nflags\t\t: fpu avx2 amx_tile\n\nflags : other\n")
    assert engine.cpu_flags(info) == {"fpu", "avx2", "amx_tile"}
    assert engine.cpu_flags(tmp_path / "none") == frozenset()


def test_more_threads_than_processors_are_warned_of() -> None:
    assert engine.judge_threads(4, 4).level is Level.OK
    found = engine.judge_threads(5, 4)
    assert (found.level, found.do) == (Level.WARN, "model: {threads: 4}")


def test_torch_says_what_it_is_from_a_process_of_its_own(tmp_path: Path) -> None:
    core = Subject(((Role.CORE, plain(Role.CORE)),), tmp_path)
    found = {one.name: one for one in engine.look_torch(core)}
    assert {"torch", "processor", "threads"} <= found.keys()
    assert "2.13" in found["torch"].seen


def test_a_load_balancer_needs_neither_torch_nor_a_model(tmp_path: Path) -> None:
    lb = Subject(((Role.LB, LbSettings()),), tmp_path)
    assert engine.look_torch(lb) == []
    assert engine.look_model(lb) == []


def test_the_packaged_model_is_read() -> None:
    found = engine.judge_model("model", None)
    assert found.level is Level.OK
    assert "272 tensors" in found.seen


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"nothing of the kind")
    found = engine.judge_model("model", path)
    assert found.level is Level.BAD
    assert str(path) in found.seen


def test_a_folder_without_weights_is_no_model(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    found = engine.judge_model("model", tmp_path)
    assert found.level is Level.BAD
    assert "safetensors" in found.seen
