"""The tokenizer from GGUF: exact ids, exact bytes, and control tokens only where they are meant."""

import json

import pytest
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from firstlight.shared.errors import ConfigError, RequestError
from firstlight.shared.model_files import default_model_path
from firstlight.shared.text.tokenizer import load_tokenizer

CORPUS = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces   three\t\ttabs \n\n new  lines \r\n ",
    "12345 3.14159 2024-01-01 x86_64 ٣٤ ½ Ⅷ",
    "中文字符测试，日本語のテキスト 한국어",
    "👩‍👩‍👧‍👦 🇫🇷 é e\u0301 ﬁ \u200b zero",
    "def f(x: int) -> int:\n    return x ** 2  # it's 4\n",
    "<|im_start|>user\nhi<|im_end|>\n",
    "don't I'll we've THEY'RE",
    "\x00\x01\x7f\u00a0\u3000x",
    "a" * 300,
]


@pytest.fixture(scope="module")
def theirs():
    path = default_model_path()
    other = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # transformers forgets the splitting of digits when it reads GGUF.
    other.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return other


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("text", CORPUS, ids=range(len(CORPUS)))
def test_ids_are_those_of_transformers(text, tokenizer, theirs):
    expected = theirs(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.encode(text, special=True) == expected


@pytest.mark.parametrize("text", CORPUS, ids=range(len(CORPUS)))
def test_text_survives_encoding_as_plain_text(text, tokenizer):
    ids = tokenizer.encode(text, special=False)
    assert not set(ids) & set(tokenizer.control.values())
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_every_digit_is_a_token(tokenizer):
    assert [tokenizer.decode([id_]) for id_ in tokenizer.encode("2024", special=False)] == list(
        "2024"
    )


def test_a_control_token_has_an_id_but_no_bytes(tokenizer):
    (start,) = tokenizer.encode("<|im_start|>", special=True)
    assert tokenizer.control["<|im_start|>"] == start == 1
    assert tokenizer.token_bytes(start) == b""


def test_half_a_character_has_its_bytes_and_decodes_to_a_replacement(tokenizer):
    ids = tokenizer.encode("👩", special=False)
    assert len(ids) > 1
    assert tokenizer.decode(ids[:-1]) == "\ufffd"


def test_half_a_surrogate_pair_is_the_callers_error(tokenizer):
    with pytest.raises(RequestError, match="character 2"):
        tokenizer.encode("ab\ud800", special=False)


def test_an_id_outside_of_the_vocabulary_is_refused(tokenizer):
    assert tokenizer.vocab == 49_152
    with pytest.raises(RequestError, match="49152"):
        tokenizer.token_bytes(49_152)


def test_a_folder_with_the_same_tokenizer_has_the_same_hash(tokenizer, tmp_path):
    tokenizer._parsing.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"eos_token_id": 2}')
    folder = load_tokenizer(tmp_path)
    assert folder.hash == tokenizer.hash
    assert folder.eos_ids == tokenizer.eos_ids == (2,)


def test_one_more_control_token_is_another_hash(tokenizer, tmp_path):
    tokenizer._parsing.save(str(tmp_path / "tokenizer.json"))
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace("<file_sep>", "<file_zap>"))
    assert load_tokenizer(tmp_path).hash != tokenizer.hash


@pytest.mark.parametrize("ids", [{}, {"a": 4_294_967_295}, {"a": 200_000_000}])
def test_a_vocabulary_of_absurd_size_is_refused_before_a_table_is_made(tmp_path, ids):
    model = {"type": "BPE", "vocab": ids, "merges": []}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    whole = {"version": "1.0", "model": model, "pre_tokenizer": level, "added_tokens": []}
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(ConfigError, match="a vocabulary of"):
        load_tokenizer(tmp_path)


def test_what_the_library_panics_on_is_one_error(tmp_path, capfd):
    whole = {
        "version": "1.0",
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(ConfigError, match=r"tokenizer\.json: "):
        load_tokenizer(tmp_path)
