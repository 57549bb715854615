"""Text to token ids and back, from a GGUF file or a `tokenizer.json`.

Byte-level BPE only: any bytes have ids and each id has exact bytes, which the detokenizer rests
on. Text that a user wrote is encoded with `special=False`, so that it cannot contain a control
token.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as BpeTokenizer
from tokenizers import normalizers as normal_forms

from firstlight.shared.errors import ConfigError, RequestError
from firstlight.shared.model_files import TensorFile, read_gguf, read_json

_CONTROL, _USER_DEFINED = 3, 4
"""GGUF token types that matter here; 1 is an ordinary token."""

_VOCAB_MAX = 1 << 22
"""Ids up to here; a table of all of them is made."""

_QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Tokenizer:
    """One vocabulary. Safe to share between threads."""

    def __init__(self, bpe: BpeTokenizer, eos_ids: Sequence[int], path: Path) -> None:
        description = json.loads(bpe.to_str())
        if description["model"]["type"] != "BPE" or "ByteLevel" not in json.dumps(
            [description["pre_tokenizer"], description["decoder"]]
        ):
            raise ConfigError(f"{path}: only byte-level BPE tokenizers are supported")
        self._parsing = bpe
        self._plain = BpeTokenizer.from_str(bpe.to_str())
        self._plain.encode_special_tokens = True
        added = bpe.get_added_tokens_decoder()
        self.control: Mapping[str, int] = {
            token.content: id_ for id_, token in added.items() if token.special
        }
        """Text of each control token → its id."""
        self.vocab: int = max(bpe.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        """Number of ids."""
        if not 0 < self.vocab <= _VOCAB_MAX:
            raise ConfigError(f"{path}: a vocabulary of {self.vocab}, expected 1 to {_VOCAB_MAX}")
        self.eos_ids: tuple[int, ...] = tuple(eos_ids)
        if any(not 0 <= id_ < self.vocab for id_ in self.eos_ids):
            raise ConfigError(f"{path}: end tokens {self.eos_ids} of a vocabulary of {self.vocab}")
        self.hash: str = _hash(description)
        """BLAKE2b-128 of everything that decides which ids a text has."""
        self._bytes = [b""] * self.vocab
        alphabet = _byte_alphabet()
        for token, id_ in bpe.get_vocab(with_added_tokens=True).items():
            if id_ not in added:
                self._bytes[id_] = _to_bytes(token, alphabet)
            elif not added[id_].special:
                self._bytes[id_] = token.encode()

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Ids of `text`; with `special`, control tokens written in it become their ids.

        Raises:
            RequestError: the text holds half a surrogate pair, which no UTF-8 text can.

        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"text is not Unicode at character {error.start}") from error
        chosen = self._parsing if special else self._plain
        ids: list[int] = chosen.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids; control tokens are left out, broken UTF-8 becomes U+FFFD."""
        return b"".join(self.token_bytes(id_) for id_ in ids).decode("utf-8", "replace")

    def token_bytes(self, id_: int) -> bytes:
        """The exact bytes of one token; nothing for a control token or an unused id."""
        if not 0 <= id_ < self.vocab:
            raise RequestError(f"token id {id_} is not in the vocabulary of {self.vocab}")
        return self._bytes[id_]


def load_tokenizer(path: Path) -> Tokenizer:
    """From a GGUF file, or a folder with `tokenizer.json`.

    Raises:
        ConfigError: a file is wrong, or its tokenizer is of an unsupported kind.

    """
    return _from_folder(path) if path.is_dir() else _from_gguf(read_gguf(path))


