"""Checkpoints of 8 and 4 bits, packed as their formats say, and what their codes stand for."""

import json

import torch
from families_bed import write_model
from safetensors.torch import load_file, save_file

CODED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "w1", "w2")
GROUP = 32
Tensors = dict[str, torch.Tensor]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def float8(weight, name, block=None):
    """(tensors of the file, what they stand for): a scale a matrix, an output or a block."""
    rows, columns = weight.shape
    high, wide = block or (rows, columns)
    scales = torch.empty(-(-rows // high), -(-columns // wide))
    codes = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
    values = torch.empty_like(weight)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            part = (slice(i * high, (i + 1) * high), slice(j * wide, (j + 1) * wide))
            scales[i, j] = weight[part].abs().max() / 448
            codes[part] = (weight[part] / scales[i, j]).to(torch.float8_e4m3fn)
            values[part] = codes[part].float() * scales[i, j]
    if block is None:
        return {f"{name}.weight": codes, f"{name}.weight_scale": scales[0, 0]}, values
    if block[1] >= columns:
        return {f"{name}.weight": codes, f"{name}.weight_scale": scales}, values
    return {f"{name}.weight": codes, f"{name}.weight_scale_inv": scales}, values


def rounded(weight, seed=0):
    """Codes, scales and zeros of groups of inputs, and the group of each input."""
    groups = torch.arange(weight.shape[1]) // GROUP
    parts = weight.unflatten(1, (-1, GROUP))
    low, high = parts.amin(-1), parts.amax(-1)
    scales = ((high - low) / 15).half()
    zeros = (-low / scales.float()).round().clamp(1, 15)
    codes = (parts / scales.float()[..., None] + zeros[..., None]).round().clamp(0, 15)
    return codes.flatten(1).int(), scales, zeros.int(), groups


def words(codes, order=range(8)):
    """int32 [rows, columns / 8]: nibble i of a word is column order[i] of its eight."""
    word = torch.zeros(codes.shape[0], codes.shape[1] // 8, dtype=torch.int64)
    for i, column in enumerate(order):
        word |= codes[:, column::8].long() << 4 * i
    return torch.where(word >= 1 << 31, word - (1 << 32), word).int()


def awq(weight, name):
    codes, scales, zeros, groups = rounded(weight)
    values = (codes - zeros[:, groups]) * scales.float()[:, groups]
    return {
        f"{name}.qweight": words(codes.T.contiguous(), AWQ_ORDER),
        f"{name}.qzeros": words(zeros.T.contiguous(), AWQ_ORDER),
        f"{name}.scales": scales.T.contiguous(),
    }, values


def gptq(weight, name, ordered=False, offset=1):
    codes, scales, zeros, groups = rounded(weight)
    if ordered:  # inputs were sorted by importance, so groups are scattered
        groups = groups[torch.randperm(len(groups), generator=torch.Generator().manual_seed(3))]
        codes = (weight / scales.float()[:, groups] + zeros[:, groups]).round().clamp(0, 15).int()
    values = (codes - zeros[:, groups]) * scales.float()[:, groups]
    return {
        f"{name}.qweight": words(codes).T.contiguous(),
        f"{name}.qzeros": words((zeros - offset).T.contiguous()),
        f"{name}.scales": scales.T.contiguous(),
        f"{name}.g_idx": groups.int(),
    }, values


COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 8}}},
}
INT4 = {"bits": 4, "group_size": GROUP}
FORMATS = {
    "fp8-blocks": (
        lambda weight, name: float8(weight, name, (24, 40)),
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [24, 40]},
    ),
    "fp8-matrix": (float8, {"quant_method": "fp8", "activation_scheme": "static"}),
    "fp8-outputs": (lambda weight, name: float8(weight, name, (1, 1 << 20)), COMPRESSED),
    "awq": (awq, INT4 | {"quant_method": "awq", "version": "gemm", "zero_point": True}),
    "gptq": (gptq, INT4 | {"quant_method": "gptq", "desc_act": False}),
    "gptq-act-order": (
        lambda weight, name: gptq(weight, name, ordered=True),
        INT4 | {"quant_method": "gptq", "desc_act": True},
    ),
    "gptq-v2": (
        lambda weight, name: gptq(weight, name, offset=0),
        INT4 | {"quant_method": "gptq", "checkpoint_format": "gptq_v2"},
    ),
}


def write_coded(folder, theirs, form):
    """The model in codes; `theirs` becomes what those stand for."""
    pack, config = FORMATS[form]
    write_model(folder, theirs)
    path = folder / "model.safetensors"
    state = load_file(path)
    for name in [name for name in state if name.split(".")[-2] in CODED]:
        coded, values = pack(state.pop(name), name.removesuffix(".weight"))
        state |= coded
        theirs.get_parameter(name).data.copy_(values)
    save_file(state, path, metadata={"format": "pt"})
    change(folder, quantization_config=config)
    return folder


def change(folder, **entries):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
