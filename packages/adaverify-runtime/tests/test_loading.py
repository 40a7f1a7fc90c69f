"""Loading: four outcomes, each with a reason, unnamed and named; with real distributions on disk."""

import sys
import textwrap

import pytest

from adaverify_contracts import DuplicateNameError, LoadOutcome, PluginError
from adaverify_runtime.loading import examine_plugins, load_plugins
from adaverify_runtime.settings import PluginSettings, Settings

GOOD = """
from adaverify_contracts import BudgetReads, PolicyDescriptor, hookimpl

@hookimpl
def adaverify_register_policies():
    return (PolicyDescriptor("{name}", BudgetReads.HISTORY, dict),)
"""
FAILS_TO_IMPORT = "import no_such_library_anywhere\n"
RAISES_AT_IMPORT = "raise RuntimeError('the driver is gone')\n"
RAISES_IN_HOOK = """
from adaverify_contracts import hookimpl

@hookimpl
def adaverify_register_models():
    raise OSError("weights are missing")
"""
INVALID_DESCRIPTOR = """
from adaverify_contracts import BudgetReads, PolicyDescriptor, hookimpl

@hookimpl
def adaverify_register_policies():
    return (PolicyDescriptor("Not A Name", BudgetReads.HISTORY, dict),)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution with one plugin on the path, as an installer would."""
    monkeypatch.syspath_prepend(tmp_path)
    modules = []

    def put(distribution, plugin, source, *, version="1.0", requires=(), value=None):
        module = distribution.replace("-", "_") + "_hooks"
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source).replace("{name}", plugin))
        folder = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {distribution}", f"Version: {version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")
        (folder / "entry_points.txt").write_text(f"[adaverify]\n{plugin} = {value or module}\n")
        modules.append(module)

    yield put
    for module in modules:
        sys.modules.pop(module, None)


@pytest.fixture
def outcomes():
    """Return the outcomes by name, leaving out plugins that are really installed."""

    def read(manager):
        return {item.name: item for item in manager.plugins() if item.name.startswith("test-")}

    return read


def test_plugins_are_found_by_entry_point_with_owner_and_version(install, outcomes):
    """The installed group is discovered and each descriptor knows where it came from."""
    install("good-dist", "test-good", GOOD, version="2.5")
    manager = load_plugins(PluginSettings())
    assert outcomes(manager)["test-good"].outcome is LoadOutcome.LOADED
    (policy,) = [item for item in manager.policies() if item.descriptor.name == "test-good"]
    assert (policy.owner, policy.version, policy.plugin) == ("good-dist", "2.5", "test-good")


FAILURES = {
    "import failed": (FAILS_TO_IMPORT, LoadOutcome.IMPORT_FAILED, "no_such_library_anywhere"),
    "raised at import": (RAISES_AT_IMPORT, LoadOutcome.RAISED, "the driver is gone"),
    "raised in a hook": (RAISES_IN_HOOK, LoadOutcome.RAISED, "weights are missing"),
    "invalid descriptor": (INVALID_DESCRIPTOR, LoadOutcome.RAISED, "Not A Name"),
}


@pytest.mark.parametrize(("source", "outcome", "words"), FAILURES.values(), ids=FAILURES)
def test_an_unnamed_failure_is_reported_with_its_traceback(install, outcomes, source, outcome, words):
    """vllm #48277: an ImportError is never swallowed; the others still load."""
    install("bad-dist", "test-bad", source)
    install("good-dist", "test-good", GOOD)
    found = outcomes(load_plugins(PluginSettings()))
    assert found["test-bad"].outcome is outcome
    assert words in found["test-bad"].reason
    assert "Traceback" in found["test-bad"].traceback
    assert words in found["test-bad"].traceback
    assert found["test-good"].outcome is LoadOutcome.LOADED


@pytest.mark.parametrize("setting", ["enabled", "required"])
@pytest.mark.parametrize(("source", "outcome", "words"), FAILURES.values(), ids=FAILURES)
def test_a_named_failure_is_an_error_that_lists_what_was_discovered(install, source, outcome, words, setting):
    """vllm #48277: the same failure of a plugin that the user named stops the start."""
    install("bad-dist", "test-bad", source)
    install("good-dist", "test-good", GOOD)
    with pytest.raises(PluginError) as caught:
        load_plugins(PluginSettings(**{setting: ("test-bad",)}))
    text = str(caught.value)
    assert words in text
    assert f"test-bad ({outcome.value})" in text
    assert "test-good (" in text
    assert caught.value.plugin == "test-bad"


def test_a_missing_attribute_is_an_import_failure(install, outcomes):
    """vllm-ascend #15107: a module that lacks the attribute the entry point names."""
    install("bad-dist", "test-bad", "", value="bad_dist_hooks:gone")
    found = outcomes(load_plugins(PluginSettings()))["test-bad"]
    assert found.outcome is LoadOutcome.IMPORT_FAILED
    assert "gone" in found.reason


def test_a_disabled_plugin_is_not_even_imported(install, outcomes):
    """Disabled by setting: the module would raise if it were imported."""
    install("bad-dist", "test-bad", RAISES_AT_IMPORT)
    found = outcomes(load_plugins(PluginSettings(disabled=("test-bad",))))["test-bad"]
    assert found.outcome is LoadOutcome.DISABLED
    assert "ADAVERIFY_PLUGINS_DISABLED" in found.reason


@pytest.mark.parametrize("setting", ["enabled", "required"])
def test_a_plugin_that_is_both_named_and_disabled_is_an_error(install, setting):
    """A contradiction is the user's to resolve, and is not resolved in silence."""
    install("good-dist", "test-good", GOOD)
    with pytest.raises(PluginError, match=r"test-good \(disabled by setting\)"):
        load_plugins(PluginSettings(**{setting: ("test-good",), "disabled": ("test-good",)}))


def test_enabled_loads_only_what_it_lists(install, outcomes):
    """An explicit list disables the rest and says which setting did."""
    install("good-dist", "test-good", GOOD)
    install("other-dist", "test-other", RAISES_AT_IMPORT)
    found = outcomes(load_plugins(PluginSettings(enabled=("test-good",))))
    assert found["test-good"].outcome is LoadOutcome.LOADED
    assert found["test-other"].outcome is LoadOutcome.DISABLED
    assert "ADAVERIFY_PLUGINS_ENABLED does not list it" in found["test-other"].reason


def test_required_does_not_disable_the_rest(install, outcomes):
    """Required means: this one must load; the others load as ever."""
    install("good-dist", "test-good", GOOD)
    install("other-dist", "test-other", GOOD)
    found = outcomes(load_plugins(PluginSettings(required=("test-good",))))
    assert {item.outcome for item in found.values()} == {LoadOutcome.LOADED}


@pytest.fixture
def contracts_version(install, monkeypatch):
    """Pretend that the contracts are installed in one version."""
    from importlib import metadata

    real = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: "0.1.0" if name == "adaverify-contracts" else real(name)
    )


