"""The settings of a core."""

import asyncio
from pathlib import Path

import pytest

from firstlight.core_node.app import main
from firstlight.core_node.config import CoreSettings
from firstlight.core_node.drafting import DraftingSection
from firstlight.shared.config import load_settings, print_settings
from firstlight.shared.engine.oracle import OracleConfig
from firstlight.shared.engine.plan import EngineConfig, Slas
from firstlight.shared.errors import ConfigError
from firstlight.shared.routing.fetch import Way


def load(tmp_path: Path, text: str) -> CoreSettings:
    path = tmp_path / "core.yaml"
    path.write_text(text)
    return load_settings(CoreSettings, path)


def test_an_empty_file_gives_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, "") == CoreSettings()


def test_a_section_may_name_some_keys_only(tmp_path: Path) -> None:
    settings = load(tmp_path, "engine: {blocks: 64, speculation: 'off'}\nmodel: {threads: 2}\n")
    assert settings.engine == EngineConfig(blocks=64, speculation="off")
    assert settings.model.threads == 2


def test_one_sla_of_a_class_may_be_set_alone(tmp_path: Path) -> None:
    settings = load(tmp_path, "engine: {slas: {batch_s: 5}}\n")
    assert settings.engine.slas == Slas(batch_s=5)


def test_what_is_printed_reads_back(tmp_path: Path) -> None:
    settings = load(tmp_path, "node: core-eu\nload_balancers: ['127.0.0.1:1']\n")
    assert load(tmp_path, print_settings(settings)) == settings


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("engine: {block: 64}", "engine.block"),
        ("model: {weights: f64}", "model.weights"),
        ("model: {timed: h100-8b, device: cuda}", "device is 'cuda', not cpu"),
        ("drafting: {ngram: [1]}", "drafting.ngram"),
        ("port: 1", "port"),
    ],
)
def test_a_wrong_key_or_value_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(tmp_path, text)


def test_the_context_is_cut_to_the_models() -> None:
    assert EngineConfig(context_max=8192).fitted(2048).context_max == 2048
    assert EngineConfig(context_max=1024).fitted(2048).context_max == 1024


def test_the_context_is_cut_to_what_the_blocks_hold() -> None:
    assert EngineConfig(blocks=10).fitted(2048).context_max == 160


@pytest.mark.parametrize("name", ["step_max_ms", "step_alone_max_ms", "credit_timeout_s"])
def test_a_limit_of_the_engine_that_is_none_is_named_with_its_section(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^engine: .*{name} is -1.0, not above 0"):
        load(tmp_path, f"engine: {{{name}: -1}}")


def test_a_section_that_refuses_its_values_hides_no_other_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "engine: {blocks: 0}\nport: 1")
    first, second = caught.value.message.splitlines()
    assert first.startswith("engine: {'blocks': 0}: blocks is 0, not at least 1 (")
    assert second.startswith("port: unknown key")


@pytest.mark.parametrize("text", ["drain_s: -1", "drain_s: .nan", "region: ''"])
def test_a_value_that_no_mesh_can_use_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=text.split(":", maxsplit=1)[0]):
        load(tmp_path, text)


def test_a_drafter_that_foretells_a_timed_core_is_a_setting(tmp_path: Path) -> None:
    settings = load(tmp_path, "drafting: {ngram: false, oracle: {acceptance: 0.9, token_ms: 2}}")
    assert settings.drafting == DraftingSection(ngram=False, oracle=OracleConfig(0.9, 2.0))
    with pytest.raises(ConfigError, match=r"drafting\.oracle: .*acceptance is 2"):
        load(tmp_path, "drafting: {oracle: {acceptance: 2}}")


async def test_it_is_refused_beside_a_core_that_computes(tmp_path: Path) -> None:
    settings = load(tmp_path, "drafting: {oracle: {acceptance: 0.9}}")
    with pytest.raises(ConfigError, match=r"drafting\.oracle"):
        await main(settings, asyncio.Event())


def test_ways_of_a_prefix_may_be_forbidden_and_all_are_allowed_at_first(tmp_path: Path) -> None:
    assert load(tmp_path, "").kv.ways == (Way.RECOMPUTE, Way.FETCH, Way.SPLIT)
    assert load(tmp_path, "kv: {ways: [fetch]}").kv.ways == (Way.FETCH,)


@pytest.mark.parametrize(
    ("text", "told"), [("[]", ""), ("[split, split]", "split, split"), ("[swap]", None)]
)
def test_ways_that_are_none_twice_the_same_or_unknown_are_refused(
    tmp_path: Path, text: str, told: str | None
) -> None:
    words = r"kv\.ways\.0" if told is None else rf"^kv: .*ways is \[{told}\], not one or more of"
    with pytest.raises(ConfigError, match=words):
        load(tmp_path, f"kv: {{ways: {text}}}")
