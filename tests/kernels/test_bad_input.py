"""What operations refuse, before anything is launched: the error names the argument."""

import re
from dataclasses import replace

import pytest
import torch

from firstlight.kernels import ops
from firstlight.kernels.draws import Draw, draw_table
from firstlight.kernels.gpu import launch
from firstlight.kernels.matrix import Matrix, quantize_matrix
from firstlight.kernels.pages import Span
from firstlight.kernels.plan import plan_attention
from firstlight.kernels.routes import Routes

HALF = torch.bfloat16
ROWS = torch.zeros(3, 64)
PAGES = torch.zeros(2, 5, 2, 16, 32)
CODES = PAGES.to(torch.int8)
SCALES = torch.ones(2, 5, 2, 16)
PLAN = plan_attention([Span(0, 3, 20)], [[1, 4]], 5)
QUERIES = torch.zeros(3, 4, 32)
FUSED = torch.zeros(3, 8, 32)
TABLE = torch.zeros(20, 16)
WEIGHT = Matrix("float", torch.zeros(8, 64))
COARSE = quantize_matrix(torch.ones(8, 64), "fp8")
EXPERTS = Matrix("float", torch.zeros(4, 8, 64))
ROUTES = Routes(torch.zeros(3, 2, dtype=torch.int32), torch.ones(3, 2))
POOL = torch.zeros(2, 2, 5, 2, 16, 32)
DRAWS = draw_table([Draw(1, 1)] * 3, 64)
LONG = plan_attention([Span(0, 9, 20)], [[1, 4]], 5)

