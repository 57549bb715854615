"""Settings of a process: one YAML file, the environment over it, nothing else.

This is the only module that reads environment variables. A settings model is composed of plain
frozen dataclasses, one a section, which live beside the code that they configure:

    class LbSettings(Settings):
        tls: TlsConfig = TlsConfig()

    lb.yaml                          tls: {directory: /var/lib/firstlight}
    environment                      FIRSTLIGHT_TLS__DIRECTORY=/var/lib/firstlight
"""

import json
import os
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import BaseModel, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from firstlight.shared.errors import ConfigError

PREFIX = "FIRSTLIGHT_"
NOT_SETTINGS = frozenset({"FIRSTLIGHT_STATE_DIR"})
"""Variables with our prefix that are read elsewhere in this module."""

FILE_BYTES_MAX = 1 << 20
VALUES_MAX = 1_000_000
"""In a document, with what its aliases repeat."""

Region = Annotated[str, Field(min_length=1, max_length=64)]
Seconds = Annotated[float, Field(ge=0)]


class Settings(BaseSettings):
    """What a process' settings model derives from: unknown keys are refused, values are frozen."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is passed in: `load_settings` reads the sources, to know each origin."""
        return (init_settings,)


T = TypeVar("T", bound=Settings)
D = TypeVar("D", bound=BaseModel)


def load_settings(model: type[T], path: Path | None) -> T:
    """Settings of `model` from the file, the environment over it, defaults below.

    Raises `ConfigError` with one line an error: the dotted path, the value, what was expected and
    where the value came from.
    """
    from_file = read_document(path) if path is not None else {}
    from_environment = _read_environment(model)
    try:
        settings = model(**over(from_file, from_environment))
    except ValidationError as error:
        lines = [_line(item, path, from_environment) for item in error.errors()]
        raise ConfigError("\n".join(lines)) from None
    lines = [
        f"{_dotted(where)}: {value}, expected a finite number"
        for where, value in _not_finite(settings.model_dump(), ())
    ]
    if lines:
        raise ConfigError("\n".join(lines))
    return settings


def load_document(model: type[D], path: Path) -> D:
    """A file that is nobody's settings, read and refused as they are, without environment."""
    return parse_document(model, read_document(path), path)


def parse_document(model: type[D], document: Mapping[str, Any], path: Path) -> D:
    """What `read_document` gave, checked. Raises `ConfigError`, one line an error."""
    try:
        parsed = model.model_validate(document)
    except ValidationError as error:
        raise ConfigError("\n".join(_line(item, path, {}) for item in error.errors())) from None
    for where, value in _not_finite(parsed.model_dump(), ()):
        raise ConfigError(f"{_dotted(where)}: {value}, expected a finite number ({path})")
    return parsed


def _count(value: object, known: dict[int, int]) -> int:
    """Values of a document with aliases written out, though each is visited once.

    What is part of itself has no end: `RecursionError`.
    """
    if not isinstance(value, dict | list | tuple):
        return 1
    if id(value) not in known:
        below = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_count(one, known) for one in below)
    return known[id(value)]


def environment_of(state: Path) -> dict[str, str]:
    """This process' environment for a child whose state directory is another."""
    return {**os.environ, "FIRSTLIGHT_STATE_DIR": str(state)}


def print_settings(settings: Settings) -> str:
    """The settings in force, as YAML that `load_settings` reads back."""
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def state_dir() -> Path:
    """Where this user's nodes keep certificates and the like; `FIRSTLIGHT_STATE_DIR` moves it."""
    given = os.environ.get("FIRSTLIGHT_STATE_DIR")
    if given:
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "firstlight"


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping, where YAML lets the last one win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = key_node.value
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_document(path: Path) -> dict[str, Any]:
    """A YAML file as it stands there; empty if nothing does. Raises `ConfigError`."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"{path}: larger than {FILE_BYTES_MAX} bytes")
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
        if _count(values, {}) > VALUES_MAX:
            raise ConfigError(f"{path}: its aliases stand for more than {VALUES_MAX} values")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        # ValueError: not UTF-8, or a date that no calendar has; TypeError: a list as a key.
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: not valid YAML: {reason}") from None
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(f"{path}: {_short(values)}, expected a mapping of sections")
    return values


def _read_environment(model: type[Settings]) -> dict[str, Any]:
    fields = model.model_fields
    unknown = [
        name
        for name in sorted(os.environ)
        if name.startswith(PREFIX)
        and name not in NOT_SETTINGS
        and name.removeprefix(PREFIX).split("__")[0].lower() not in fields
    ]
    if unknown:
        raise ConfigError(
            "\n".join(
                f"{_dotted(_path_of(name))}: unknown key, expected one of {', '.join(fields)} "
                f"(environment variable {name})"
                for name in unknown
            )
        )
    values: dict[str, Any] = {}
    for name in sorted(os.environ):
        if not name.startswith(PREFIX) or name in NOT_SETTINGS:
            continue
        nested: Any = _decoded(os.environ[name])
        for part in reversed(_path_of(name)):
            nested = {part: nested}
        values = over(values, nested)
    return values


def _decoded(text: str) -> Any:
    """Lists and mappings stand in the environment as JSON; anything else is text."""
    if text[:1] not in ("[", "{"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both, section by section; where both say something, what stands above."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        if isinstance(under, Mapping) and isinstance(value, Mapping):
            merged[key] = over(under, value)
        else:
            merged[key] = value
    return merged


def _not_finite(value: object, where: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], float]]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _not_finite(below, (*where, str(key)))
    elif isinstance(value, list | tuple):
        for place, below in enumerate(value):
            yield from _not_finite(below, (*where, str(place)))
    elif isinstance(value, float) and not isfinite(value):
        yield where, value


def _path_of(variable: str) -> list[str]:
    return variable.removeprefix(PREFIX).lower().split("__")


def _line(item: Mapping[str, Any], path: Path | None, environment: Mapping[str, Any]) -> str:
    where = [str(part) for part in item["loc"]]
    if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        problem = f"unknown key with value {_short(item['input'])}"
    elif item["type"] in ("missing", "missing_argument"):
        problem = "missing"
    else:
        problem = f"{_short(item['input'])}: {item['msg'].removeprefix('Value error, ')}"
    if _holds(environment, where):
        origin = f"environment variable {PREFIX}{'__'.join(where).upper()}"
    else:
        origin = str(path) if path is not None else "no file given"
    return f"{_dotted(where)}: {problem} ({origin})"


def _holds(values: Mapping[str, Any], where: Sequence[str]) -> bool:
    node: Any = values
    for part in where:
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True


def _dotted(where: Sequence[str]) -> str:
    return ".".join(where)


def _short(value: object) -> str:
    text = reprlib.repr(value)  # never all of it: aliases make ten lines of YAML a billion values
    return text if len(text) <= 80 else text[:77] + "..."
