"""Block hashes: what a shared prefix is."""

import json
from hashlib import blake2b
from pathlib import Path

import pytest

from firstlight.shared.blocks import (
    BLOCK_TOKENS,
    block_hashes,
    blocks_for,
    checkpoints,
    kv_namespace,
    root_hash,
    tenant_salt,
)

VECTORS = Path(__file__).parents[2] / "vectors" / "blocks.json"
ROOT = root_hash(tokenizer_hash="t", salt=b"s")


def prefixed(*parts: str | bytes) -> bytes:
    raw = [part.encode() if isinstance(part, str) else part for part in parts]
    return b"".join(len(part).to_bytes(4, "little") + part for part in raw)


def test_vectors_in_the_repository_are_what_we_compute():
    for one in json.loads(VECTORS.read_text())["blocks"]:
        key = bytes.fromhex(one["salt_key"])
        scope = ("group", one["group"]) if one["group"] else ("tenant", one["tenant"])
        salt = tenant_salt(key, tenant=one["tenant"], group=one["group"])
        assert salt.hex() == one["salt"]
        assert salt == blake2b(prefixed(*scope), key=key, digest_size=16).digest()
        root = root_hash(tokenizer_hash=one["tokenizer_hash"], adapter=one["adapter"], salt=salt)
        assert root.hex() == one["root"]
        plain = prefixed(one["tokenizer_hash"], one["adapter"], salt)
        assert root == blake2b(plain, digest_size=16).digest()
        parent, expected = root, []
        for start in range(0, len(one["ids"]) // 16 * 16, 16):
            ids = b"".join(i.to_bytes(4, "little") for i in one["ids"][start : start + 16])
            parent = blake2b(parent + ids, digest_size=16).digest()
            expected.append(parent.hex())
        assert expected == one["hashes"]
        assert [h.hex() for h in block_hashes(root, one["ids"])] == one["hashes"]


def test_only_full_blocks_have_a_hash():
    assert [len(block_hashes(ROOT, range(n))) for n in (0, 15, 16, 31, 32)] == [0, 0, 1, 1, 2]


def test_a_hash_covers_all_ids_before_it():
    first, second = list(range(32)), [99, *range(1, 32)]
    assert block_hashes(ROOT, first)[1] != block_hashes(ROOT, second)[1]


def test_a_longer_sequence_begins_with_the_hashes_of_a_shorter_one():
    assert block_hashes(ROOT, range(100))[:2] == block_hashes(ROOT, range(40))


@pytest.mark.parametrize(
    "other",
    [
        {"tokenizer_hash": "u", "salt": b"s"},
        {"tokenizer_hash": "t", "salt": b"z"},
        {"tokenizer_hash": "t", "adapter": "a", "salt": b"s"},
        {"tokenizer_hash": "", "adapter": "t", "salt": b"s"},
    ],
)
def test_tokenizer_adapter_and_salt_each_change_the_root(other):
    assert root_hash(**other) != ROOT


def test_a_tenant_and_a_group_of_the_same_name_do_not_share():
    key = bytes(32)
    assert tenant_salt(key, tenant="a") != tenant_salt(key, tenant="b", group="a")


def test_tenants_of_one_group_share():
    key = bytes(32)
    assert tenant_salt(key, tenant="a", group="g") == tenant_salt(key, tenant="b", group="g")


def test_blocks_for_rounds_up():
    assert [blocks_for(n) for n in (0, 1, BLOCK_TOKENS, BLOCK_TOKENS + 1)] == [0, 1, 1, 2]


def test_checkpoints_are_every_eighth_block_and_the_last_one() -> None:
    assert [checkpoints(n) for n in (0, 1, 7, 8, 9, 17)] == [
        [],
        [0],
        [6],
        [7],
        [7, 8],
        [7, 15, 16],
    ]


def test_a_namespace_is_length_prefixed_blake2b_over_its_parts() -> None:
    expected = blake2b(prefixed("weights", "layout", "f32", "class"), digest_size=8).hexdigest()
    assert kv_namespace("weights", "layout", "f32", "class") == expected
    assert kv_namespace("weights", "layoutf32", "class") != kv_namespace(
        "weights", "layout", "f32class"
    )
