"""Which GPU is taken, and what is said where there is none that can be."""

import pytest
import torch

from firstlight.kernels.gpu import kernels as gpu
from firstlight.kernels.gpu.kernels import Found, GpuKernels, choose
from firstlight.kernels.sets import open_gpu

TWO = Found("13.0", ((8, 0), (9, 0)))


def test_cuda_is_the_first_gpu_and_a_number_names_another():
    assert choose("cuda", TWO) == (0, (8, 0))
    assert choose("cuda:1", TWO) == (1, (9, 0))


@pytest.mark.parametrize(
    ("device", "found", "message"),
    [
        ("gpu", TWO, "device is 'gpu', expected cpu, cuda, or cuda:1"),
        ("cuda:x", TWO, "device is 'cuda:x', expected cpu, cuda"),
        ("cuda", Found(None), "device is 'cuda', and this torch .* was built without CUDA"),
        ("cuda", Found("13.0"), r"CUDA 13\.0 finds 0 GPUs here \(none\)"),
        ("cuda:2", TWO, r"device is 'cuda:2', and CUDA 13\.0 finds 2 GPUs here \(sm_80, sm_90\)"),
        ("cuda", Found("12.8", ((7, 5),)), "device 'cuda' is sm_75, expected sm_80 or later"),
    ],
)
def test_another_device_is_refused_with_what_was_found(device, found, message):
    with pytest.raises(ValueError, match=message):
        choose(device, found)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_here_is_not_replaced_by_a_cpu():
    with pytest.raises(ValueError, match="device is 'cuda'"):
        open_gpu("cuda")


def test_a_gpu_that_others_have_is_refused_with_what_cuda_says(monkeypatch):
    def busy(_: torch.device) -> None:
        raise RuntimeError("CUDA-capable device(s) is/are busy or unavailable")

    monkeypatch.setattr(gpu, "find", lambda: TWO)
    monkeypatch.setattr(torch.cuda, "mem_get_info", busy)
    with pytest.raises(ValueError, match=r"device is 'cuda:1', and CUDA cannot open it: .* busy"):
        open_gpu("cuda:1")


def test_compiled_kernels_do_not_run_on_a_cpu(monkeypatch):
    monkeypatch.setattr(gpu, "INTERPRETED", False)
    with pytest.raises(ValueError, match="kernels gpu on cpu, expected a GPU"):
        GpuKernels(torch.device("cpu"), None, 0)


def test_float8_needs_a_gpu_that_has_it():
    old = GpuKernels(torch.device("cuda", 0), (8, 6), 0)
    old.check_weights("int8")
    with pytest.raises(ValueError, match="fp8 need sm_89 or later, and cuda:0 is sm_86"):
        old.check_weights("fp8")
    GpuKernels(torch.device("cuda", 0), (8, 9), 0).check_weights("fp8")
