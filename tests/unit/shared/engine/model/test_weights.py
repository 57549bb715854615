"""Every kind of weight that a GGUF file may hold, against the format's own definition."""

from collections.abc import Callable
from pathlib import Path
from struct import unpack

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from firstlight.shared.engine.model.config import config_from_gguf
from firstlight.shared.engine.model.rope import frequencies
from firstlight.shared.engine.model.weights import expected_shapes, weights_from_gguf
from firstlight.shared.errors import ConfigError
from firstlight.shared.model_files import read_gguf

HIDDEN, WIDE, HEADS, LAYERS, VOCAB = 256, 512, 4, 1, 256
Block = Callable[[bytes], list[float]]


def q4_0(raw: bytes) -> list[float]:
    (d,), q = unpack("<e", raw[:2]), raw[2:]
    return [d * ((x & 15) - 8) for x in q] + [d * ((x >> 4) - 8) for x in q]


def q4_1(raw: bytes) -> list[float]:
    (d, m), q = unpack("<ee", raw[:4]), raw[4:]
    return [d * (x & 15) + m for x in q] + [d * (x >> 4) + m for x in q]


def q8_0(raw: bytes) -> list[float]:
    d, *q = unpack("<e32b", raw)
    return [d * x for x in q]


def scales_of(packed: bytes) -> list[tuple[int, int]]:
    """(scale, minimum) of the eight groups of a K block, six bits each in twelve bytes."""
    low = [(packed[j] & 63, packed[j + 4] & 63) for j in range(4)]
    high = [
        (
            (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4,
            (packed[j + 4] >> 4) | (packed[j] >> 6) << 4,
        )
        for j in range(4, 8)
    ]
    return low + high


def q4_k(raw: bytes) -> list[float]:
    d, least = unpack("<ee", raw[:4])
    groups, values = scales_of(raw[4:16]), []
    for pair in range(4):
        q = raw[16 + 32 * pair : 48 + 32 * pair]
        for half in range(2):
            scale, minimum = groups[2 * pair + half]
            values += [d * scale * ((x >> 4 * half) & 15) - least * minimum for x in q]
    return values


def q5_k(raw: bytes) -> list[float]:
    d, least = unpack("<ee", raw[:4])
    groups, fifth, values = scales_of(raw[4:16]), raw[16:48], []
    for pair in range(4):
        q = raw[48 + 32 * pair : 80 + 32 * pair]
        for half in range(2):
            (scale, minimum), bit = groups[2 * pair + half], 2 * pair + half
            values += [
                d * scale * (((x >> 4 * half) & 15) + 16 * ((h >> bit) & 1)) - least * minimum
                for x, h in zip(q, fifth, strict=True)
            ]
    return values


def q6_k(raw: bytes) -> list[float]:
    low, high = raw[:128], raw[128:192]
    scales, (d,) = unpack("<16b", raw[192:208]), unpack("<e", raw[208:])
    values = []
    for half in range(2):
        for quarter in range(4):
            for i in range(32):
                x = low[64 * half + 32 * (quarter % 2) + i] >> 4 * (quarter // 2) & 15
                x |= (high[32 * half + i] >> 2 * quarter & 3) << 4
                values.append(d * scales[8 * half + 2 * quarter + i // 16] * (x - 32))
    return values


KINDS: dict[str, tuple[Block, int, int, int]] = {
    "Q4_0": (q4_0, 32, 18, 1),
    "Q4_1": (q4_1, 32, 20, 2),
    "Q8_0": (q8_0, 32, 34, 1),
    "Q4_K": (q4_k, 256, 144, 2),
    "Q5_K": (q5_k, 256, 176, 2),
    "Q6_K": (q6_k, 256, 210, -1),
}
"""Kind → values of a block, elements, bytes, and its half floats (−1: one, at its end)."""


def quantized(kind: str, shape: tuple[int, ...]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Random blocks of a tensor, and the values that they stand for."""
    values_of, elements, size_bytes, halves = KINDS[kind]
    rng = np.random.default_rng(7)
    count = int(np.prod(shape)) // elements
    raw = rng.integers(0, 256, (count, size_bytes), dtype=np.uint8)
    scales = rng.uniform(-0.01, 0.01, (count, abs(halves))).astype(np.float16).view(np.uint8)
    if halves < 0:
        raw[:, -scales.shape[1] :] = scales
    else:
        raw[:, : scales.shape[1]] = scales
    values = np.array([values_of(block.tobytes()) for block in raw], np.float32).reshape(shape)
    return raw.reshape(*shape[:-1], -1), values


def write(path: Path, tensors: dict[str, tuple[NDArray[np.uint8], str]]) -> Path:
    writer = GGUFWriter(path, "llama")
    for key, value in (
        ("block_count", LAYERS), ("embedding_length", HIDDEN), ("feed_forward_length", WIDE),
        ("attention.head_count", HEADS), ("attention.head_count_kv", HEADS),
        ("context_length", 512), ("vocab_size", VOCAB),
    ):  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_array("tokenizer.ggml.tokens", [str(i) for i in range(VOCAB)])
    writer.add_uint32("tokenizer.ggml.eos_token_id", 0)
    for name, (raw, kind) in tensors.items():
        writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


THEIRS = {
    "embedding": "token_embd", "norm": "output_norm", "attention_norm": "blk.0.attn_norm",
    "q": "blk.0.attn_q", "k": "blk.0.attn_k", "v": "blk.0.attn_v", "o": "blk.0.attn_output",
    "mlp_norm": "blk.0.ffn_norm", "gate": "blk.0.ffn_gate", "up": "blk.0.ffn_up",
    "down": "blk.0.ffn_down",
}  # fmt: skip
SHAPES = {
    "embedding": (VOCAB, HIDDEN), "norm": (HIDDEN,), "attention_norm": (HIDDEN,),
    "q": (HIDDEN, HIDDEN), "k": (HIDDEN, HIDDEN), "v": (HIDDEN, HIDDEN), "o": (HIDDEN, HIDDEN),
    "mlp_norm": (HIDDEN,), "gate": (WIDE, HIDDEN), "up": (WIDE, HIDDEN), "down": (HIDDEN, WIDE),
}  # fmt: skip


def a_model(path: Path, kind: str, **changed: tuple[int, ...]) -> Path:
    """A model of which all matrices are of one kind; `changed` gives some another shape."""
    tensors = {}
    for name, shape in (SHAPES | changed).items():
        if len(shape) == 1:
            ones: NDArray[np.float32] = np.ones(shape, np.float32)
            tensors[f"{THEIRS[name]}.weight"] = (ones.view(np.uint8), "F32")
        else:
            tensors[f"{THEIRS[name]}.weight"] = (quantized(kind, shape)[0], kind)
    return write(path, tensors)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_block_is_read_by_its_definition(kind: str, tmp_path: Path) -> None:
    file = read_gguf(a_model(tmp_path / "m.gguf", kind))
    weights = weights_from_gguf(file, config_from_gguf(file))
    for name in ("embedding", "v", "down"):
        expected = quantized(kind, SHAPES[name])[1]
        np.testing.assert_allclose(weights.read(name, 0), expected, rtol=1e-6, atol=1e-7)


def test_a_tensor_of_another_shape_than_declared_is_refused_unread(tmp_path: Path) -> None:
    path = a_model(tmp_path / "m.gguf", "Q6_K", down=(HIDDEN, HIDDEN))
    file = read_gguf(path)
    assert expected_shapes(config_from_gguf(file))["down"] == (HIDDEN, WIDE)
    path.unlink()  # whatever is said now is said without the data
    with pytest.raises(ConfigError, match=r"'blk\.0\.ffn_down\.weight' is \[256, 256\]"):
        weights_from_gguf(file, config_from_gguf(file))


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ([1.0, 2.0, 4.0, 8.0] * 8, None),
        ([1.0] * 31, "31 rotary divisors"),
        ([1.0] * 31 + [0.0], "not above zero"),
        ([1.0] * 31 + [float("nan")], "not above zero"),
    ],
)
def test_frequencies_of_rotary_embedding_may_be_divided_beforehand(values, wrong, tmp_path):
    tensors = {
        f"{THEIRS[name]}.weight": (np.ones(shape, np.float32).view(np.uint8), "F32")
        for name, shape in SHAPES.items()
    }
    tensors["rope_freqs.weight"] = (np.array(values, np.float32).view(np.uint8), "F32")
    file = read_gguf(write(tmp_path / "m.gguf", tensors))
    if wrong:
        with pytest.raises(ConfigError, match=wrong):
            config_from_gguf(file)
        return
    found = config_from_gguf(file)
    turns = frequencies(found.rope_theta, found.head_dim, found.rope_scaling)
    plain = frequencies(found.rope_theta, found.head_dim, None)
    assert turns == pytest.approx(plain / np.array(values))
