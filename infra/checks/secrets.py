"""Key files of the settings: whether the node would start with them. Nothing of a key is shown."""

from pathlib import Path

from firstlight.infra.checks.finding import Finding, bad, ok
from firstlight.infra.checks.subject import Subject, sections
from firstlight.shared.errors import ConfigError
from firstlight.shared.keys import read_keys

NAMES = ("salt_file", "stream_file", "mac_key_file")
"""Settings that name a file of `shared.keys`."""


def look(subject: Subject) -> list[Finding]:
    """One finding a file that is named; what is not named is made when a node starts."""
    found = []
    for role, settings in subject.nodes:
        for name, value in sections(settings):
            if isinstance(value, Path) and name.rpartition(".")[2] in NAMES:
                found.append(judge(f"{role} {name}", value))
    return found


def judge(setting: str, path: Path) -> Finding:
    """Whether the file holds keys as a node reads them."""
    try:
        keys = read_keys(setting, path, default=path)
    except ConfigError as error:
        do = "name a file of 64 hex digits a line, the current key first; `openssl rand -hex 32`"
        return bad(setting, error.message.removeprefix(f"{setting}: "), do)
    return ok(setting, f"{len(keys)} key{'s' if len(keys) > 1 else ''} in {path}")
