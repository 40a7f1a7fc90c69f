"""Settings: one reader of the environment, and messages that name variable, value and expected form."""

import ast
from pathlib import Path

import pytest
from pydantic import ValidationError

from adaverify_contracts import SettingsError
from adaverify_runtime.settings import (
    DeviceSettings,
    EngineSettings,
    PluginSettings,
    RelaySettings,
    known_variables,
    read_settings,
)

ROOT = Path(__file__).resolve().parents[3]


def test_defaults_need_no_environment():
    """An empty environment is a complete configuration without warnings."""
    settings = read_settings()
    assert settings.plugins.enabled is None
    assert settings.device.name == "auto"
    assert settings.paths.cache.name == "adaverify"
    assert settings.warnings == ()


def test_lists_are_written_with_commas(monkeypatch):
    """Blanks and empty parts do not count."""
    monkeypatch.setenv("ADAVERIFY_PLUGINS_DISABLED", " one, two ,,")
    monkeypatch.setenv("adaverify_plugins_required", "three")
    settings = read_settings()
    assert settings.plugins.disabled == ("one", "two")
    assert settings.plugins.required == ("three",)


@pytest.mark.parametrize(
    ("word", "meant"),
    [("OFF", "off"), ("0", "off"), ("false", "off"), ("On", "on"), ("1", "on"), ("TRUE", "on")],
)
def test_the_bridges_switch_takes_the_usual_words(monkeypatch, word, meant):
    """Whoever writes 0 means off, and gets no error line for it."""
    monkeypatch.setenv("ADAVERIFY_VLLM", word)
    assert read_settings().bridge.vllm == meant


def test_an_argument_wins_over_the_environment(monkeypatch):
    """A program that sets a value means it."""
    monkeypatch.setenv("ADAVERIFY_RELAY_DEPTH", "9")
    assert RelaySettings().depth == 9
    assert RelaySettings(depth=3).depth == 3


def test_an_empty_variable_is_unset(monkeypatch):
    """NAME= in a shell script means the default."""
    monkeypatch.setenv("ADAVERIFY_DEVICE_STRATEGY", "")
    assert DeviceSettings().strategy is None


@pytest.mark.parametrize(
    ("variable", "value", "form"),
    [
        ("ADAVERIFY_RELAY_DEPTH", "many", "an int in 2 .. 4096"),
        ("ADAVERIFY_RELAY_DEPTH", "1", "an int in 2 .. 4096"),
        ("ADAVERIFY_RELAY_DEPTH", "100000000000", "an int in 2 .. 4096"),
        ("ADAVERIFY_PATHS_COST_TABLE", "/dev", "a regular file"),
        ("ADAVERIFY_ENGINE_DRAFT_TOKENS", "65537", "an int in 0 .. 65536"),
        ("ADAVERIFY_ENGINE_DTYPE", "float16", "float32 or bfloat16"),
        ("ADAVERIFY_ENGINE_MAX_REQUESTS", "-4", "an int in 1 .. 65536"),
        ("ADAVERIFY_GRAPHS_MAX_GRAPHS", "1.5", "an int in 1 .. 65536"),
        ("ADAVERIFY_PLANNER_MARGIN", "1_0", "a number in 0 .. 10"),
        ("ADAVERIFY_RELAY_DEPTH", "1_0", "an int in 2 .. 4096"),
        ("ADAVERIFY_GRAPHS_MAX_GRAPHS", "1_0", "an int in 1 .. 65536"),
        ("ADAVERIFY_PLANNER_MODE", "auto", "none, fixed or adaptive"),
    ],
)
def test_a_bad_value_names_variable_value_and_form(monkeypatch, variable, value, form):
    """The reader learns what to type without opening the source."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as caught:
        read_settings()
    assert list(caught.value.problems) == [variable]
    text = str(caught.value)
    assert variable in text
    assert repr(value) in text
    assert form in text


def test_every_size_has_an_upper_bound(monkeypatch):
    """A size that nothing can allocate is refused by its own name, not by whatever fails to hold it."""
    for variable in known_variables():
        monkeypatch.setenv(variable, str(10**30))
    with pytest.raises(SettingsError) as caught:
        read_settings()
    sizes = {"RELAY_DEPTH", "PLUGINS_OBSERVER_QUEUE", "PLANNER_WARMUP_STEPS", "GRAPHS_MAX_GRAPHS"}
    sizes |= {"GRAPHS_BYTES_LIMIT", "ENGINE_MAX_REQUESTS", "ENGINE_DRAFT_TOKENS", "ENGINE_MAX_MODEL_LEN"}
    sizes |= {"ENGINE_PAGE_SIZE", "ENGINE_NUM_PAGES", "ENGINE_PREFILL_CHUNK", "ENGINE_SEED"}
    sizes |= {"SPARSE_MOE_LAYERS", "SPARSE_MOE_VOCABULARY"}
    assert {f"ADAVERIFY_{name}" for name in sizes} <= set(caught.value.problems)


def test_sizes_of_the_sparse_decoder_are_those_that_are_set(monkeypatch):
    """The decoder's own defaults stay in one place."""
    assert read_settings().sparse_moe.chosen() == {}
    monkeypatch.setenv("ADAVERIFY_SPARSE_MOE_LAYERS", "3")
    monkeypatch.setenv("ADAVERIFY_SPARSE_MOE_EXPERT_WIDTH", "1024")
    assert read_settings().sparse_moe.chosen() == {"layers": 3, "expert_width": 1024}