OLD = ("adaverify-contracts>=0.2,<0.3",)


def test_a_plugin_for_other_contracts_is_unmet_before_it_is_imported(install, outcomes, contracts_version):
    """vllm-ascend #15098: a version check with a message, before anything can break."""
    install("old-dist", "test-old", RAISES_AT_IMPORT, requires=OLD)
    found = outcomes(load_plugins(PluginSettings()))["test-old"]
    assert found.outcome is LoadOutcome.UNMET
    assert "needs adaverify-contracts <0.3,>=0.2, installed is 0.1.0" in found.reason


def test_a_named_plugin_for_other_contracts_is_an_error(install, contracts_version):
    """The same, named."""
    install("old-dist", "test-old", GOOD, requires=OLD)
    with pytest.raises(PluginError, match=r"test-old \(requirement unmet\): needs adaverify-contracts"):
        load_plugins(PluginSettings(required=("test-old",)))


@pytest.mark.parametrize(
    "requires",
    [
        ("adaverify-contracts>=0.1,<0.2",),
        ("torch>=2",),
        ('adaverify-contracts>=9; extra == "future"',),
        ("Adaverify_Contracts",),
    ],
)
def test_a_range_that_holds_or_does_not_apply_is_met(install, outcomes, contracts_version, requires):
    """Only an applicable range that excludes the installed version is unmet."""
    install("good-dist", "test-good", GOOD, requires=requires)
    assert outcomes(load_plugins(PluginSettings()))["test-good"].outcome is LoadOutcome.LOADED


