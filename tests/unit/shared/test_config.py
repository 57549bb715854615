"""Settings from file and environment: which wins, and one clear line for every mistake."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from firstlight.shared.config import Settings, load_settings, print_settings, state_dir
from firstlight.shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Listen:
    address: str = "127.0.0.1:1"
    backlog: int = 10
    hosts: tuple[str, ...] = ()


class Example(Settings):
    node: str = "n1"
    listen: Listen = Listen()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "node.yaml"


def test_the_file_overrides_defaults_and_leaves_the_rest(file: Path) -> None:
    file.write_text("listen: {backlog: 3}\n")
    settings = load_settings(Example, file)
    assert settings == Example(listen=Listen(backlog=3))


def test_the_environment_overrides_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("listen: {backlog: 3, address: 'a:1'}\nnode: n2\n")
    monkeypatch.setenv("FIRSTLIGHT_LISTEN__BACKLOG", "4")
    monkeypatch.setenv("FIRSTLIGHT_LISTEN__HOSTS", '["x", "y"]')
    settings = load_settings(Example, file)
    assert settings == Example(node="n2", listen=Listen("a:1", 4, ("x", "y")))


def test_an_address_that_looks_like_a_list_stays_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRSTLIGHT_LISTEN__ADDRESS", "[::1]:80")
    assert load_settings(Example, None).listen.address == "[::1]:80"


def test_every_wrong_value_and_key_gets_its_line(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("listen: {backlog: many, colour: red}\nnode: 3\nengine: {}\n")
    monkeypatch.setenv("FIRSTLIGHT_LISTEN__HOSTS", "x,y")
    with pytest.raises(ConfigError) as caught:
        load_settings(Example, file)
    lines = sorted(caught.value.message.splitlines())
    assert lines == [
        f"engine: unknown key with value {{}} ({file})",
        "listen.backlog: 'many': Input should be a valid integer, "
        f"unable to parse string as an integer ({file})",
        f"listen.colour: unknown key with value 'red' ({file})",
        "listen.hosts: 'x,y': Input should be a valid tuple "
        "(environment variable FIRSTLIGHT_LISTEN__HOSTS)",
        f"node: 3: Input should be a valid string ({file})",
    ]


@pytest.mark.parametrize("variable", ["FIRSTLIGHT_ENGINE__BLOCKS", "FIRSTLIGHT_NOD"])
def test_an_unknown_variable_with_our_prefix_is_refused(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ConfigError, match=f"expected one of node, listen .*{variable}"):
        load_settings(Example, None)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: [1", "not valid YAML"),
        ("- 1\n", r"\[1\], expected a mapping"),
        ("node: a\nnode: b\n", "key 'node' stands twice"),
        ("node: \xff", "not valid YAML"),
        ("!!python/object:os.system {}", "not valid YAML"),
    ],
)
def test_a_broken_file_is_one_error_that_names_it(file: Path, text: str, problem: str) -> None:
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=problem) as caught:
        load_settings(Example, file)
    assert str(file) in caught.value.message
    assert len(caught.value.message.splitlines()) == 1


def test_a_few_lines_that_stand_for_a_billion_values_are_one_short_error(file: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    file.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="aliases stand for more than") as caught:
        load_settings(Example, file)
    assert max(map(len, caught.value.message.splitlines())) < 400


def test_a_value_that_is_part_of_itself_is_refused(file: Path) -> None:
    file.write_text("node: &all [*all]\n")
    with pytest.raises(ConfigError, match=str(file)):
        load_settings(Example, file)


def test_a_missing_file_is_named(file: Path) -> None:
    with pytest.raises(ConfigError, match="No such file") as caught:
        load_settings(Example, file)
    assert str(file) in caught.value.message


def test_an_empty_file_means_defaults(file: Path) -> None:
    file.write_text("# nothing\n")
    assert load_settings(Example, file) == Example()


def test_printed_settings_load_to_the_same(file: Path) -> None:
    settings = Example(node="Zürich", listen=Listen("a:2", 7, ("x",)))
    file.write_text(print_settings(settings))
    assert load_settings(Example, file) == settings


def test_the_state_directory_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FIRSTLIGHT_STATE_DIR", raising=False)
    assert state_dir() == tmp_path / "firstlight"
    monkeypatch.setenv("FIRSTLIGHT_STATE_DIR", str(tmp_path / "here"))
    assert state_dir() == tmp_path / "here"
    load_settings(Example, None)


@pytest.mark.parametrize(
    "text", ["? [a]\n: b", "? {a: b}\n: c", "node: 2001-99-99", "\0", "node: !!x 1"]
)
def test_yaml_that_python_cannot_hold_is_one_error_that_names_the_file(
    file: Path, text: str
) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=str(file)):
        load_settings(Example, file)


def test_a_list_nested_without_end_in_the_environment_stays_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FIRSTLIGHT_LISTEN__HOSTS", "[" * 100_000)
    with pytest.raises(ConfigError, match=r"listen\.hosts"):
        load_settings(Example, None)


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf", "1e999"])
def test_a_number_that_is_none_is_named_by_its_path(file: Path, value: str) -> None:
    @dataclass(frozen=True, slots=True)
    class Times:
        wait_s: float = 1.0

    class Timed(Settings):
        times: Times = Times()

    file.write_text(f"times: {{wait_s: {value}}}\n")
    with pytest.raises(ConfigError, match=r"times\.wait_s: .*expected a finite number"):
        load_settings(Timed, file)


def test_a_number_that_is_none_is_found_within_a_list(file: Path) -> None:
    @dataclass(frozen=True, slots=True)
    class Points:
        points: tuple[tuple[float, float], ...] = ()

    class Table(Settings):
        table: Points = Points()

    file.write_text("table: {points: [[1, 2], [3, .nan]]}\n")
    with pytest.raises(ConfigError, match=r"table\.points\.1\.1: .*expected a finite number"):
        load_settings(Table, file)