REFUSED = {
    "rows": [
        lambda: ops.rms_norm(ROWS[0], torch.ones(64), 1e-5, kernels="gpu"),
        lambda: ops.rms_norm(ROWS.int(), torch.ones(64), 1e-5, kernels="gpu"),
        lambda: ops.rms_norm(ROWS.double(), torch.ones(64), 1e-5, kernels="gpu"),
        lambda: ops.rms_norm(torch.zeros(64, 3).T, torch.ones(64), 1e-5, kernels="gpu"),
        lambda: ops.rms_norm(torch.zeros(1, 40_000), torch.ones(40_000), 1e-5, kernels="gpu"),
        lambda: ops.quantize_rows(torch.zeros(3, 0), torch.int8, kernels="gpu"),
        lambda: ops.matmul(ROWS[:, :32].contiguous(), WEIGHT, kernels="gpu"),
        lambda: ops.matmul(ROWS.to(torch.float8_e4m3fn), COARSE, kernels="gpu"),
        lambda: ops.matmul(ROWS, COARSE, row_scales=torch.ones(3), kernels="gpu"),
        lambda: ops.expert_matmul(ROWS, EXPERTS, ROUTES, apart=True, kernels="gpu"),
        lambda: ops.rotate_and_write(QUERIES, TABLE, TABLE, PLAN, PAGES, kernels="gpu"),
        lambda: ops.rotate_and_write(FUSED[:2], TABLE, TABLE, PLAN, PAGES, kernels="gpu"),
    ],
    "weight": [
        lambda: ops.rms_norm(ROWS, torch.ones(63), 1e-5, kernels="gpu"),
        lambda: ops.rms_norm(ROWS, torch.ones(64, device="meta"), 1e-5, kernels="gpu"),
        lambda: ops.matmul(ROWS.to(HALF), WEIGHT, kernels="gpu"),
        lambda: ops.matmul(ROWS, EXPERTS, kernels="gpu"),
        lambda: ops.expert_matmul(ROWS, WEIGHT, ROUTES, kernels="gpu"),
    ],
    "eps": [
        lambda: ops.rms_norm(ROWS, torch.ones(64), -1.0, kernels="gpu"),
        lambda: ops.rms_norm(ROWS, torch.ones(64), float("nan"), kernels="gpu"),
    ],
    "residual": [
        lambda: ops.add_rms_norm(ROWS, ROWS[:2], torch.ones(64), 1e-5, kernels="gpu"),
        lambda: ops.add_rms_norm(ROWS, ROWS.to(HALF), torch.ones(64), 1e-5, kernels="gpu"),
    ],
    "gate_up": [lambda: ops.silu_mul(torch.zeros(2, 7), kernels="gpu")],
    "dtype": [
        lambda: ops.quantize_rows(ROWS, torch.uint8, kernels="gpu"),
        lambda: ops.matmul(ROWS, WEIGHT, dtype=torch.int8, kernels="gpu"),
    ],
    "cosines": [
        lambda: ops.rotate_and_write(FUSED, TABLE[:19], TABLE, PLAN, PAGES, kernels="gpu"),
        lambda: ops.rotate_and_write(FUSED, TABLE[:, :8], TABLE, PLAN, PAGES, kernels="gpu"),
    ],
    "norms": [
        lambda: ops.rotate_and_write(
            FUSED, TABLE, TABLE, PLAN, PAGES, norms=(torch.ones(16), torch.ones(32)), kernels="gpu"
        )
    ],
    "queries": [
        lambda: ops.attend_prefill(QUERIES[:2], PAGES, PLAN, kernels="gpu"),
        lambda: ops.attend_decode(QUERIES[:, :3].contiguous(), PAGES, PLAN, kernels="gpu"),
        lambda: ops.attend_decode(QUERIES.to(HALF), PAGES, PLAN, kernels="gpu"),
        lambda: ops.attend_decode(QUERIES, PAGES, replace(PLAN, spans=PLAN.spans.to("meta"))),
    ],
    "pages": [
        lambda: ops.attend_prefill(QUERIES, PAGES[:1], PLAN, kernels="gpu"),
        lambda: ops.attend_prefill(QUERIES, PAGES[:, :4].contiguous(), PLAN, kernels="gpu"),
        lambda: ops.attend_decode(QUERIES, CODES, PLAN, kernels="gpu"),
        lambda: ops.attend_decode(QUERIES, PAGES, PLAN, scales=SCALES, kernels="gpu"),
        lambda: ops.attend_decode(
            torch.zeros(3, 4, 300), torch.zeros(2, 5, 2, 16, 300), PLAN, kernels="gpu"
        ),
    ],
    "scales": [
        lambda: ops.attend_decode(QUERIES, CODES, PLAN, scales=SCALES[:, :4], kernels="gpu")
    ],
    "plan": [lambda: ops.attend_decode(torch.zeros(9, 4, 32), PAGES, LONG, kernels="gpu")],
    "spans[1]": [
        lambda: plan_attention([Span(0, 2, 2), Span(3, 1, 1)], [[0], [1]], 5),
        lambda: plan_attention([Span(0, 2, 2), Span(2, 2, 1)], [[0], [1]], 5),
    ],
    "spans[0]": [lambda: plan_attention([Span(0, 0, 2)], [[0]], 5)],
    "tables": [lambda: plan_attention([Span(0, 2, 2)], [], 5)],
    "tables[0]": [lambda: plan_attention([Span(0, 1, 17)], [[2]], 5)],
    "tables[0][1]": [
        lambda: plan_attention([Span(0, 1, 17)], [[2, 5]], 5),
        lambda: plan_attention([Span(0, 1, 17)], [[2, -1]], 5),
        lambda: plan_attention([Span(0, 1, 40)], [[-1, -1, 0]], 5, window=20),
    ],
    "tables[0][0]": [
        lambda: plan_attention([Span(0, 1, 40)], [[-2, 1, 0]], 5, window=3),
        lambda: plan_attention([Span(0, 1, 40)], [[-1, -1, 0]], 5, window=3, sinks=1),
    ],
    "window": [
        lambda: plan_attention([], [], 5, window=-1),
        lambda: plan_attention([], [], 5, sinks=4),
    ],
    "form": [lambda: Matrix("int3", torch.zeros(2, 2))],
    "codes": [
        lambda: Matrix("int8", torch.zeros(2, 2), torch.ones(2, 1)),
        lambda: Matrix("float", torch.zeros(2)),
        lambda: Matrix("float", torch.zeros(2, 0)),
    ],
    "zeros": [lambda: Matrix("int4", torch.zeros(2, 32, dtype=torch.uint8), torch.ones(2, 1))],
    "group": [lambda: quantize_matrix(torch.zeros(2, 100), "int8", 64)],
    "bias": [lambda: ops.matmul(ROWS, WEIGHT, bias=torch.zeros(7), kernels="gpu")],
    "row_scales": [
        lambda: ops.matmul(
            ROWS.to(torch.float8_e4m3fn), COARSE, row_scales=torch.ones(2), kernels="gpu"
        )
    ],
    "sources": [lambda: ops.copy_blocks(POOL, [5], [0], kernels="gpu")],
    "targets": [
        lambda: ops.copy_blocks(POOL, [0], [-1], kernels="gpu"),
        lambda: ops.copy_blocks(POOL, [0, 1], [2], kernels="gpu"),
        lambda: ops.copy_blocks(POOL, [0, 1], [2, 2], kernels="gpu"),
        lambda: ops.copy_blocks(POOL, [0, 1], [1, 2], kernels="gpu"),
    ],
    "blocks": [
        lambda: ops.pack_blocks(POOL, [0, 5], kernels="gpu"),
        lambda: ops.unpack_blocks(torch.zeros(2, 2, 2, 2, 16, 32), POOL, [1, 1], kernels="gpu"),
    ],
    "packed": [
        lambda: ops.unpack_blocks(torch.zeros(1, 2, 2, 2, 16, 32), POOL, [1, 2], kernels="gpu")
    ],
    "pool": [lambda: ops.pack_blocks(POOL[:, :1].contiguous(), [0], kernels="gpu")],
    "chosen": [
        lambda: ops.route(torch.zeros(3, 4), 5, kernels="gpu"),
        lambda: ops.route(torch.zeros(3, 4), 0, kernels="gpu"),
    ],
    "routes": [
        lambda: ops.expert_matmul(
            ROWS,
            EXPERTS,
            Routes(torch.full((3, 2), 4, dtype=torch.int32), torch.ones(3, 2)),
            kernels="gpu",
        )
    ],
    "pairs": [lambda: ops.combine_experts(ROWS, ROUTES, kernels="gpu")],
    "logits": [
        lambda: ops.sample(torch.zeros(2, 64), DRAWS, kernels="gpu"),
        lambda: ops.sample(torch.zeros(3, 63), DRAWS, kernels="gpu"),
        lambda: ops.sample(torch.zeros(3, 64, dtype=HALF), DRAWS, kernels="gpu"),
        lambda: ops.route(torch.zeros(3), 1, kernels="gpu"),
    ],
    "draws[1].top_p": [lambda: draw_table([Draw(1, 1), Draw(1, 1, top_p=0.0)], 64)],
    "draws[0].seed": [lambda: draw_table([Draw(2**64, 1)], 64)],
    "draws[0].temperature": [lambda: draw_table([Draw(1, 1, temperature=float("nan"))], 64)],
    "draws[0].seen": [
        lambda: draw_table([Draw(1, 1, seen=(64,))], 64),
        lambda: draw_table([Draw(1, 1, seen=(3, 3))], 64),
    ],
    "draws[0].bias": [
        lambda: draw_table([Draw(1, 1, bias=((3, float("inf")),))], 64),
        lambda: draw_table([Draw(1, 1, bias=((-1, 1.0),))], 64),
    ],
    "kernels": [
        lambda: ops.silu_mul(ROWS, kernels="fast"),
        lambda: ops.silu_mul(ROWS, kernels="cpu"),
        lambda: ops.silu_mul(ROWS, kernels="eager"),
    ],
}
CALLS = [(name, place) for name, calls in REFUSED.items() for place in range(len(calls))]