def test_a_named_plugin_that_nobody_installed_lists_what_was_found(install):
    """A typo in a setting shows the names there are."""
    install("good-dist", "test-good", GOOD)
    with pytest.raises(PluginError, match=r"test-goof, did you mean test-good\?.*discovered: .*test-good"):
        load_plugins(PluginSettings(required=("test-goof",)))


def test_two_distributions_with_one_plugin_name_are_an_error(install):
    """The error names both distributions."""
    install("one-dist", "test-same", GOOD)
    install("two-dist", "test-same", GOOD)
    with pytest.raises(DuplicateNameError, match="one-dist and two-dist"):
        load_plugins(PluginSettings())


def test_two_distributions_with_one_descriptor_name_are_an_error(install):
    """A duplicate stops the start even when nobody named the plugins."""
    install("one-dist", "test-one", GOOD.replace("{name}", "shared"))
    install("two-dist", "test-two", GOOD.replace("{name}", "shared"))
    with pytest.raises(
        DuplicateNameError, match="policy 'shared' is registered by both one-dist and two-dist"
    ):
        load_plugins(PluginSettings())


def test_a_misspelt_hook_stops_the_start_even_unnamed(install):
    """A contract break is never a mere warning."""
    install("slip-dist", "test-slip", GOOD.replace("register_policies", "register_polices"))
    with pytest.raises(PluginError, match="did you mean adaverify_register_policies"):
        load_plugins(PluginSettings())


def test_injected_entry_points_replace_discovery(install):
    """A test, or an embedding engine, decides what exists; settings may come as a whole."""
    install("good-dist", "test-good", GOOD)
    manager = load_plugins(Settings(), entry_points=())
    assert manager.plugins() == ()


def test_a_plugin_that_exits_at_import_is_reported(install, outcomes):
    """``sys.exit`` in a stranger's module must not end the process without a word."""
    install("exits-dist", "test-exits", "import sys\nsys.exit(7)\n")
    found = outcomes(load_plugins(PluginSettings()))["test-exits"]
    assert found.outcome is LoadOutcome.RAISED
    assert "SystemExit: 7" in found.reason


def test_a_disabled_name_that_nothing_has_is_warned_about(install):
    """A misspelt name disables nothing: the report says so, with the nearest name."""
    install("good-dist", "test-good", GOOD)
    manager = load_plugins(PluginSettings(disabled=("test-godo",)))
    assert any("test-godo" in line and "did you mean test-good?" in line for line in manager.warnings)


MUTE = """
class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")
"""
HOOK = """
from adaverify_contracts import hookimpl

@hookimpl
def adaverify_register_models():
    {body}
"""
BARE = {
    "cancelled": ("import asyncio\n", "raise asyncio.CancelledError('later')", "CancelledError: later"),
    "generator": ("", "raise GeneratorExit", "GeneratorExit"),
    "own": ("class Own(BaseException):\n    pass\n", "raise Own('mine')", "Own: mine"),
    "mute": (MUTE, "raise Mute", "Mute: <Mute, whose __str__ raised ValueError>"),
}