def _from_folder(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    read_json(path)
    try:
        bpe = BpeTokenizer.from_file(str(path))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # it raises plain Exception, and what it panics on as no kin
        raise ConfigError(f"{path}: {error}") from error
    bpe.no_truncation()
    bpe.no_padding()
    found: list[int] = []
    for name in ("config.json", "generation_config.json"):
        if (folder / name).is_file():
            value = read_json(folder / name).get("eos_token_id")
            items = value if isinstance(value, list) else [value]
            found += [item for item in items if type(item) is int]
    settings = folder / "tokenizer_config.json"
    if settings.is_file():
        token = token_text(read_json(settings).get("eos_token"))
        id_ = bpe.token_to_id(token) if token else None
        found += [] if id_ is None else [id_]
    return Tokenizer(bpe, tuple(dict.fromkeys(found)), path)


def token_text(value: object) -> str:
    """Text of a token as `tokenizer_config.json` writes it: text, an object with content, or
    null."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _from_gguf(file: TensorFile) -> Tokenizer:
    path, metadata = file.path, file.metadata
    if metadata.get("tokenizer.ggml.model") != "gpt2":
        raise ConfigError(
            f"{path}: tokenizer {metadata.get('tokenizer.ggml.model')!r}, supported is gpt2"
        )
    tokens = _texts(file, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in _texts(file, "tokenizer.ggml.merges")]
    types = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(types, list) or len(types) != len(tokens):
        raise ConfigError(f"{path}: tokenizer.ggml.token_type does not fit {len(tokens)} tokens")
    ids = {token: id_ for id_, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise ConfigError(f"{path}: tokenizer.ggml.tokens has the same token twice")
    pairs = [(merge[0], merge[1]) for merge in merges if len(merge) == 2]
    if len(pairs) != len(merges):
        raise ConfigError(f"{path}: an entry of tokenizer.ggml.merges is not a pair")
    try:
        bpe = BpeTokenizer(models.BPE(vocab=ids, merges=pairs))
    except Exception as error:  # tokenizers raises plain Exception
        raise ConfigError(f"{path}: tokenizer.ggml.merges: {error}") from error
    _split_words(bpe, metadata.get("tokenizer.ggml.pre"), path)
    bpe.decoder = decoders.ByteLevel()
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        picked = [token for token, type_ in zip(tokens, types, strict=True) if type_ == kind]
        bpe.add_tokens([AddedToken(token, special=special, normalized=False) for token in picked])
    names = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    ends = [id_ for id_ in map(metadata.get, names) if isinstance(id_, int)]
    return Tokenizer(bpe, tuple(dict.fromkeys(ends)), path)


def _split_words(bpe: BpeTokenizer, name: object, path: Path) -> None:
    """How text is cut before merges, by the name that GGUF gives it."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "smollm":  # every digit by itself, before words are cut
        digits = pre_tokenizers.Digits(individual_digits=True)
        bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    elif name in ("gpt-2", "gpt2"):
        bpe.pre_tokenizer = byte_level
    elif name == "qwen2":
        bpe.normalizer = normal_forms.NFC()
        words = pre_tokenizers.Split(Regex(_QWEN2_WORDS), "isolated")
        raw = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        bpe.pre_tokenizer = pre_tokenizers.Sequence([words, raw])
    else:
        raise ConfigError(f"{path}: pre-tokenizer {name!r}, supported are smollm, gpt-2, qwen2")


def _texts(file: TensorFile, key: str) -> list[str]:
    value = file.metadata.get(key)
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{file.path}: {key} is missing")
    texts = [item for item in value if isinstance(item, str)]
    if len(texts) != len(value):
        raise ConfigError(f"{file.path}: {key} is not a list of texts")
    return texts


def _hash(description: Mapping[str, object]) -> str:
    model = description["model"]
    assert isinstance(model, dict)
    parts = [model["vocab"], model["merges"]]
    parts += [description[part] for part in ("added_tokens", "normalizer", "pre_tokenizer")]
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return blake2b(canonical.encode(), digest_size=16).hexdigest()


def _byte_alphabet() -> dict[str, int]:
    """Character → byte in byte-level BPE: printable bytes of Latin-1 stand for themselves, the
    other 68 for the characters from U+0100 on, in order."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in kept}
    others = [byte for byte in range(256) if chr(byte) not in alphabet]
    alphabet |= {chr(0x100 + index): byte for index, byte in enumerate(others)}
    return alphabet


def _to_bytes(token: str, alphabet: Mapping[str, int]) -> bytes:
    if all(character in alphabet for character in token):
        return bytes(alphabet[character] for character in token)
    return token.encode()
