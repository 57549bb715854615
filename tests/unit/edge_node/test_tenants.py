"""Bearer keys against a file of hashes."""

from hashlib import sha256
from pathlib import Path

import pytest

from firstlight.edge_node.tenants import Salts, Tenants
from firstlight.shared.errors import AuthError, ConfigError

DIGEST = sha256(b"sk-first-key-0001").hexdigest()


def load(tmp_path: Path, text: str) -> Tenants:
    (tmp_path / "keys").write_text(text)
    return Tenants.load(tmp_path / "keys", loopback=False)


def test_a_key_names_its_tenant(tmp_path: Path) -> None:
    other = sha256(b"sk-second").hexdigest()
    tenants = load(tmp_path, f"# keys\n\nacme: {DIGEST}  # laptop\nacme: '{other}'\n")
    assert tenants.of("Bearer sk-first-key-0001") == "acme"
    assert tenants.of("bearer  sk-second ") == "acme"


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic abc", "sk-first-key-0001"]
)
def test_no_key_is_an_auth_error(tmp_path: Path, header: str | None) -> None:
    with pytest.raises(AuthError, match="no API key") as caught:
        load(tmp_path, f"acme: {DIGEST}").of(header)
    assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize("key", ["sk-first-key-0002", DIGEST, "x" * 5000, "ключ"])
def test_an_unknown_key_is_an_auth_error_that_does_not_show_it(tmp_path: Path, key: str) -> None:
    with pytest.raises(AuthError, match="unknown API key") as caught:
        load(tmp_path, f"acme: {DIGEST}").of(f"Bearer {key}")
    assert key not in caught.value.message


def test_without_a_file_a_loopback_listener_serves_the_local_tenant() -> None:
    assert Tenants.load(None, loopback=True).of(None) == "local"


def test_without_a_file_no_other_listener_starts() -> None:
    with pytest.raises(ConfigError, match="not on a loopback"):
        Tenants.load(None, loopback=False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("acme: abc", "line 1"),
        (f"\nacme {DIGEST}", "line 2"),
        ("", "no tenant"),
        (f"a: {DIGEST}\nb: {DIGEST}", "line 2: b has the key of a"),
        (f"{'a' * 65}: {DIGEST}", "line 1"),
    ],
)
def test_a_file_that_lies_is_a_config_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        Tenants.load(tmp_path / "nowhere", loopback=True)


def test_tenants_of_one_group_have_one_salt_and_all_others_their_own() -> None:
    salts = Salts(bytes(32), {"lab": ("ann", "ben")})
    assert salts.of("ann") == salts.of("ben")
    others = {salts.of(tenant) for tenant in ("ann", "cid", "dan", "lab")}
    assert len(others) == 4


def test_a_tenant_of_two_groups_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sharing\.groups: ann is in lab and in shop"):
        Salts(bytes(32), {"lab": ("ann",), "shop": ("ann",)})