@pytest.mark.parametrize("where", ["import", "hook"])
@pytest.mark.parametrize(("above", "body", "words"), BARE.values(), ids=BARE)
def test_whatever_a_plugin_raises_is_its_outcome(install, outcomes, where, above, body, words):
    """No exception but an interrupt passes, and none is spoilt by its own text."""
    source = above + (body if where == "import" else HOOK.replace("{body}", body))
    install("bare-dist", "test-bare", source)
    install("good-dist", "test-good", GOOD)
    found = outcomes(load_plugins(PluginSettings()))
    assert found["test-bare"].outcome is LoadOutcome.RAISED
    assert words in found["test-bare"].reason
    assert found["test-bare"].traceback
    assert found["test-good"].outcome is LoadOutcome.LOADED


@pytest.mark.parametrize(
    "source", ["raise KeyboardInterrupt", HOOK.replace("{body}", "raise KeyboardInterrupt")]
)
def test_an_interrupt_passes(install, source):
    install("slow-dist", "test-slow", source)
    with pytest.raises(KeyboardInterrupt):
        load_plugins(PluginSettings())


LOUD = "import sys\nprint('hello')\nsys.stdout.encoding.lower()\nsys.stdout.flush()\n"


@pytest.mark.parametrize(
    "more", ["", "sys.stdout.close()\n", "sys.stdout = None\n", "sys.stdout.detach()\n", "raise OSError\n"]
)
def test_standard_output_is_not_a_plugins_to_print_to(install, outcomes, capsys, more):
    """What it prints goes to standard error, and it cannot close either."""
    before = sys.stdout
    install("loud-dist", "test-loud", LOUD + more)
    load_plugins(PluginSettings())
    assert sys.stdout is before
    sys.stdout.write("result\n")
    printed = capsys.readouterr()
    assert printed.out == "result\n"
    assert printed.err.startswith("hello\n")
    assert not sys.stderr.closed


@pytest.mark.parametrize("value", ["'cuda'", "5", "()", "Requirements"])
def test_wrong_requirements_are_a_contract_break_and_leave_nothing(install, outcomes, value):
    """A string would have been found out by the first command that probes a device."""
    source = f"from adaverify_contracts import Requirements\n{GOOD}\nADAVERIFY_REQUIRES = {value}\n"
    install("picky-dist", "test-picky", source)
    with pytest.raises(PluginError, match=r"list test-picky in ADAVERIFY_PLUGINS_DISABLED"):
        load_plugins(PluginSettings())
    manager, refusal = examine_plugins(PluginSettings())
    assert refusal.plugin == "test-picky"
    found = outcomes(manager)["test-picky"]
    assert found.outcome is LoadOutcome.RAISED
    assert "ADAVERIFY_REQUIRES is not a Requirements" in found.reason
    assert "test-picky" not in [item.descriptor.name for item in manager.policies()]


def test_a_contract_break_is_examined_beside_the_others(install, outcomes):
    """A list of what is there must not end at the first plugin that is broken."""
    install("a-dist", "test-a", GOOD.replace("register_policies", "register_polices"))
    install("b-dist", "test-b", GOOD)
    manager, refusal = examine_plugins(PluginSettings())
    found = outcomes(manager)
    assert found["test-a"].outcome is LoadOutcome.RAISED
    assert "did you mean adaverify_register_policies" in found["test-a"].reason
    assert found["test-b"].outcome is LoadOutcome.LOADED
    assert refusal.plugin == "test-a"
    assert refusal.remedy.endswith(", or list test-a in ADAVERIFY_PLUGINS_DISABLED")


def test_the_advice_of_a_refusal_works(install, outcomes):
    """Disabling the plugin that was named lets the rest start."""
    install("a-dist", "test-a", GOOD.replace("register_policies", "register_polices"))
    with pytest.raises(PluginError, match="list test-a in ADAVERIFY_PLUGINS_DISABLED"):
        load_plugins(PluginSettings())
    load_plugins(PluginSettings(disabled=("test-a",)))