@pytest.mark.parametrize(("name", "place"), CALLS)
def test_a_bad_argument_is_named_with_what_was_expected(name, place):
    said = "only whole models|expected"
    with pytest.raises(ValueError, match=rf"^{re.escape(name)}[ .].*({said})"):
        REFUSED[name][place]()


def test_gpu_kernels_refuse_memory_of_another_machine_part(monkeypatch):
    monkeypatch.setattr(launch, "INTERPRETED", False)
    with pytest.raises(ValueError, match="rows is on cpu, expected a GPU"):
        ops.rms_norm(ROWS, torch.ones(64), 1e-5, kernels="gpu")


def test_float8_is_refused_by_a_gpu_that_has_none(monkeypatch):
    class Old:
        is_cuda, device = True, torch.device("cuda", 0)

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(ValueError, match="weight is float8 on sm_86, expected sm_89 or later"):
        launch.check_float8("weight", torch.float8_e4m3fn, Old())


def test_gpu_asked_for_by_name_does_not_fall_back(monkeypatch):
    def missing(name):
        raise ImportError("no triton")

    monkeypatch.setattr(ops, "import_module", missing)
    with pytest.raises(ValueError, match="'gpu' are not installed: no triton"):
        ops.silu_mul(ROWS, kernels="gpu")


def test_auto_takes_the_reference_for_tensors_on_a_cpu():
    form, function = ops.implementation("silu_mul", "auto", ROWS)
    assert form == "reference"
    assert function.__module__.endswith("reference.activation")


def test_auto_takes_triton_for_tensors_on_a_gpu_and_holds_them_to_it():
    class There:
        is_cuda = True

    form, function = ops.implementation("silu_mul", "auto", There())
    assert form == "gpu"
    assert function.__module__.endswith("gpu.activation")


def test_every_form_has_every_operation():
    for operation in ops.OPERATIONS:
        for form in ops.FORMS:
            assert callable(ops.implementation(operation, form, ROWS)[1])
