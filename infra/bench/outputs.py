"""Where a result will lie: looked at before the run, so that none is lost to a wrong path."""

import os
from pathlib import Path

from firstlight.shared.errors import ConfigError


def check_output(path: Path) -> None:
    """Raise `ConfigError` if no file can be written there, as far as that can be told before."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder, expected the name of a file")
    if not path.parent.is_dir():
        raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{path} cannot be written: permission denied")