def test_all_bad_values_of_all_sections_are_reported_at_once(monkeypatch):
    """Three mistakes are one message."""
    for variable in ("ADAVERIFY_RELAY_DEPTH", "ADAVERIFY_ENGINE_SEED", "ADAVERIFY_ENGINE_PAGE_SIZE"):
        monkeypatch.setenv(variable, "x")
    with pytest.raises(SettingsError) as caught:
        read_settings()
    assert set(caught.value.problems) == {
        "ADAVERIFY_RELAY_DEPTH",
        "ADAVERIFY_ENGINE_SEED",
        "ADAVERIFY_ENGINE_PAGE_SIZE",
    }


def test_a_bad_argument_is_the_same_typed_error():
    """Nobody outside needs to know pydantic."""
    with pytest.raises(SettingsError, match="ADAVERIFY_ENGINE_SEED"):
        EngineSettings(seed=-1)
    with pytest.raises(SettingsError, match="did you mean ADAVERIFY_PLUGINS_DISABLED"):
        PluginSettings(disable=("a",))


def test_an_unknown_variable_is_reported_with_the_nearest_known(monkeypatch):
    """A misspelt variable would otherwise be silently ignored."""
    monkeypatch.setenv("ADAVERIFY_PLUGIN_DISABLED", "a")
    monkeypatch.setenv("ADAVERIFY_QQQQQQQQQQQQQQQQ", "1")
    first, second = read_settings().warnings
    assert first.startswith("ADAVERIFY_PLUGIN_DISABLED is set")
    assert "did you mean ADAVERIFY_PLUGINS_DISABLED?" in first
    assert second == "ADAVERIFY_QQQQQQQQQQQQQQQQ is set and no setting reads it"


def test_settings_are_frozen():
    """Nothing changes settings after the start."""
    with pytest.raises(ValidationError, match="frozen"):
        RelaySettings().depth = 7


def test_every_variable_is_unique_and_prefixed():
    """Two sections never read one variable."""
    names = known_variables()
    assert len(set(names)) == len(names)
    assert all(name.startswith("ADAVERIFY_") for name in names)


def test_the_environment_is_read_nowhere_else():
    """Every src file of the repository: only the runtime's settings touch os.environ or os.getenv."""
    readers = set()
    for source in [*ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]:
        for node in ast.walk(ast.parse(source.read_text())):
            named = isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "environb"}
            imported = isinstance(node, ast.ImportFrom) and any(
                alias.name in {"environ", "getenv"} for alias in node.names
            )
            if named or imported:
                readers.add(source.relative_to(ROOT).as_posix())
    assert readers == {"packages/adaverify-runtime/src/adaverify_runtime/settings.py"}


@pytest.mark.parametrize(
    ("text", "value"), [("yes", True), ("True", True), ("1", True), ("OFF", False), ("n", False)]
)
def test_true_and_false_have_the_spellings_that_the_page_names(monkeypatch, text, value):
    monkeypatch.setenv("ADAVERIFY_PLANNER_ONLINE", text)
    assert read_settings().planner.online is value
