"""Lists that anyone can pass on and nobody can change."""

import base64
from pathlib import Path

import pytest

from firstlight.shared.errors import ConfigError
from firstlight.shared.geography.signing import (
    EDGES,
    STEERING,
    Signer,
    is_signed,
    load_signer,
    public_key,
    read_public_keys,
)

SIGNER = Signer([bytes(range(32))])
BODY = b'{"object":"list"}'


def test_what_is_signed_is_known_by_the_public_key() -> None:
    assert is_signed(SIGNER.header(EDGES, BODY), EDGES, BODY, SIGNER.public)


def test_a_changed_body_or_another_purpose_is_not_signed() -> None:
    header = SIGNER.header(EDGES, BODY)
    assert not is_signed(header, EDGES, BODY + b" ", SIGNER.public)
    assert not is_signed(header, STEERING, BODY, SIGNER.public)


def test_the_signature_is_rfc_8032s() -> None:
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    public = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    expected = (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9"
        "b46bd25bf5f0595bbe24655141438e7a100b"
    )
    signer = Signer([seed])
    assert signer.public[0].raw.hex() == public
    assert base64.b64decode(signer.header(b"", b"").split()[2]).hex() == expected


def test_another_key_is_not_believed_even_under_this_keys_id() -> None:
    other = Signer([bytes(32)])
    signature = other.header(EDGES, BODY).split()[2]
    assert not is_signed(other.header(EDGES, BODY), EDGES, BODY, SIGNER.public)
    forged = f"ed25519 {SIGNER.public[0].id} {signature}"
    assert not is_signed(forged, EDGES, BODY, SIGNER.public)


@pytest.mark.parametrize("header", ["", "ed25519", "ed25519 x", "rsa x y", "ed25519  ", "é é é"])
def test_a_header_that_is_none_is_not_signed(header: str) -> None:
    assert not is_signed(header, EDGES, BODY, SIGNER.public)
    known = f"ed25519 {SIGNER.public[0].id} "
    assert not is_signed(known + header, EDGES, BODY, SIGNER.public)


def test_while_keys_change_the_one_before_is_still_published() -> None:
    old, new = bytes(range(32)), bytes(32)
    both = Signer([new, old])
    assert is_signed(SIGNER.header(EDGES, BODY), EDGES, BODY, both.public)
    assert both.header(EDGES, BODY).split()[1] == public_key(both.public[0].raw).id
    assert both.public[0] != SIGNER.public[0]


def test_the_token_is_known_and_no_other() -> None:
    assert SIGNER.knows(SIGNER.token)
    assert not any(map(SIGNER.knows, ["", "é", SIGNER.token + "0", Signer([bytes(32)]).token]))


def test_the_public_keys_are_put_beside_the_authority(tmp_path: Path) -> None:
    (tmp_path / "ca").mkdir()
    signer = load_signer(None, tmp_path)
    assert read_public_keys(tmp_path / "ca" / "directory.pub") == signer.public
    assert load_signer(None, tmp_path).public == signer.public
    assert (tmp_path / "directory.key").stat().st_mode & 0o077 == 0


def test_no_authority_is_made_up_and_an_operators_folder_is_left_alone(tmp_path: Path) -> None:
    load_signer(None, tmp_path)
    assert not (tmp_path / "ca").exists()
    (tmp_path / "ca").mkdir()
    named = tmp_path / "named.key"
    named.write_text(bytes(range(32)).hex())
    assert load_signer(named, tmp_path).public == SIGNER.public
    assert list((tmp_path / "ca").iterdir()) == []


@pytest.mark.parametrize("text", ["", "00", "zz" * 32])
def test_a_file_without_public_keys_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "directory.pub"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"directory\.pub"):
        read_public_keys(path)
