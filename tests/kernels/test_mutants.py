"""Tests of the tests: kernels with one thing wrong, each of which a test must notice.

A mutant is a module with one line changed, whose functions stand in for the right ones while the
test runs that should fail. Only in the interpreter: compiled kernels keep what they were made of.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch

from firstlight.kernels import ops
from firstlight.kernels.gpu import (
    attention,
    decode,
    experts,
    matmul,
    norm,
    philox,
    prefill,
    rotary,
    sampling,
    selection,
)
from firstlight.kernels.gpu.launch import INTERPRETED
from firstlight.kernels.pages import Heads

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="compiled kernels are not replaced")
FEW = Heads(4, 2, 32)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}_{id(path)}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Mutant:
    module: ModuleType
    right: str
    wrong: str
    put: tuple[tuple[ModuleType, str], ...]
    """Where its functions stand in, by name."""
    file: str
    test: str
    arguments: tuple[object, ...] = ()


ATTENTION = (
    "test_attention",
    "test_it_is_as_exact_as_torch_for_heads_in_groups",
)
TILE = ((prefill, "attend_tile"), (decode, "attend_tile"))
WINDOW = "test_a_window_hides_what_it_should_and_sinks_stay_in_sight"
DTYPE = "test_it_is_as_exact_as_torch_for_every_dtype"
MUTANTS = {
    "the mask hides a row's own key": Mutant(
        attention, "seen = key <= position", "seen = key < position", TILE, *ATTENTION,
        (ops.attend_prefill, FEW),
    ),
    "the mask shows the next key": Mutant(
        attention, "seen = key <= position", "seen = key <= position + 1", TILE, *ATTENTION,
        (ops.attend_prefill, FEW),
    ),
    "the last key of a page comes from the next one": Mutant(
        attention, "table + key // BLOCK_ROWS", "table + (key + 1) // BLOCK_ROWS", TILE, *ATTENTION,
        (ops.attend_decode, FEW),
    ),
    "keys of int8 have no scale": Mutant(
        attention, "scores *= tl.load(scales + line, mask=held, other=0.0)[None, :]", "pass", TILE,
        "test_attention", DTYPE, (ops.attend_decode, torch.float32, torch.int8),
    ),
    "values of float8 have the scale of keys": Mutant(
        attention, "scales + side_rows + line", "scales + line", TILE,
        "test_attention", DTYPE, (ops.attend_prefill, torch.float32, torch.float8_e4m3fn),
    ),
    "a window is one key too wide": Mutant(
        attention, "key > position - WINDOW", "key >= position - WINDOW", TILE,
        "test_attention", WINDOW, (ops.attend_decode, 20, 0),
    ),
    "a window forgets its last sink": Mutant(
        attention, "key < SINKS", "key < SINKS - 1", TILE,
        "test_attention", WINDOW, (ops.attend_prefill, 64, 4),
    ),
    "heads of a group read another key head": Mutant(
        prefill, "kv_head * GROUP + line % GROUP", "kv_head + line % GROUP * KV_HEADS",
        ((prefill, "prefill_kernel"),), *ATTENTION, (ops.attend_prefill, FEW),
    ),
    "pieces are added up without fading": Mutant(
        decode, "total = total * faded + ", "total = total + ", ((decode, "merge_kernel"),),
        *ATTENTION, (ops.attend_decode, FEW),
    ),
    "the first piece of a row is left out": Mutant(
        decode, "piece = tl.where(step < kept, step, step + skipped)",
        "piece = tl.minimum(step + 1, last - 1)", ((decode, "merge_kernel"),),
        *ATTENTION, (ops.attend_decode, FEW),
    ),
    "a norm has no epsilon": Mutant(
        norm, "tl.math.rsqrt(mean + eps)", "tl.math.rsqrt(mean)", ((norm, "norm_kernel"),),
        "test_norm", "test_a_norm_is_as_exact_as_torch", (torch.float32, 576),
    ),
    "angles turn the wrong way": Mutant(
        rotary, "a * cosine - b * sine", "a * cosine + b * sine", ((rotary, "rotate_kernel"),),
        "test_rotary", "test_queries_keys_and_values_are_as_exact_as_torch",
        (torch.float32, False, FEW),
    ),
    "a key goes one slot too far": Mutant(
        rotary, "* BLOCK_ROWS + slot % BLOCK_ROWS", "* BLOCK_ROWS + (slot + 1) % BLOCK_ROWS",
        ((rotary, "rotate_kernel"),), "test_rotary", "test_only_the_slots_of_the_rows_are_written",
    ),
    "every group has the first one's scale": Mutant(
        matmul, "(INPUTS // GROUP) + start // GROUP", "(INPUTS // GROUP)",
        ((matmul, "product"), (matmul, "product_int4")),
        "test_matmul", "test_a_product_is_as_exact_as_torch", ("int4", 64, torch.bfloat16),
    ),
    "the order of a sum follows the number of rows": Mutant(
        matmul, "STEP=step_of(weight)", "STEP=step_of(weight) >> (count > 64)",
        ((matmul, "matmul"),),
        "test_matmul", "test_a_row_alone_has_the_bits_that_it_has_among_others", ("int8", 64),
    ),
    "a pair is given another row": Mutant(
        experts, "place = pair // DIVISOR * INPUTS", "place = pair % DIVISOR * INPUTS",
        ((experts, "grouped_kernel"),),
        "test_experts", "test_a_mixture_is_as_exact_as_torch", ("float", None, torch.float32),
    ),
    "Philox has nine rounds": Mutant(
        philox, "tl.static_range(10)", "tl.static_range(9)", ((philox, "noise_bits"),),
        "test_sampling", "test_bits_and_noise_are_the_references_to_the_bit", (0, 0, 0),
    ),
    "the last of equals is kept": Mutant(
        selection, "token <= cutoff", "token >= cutoff", (),
        "test_sampling", "test_equals_at_the_edge_of_a_filter_go_to_the_lowest_ids", ("gpu",),
    ),
    "top-k keeps one more": Mutant(
        selection, "count - over.to(tl.int32)", "count - over.to(tl.int32) + 1", (),
        "test_sampling", "test_equals_at_the_edge_of_a_filter_go_to_the_lowest_ids", ("gpu",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_noticed(name, monkeypatch, tmp_path, device):
    mutant = MUTANTS[name]
    source = Path(mutant.module.__file__).read_text()
    assert mutant.right in source
    changed = tmp_path / "mutated.py"
    changed.write_text(source.replace(mutant.right, mutant.wrong))
    wrong = load(changed)
    for place, function in mutant.put or ((sampling, "select"),):
        monkeypatch.setattr(place, function, getattr(wrong, function))
    tests = load(Path(__file__).with_name(f"{mutant.file}.py"))
    with pytest.raises(AssertionError):
        getattr(tests, mutant.test)(*mutant.arguments, device=device)
