"""What becomes of an outsider's plugin, good or broken, installed from its wheel beside ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from wheelhouse import COMMAND, CleanEnvironment, Wheelhouse, build_outsiders, unpack

from adaverify_contracts import hookspecs

pytestmark = pytest.mark.slow

PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "{name}-dist"
version = "2.5"
dependencies = [{requires}]

[project.entry-points.adaverify]
{point} = "{module}"

[tool.hatch.build.targets.wheel]
only-include = ["{module}.py"]
"""
POLICY = """\
from adaverify_contracts import BudgetReads, PolicyDescriptor, hookimpl


@hookimpl
def adaverify_register_policies():
    return (PolicyDescriptor("{policy}", BudgetReads.HISTORY, dict),)
"""
UNMET = """\
from adaverify_contracts import Requirements

ADAVERIFY_REQUIRES = Requirements(architectures=("sm90",))
"""
IN_HOOK = POLICY.format(policy="broken").replace(
    "    return", '    raise OSError("no calibration")\n    return'
)
ORDER = "from adaverify_contracts import hookimpl\n\ncalls = []\n" + "".join(
    f"\n\n@hookimpl\ndef {name}():\n    calls.append({name!r})\n    return ()\n"
    for name in sorted(vars(hookspecs))
    if name.startswith("adaverify_register_")
)
NEWER = ("adaverify-contracts>=0.2,<0.3",)
# Name -> (source of its module, declared dependencies, name of its entry point when another).
PLUGINS: dict[str, tuple[str, tuple[str, ...], str | None]] = {
    "good": (POLICY.format(policy="good"), ("adaverify-contracts>=0.1,<0.2",), None),
    "absent": ("import no_such_driver\n", (), None),
    "raises": ("raise RuntimeError('the driver is gone')\n", (), None),
    "in-hook": (IN_HOOK, (), None),
    "elsewhere": (UNMET, (), None),
    "newer": ("raise AssertionError('imported although it is for other contracts')\n", NEWER, None),
    "twice": (POLICY.format(policy="ratio"), (), None),
    "namesake": (POLICY.format(policy="namesake"), (), "good"),
    "misspelt": (POLICY.format(policy="m").replace("register_policies", "register_polices"), (), None),
    "order": (ORDER, (), None),
}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, Path]:
    """The wheel of every plugin."""
    home = tmp_path_factory.mktemp("outsiders")
    for name, (source, requires, point) in PLUGINS.items():
        module = f"{name.replace('-', '_')}_hooks"
        quoted = ", ".join(f'"{text}"' for text in requires)
        (home / name).mkdir()
        text = PYPROJECT.format(name=name, module=module, requires=quoted, point=point or name)
        (home / name / "pyproject.toml").write_text(text)
        (home / name / f"{module}.py").write_text(source)
    return build_outsiders([home / name for name in PLUGINS], home / "wheels")


@pytest.fixture(scope="module")
def site(wheels, tmp_path_factory) -> dict[str, Path]:
    """Each plugin installed into a folder of its own."""
    home = tmp_path_factory.mktemp("site")
    return {name: unpack([wheel], home / name) for name, wheel in wheels.items()}


@pytest.fixture
def adaverify(command_line: CleanEnvironment, site):
    """Return a function that runs a command with exactly these plugins installed beside ours."""

    def run(plugins: tuple[str, ...], *arguments: str, **settings: str):
        path = ":".join(str(site[name]) for name in plugins)
        return command_line.call("-c", COMMAND, path, *arguments, **settings)

    return run


OUTCOMES = {
    "good": ("loaded", "good"),
    "absent": ("import failed", "No module named 'no_such_driver'"),
    "raises": ("raised", "RuntimeError: the driver is gone"),
    "in-hook": ("raised", "a registration hook raised: OSError: no calibration"),
    "elsewhere": ("requirement unmet", "architecture is cpu, needs sm90"),
    "newer": ("requirement unmet", "needs adaverify-contracts <0.3,>=0.2, installed is 0.1.0"),
}


def test_every_outcome_is_reported_and_ours_still_work(adaverify):
    """One start with a plugin of each kind: none is swallowed, none takes another along."""
    done = adaverify((*OUTCOMES, "order"), "doctor", "--device", "cpu", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    found = {item["name"]: item for item in report["plugins"]}
    for name, (outcome, _) in OUTCOMES.items():
        assert (found[name]["outcome"], found[name]["owner"]) == (outcome, f"{name}-dist"), name
        assert found[name]["version"] == "2.5"
    for name in OUTCOMES.keys() - {"good"}:
        assert OUTCOMES[name][1] in found[name]["reason"], name
    assert {found[name]["outcome"] for name in ("reference", "verification", "order")} == {"loaded"}
    assert "good" in [item["name"] for item in report["policies"]]
    assert not {"broken", "m"} & {item["name"] for item in report["policies"]}
    assert [item["name"] for item in report["strategies"] if item["chosen"]] == ["reference", "uniform"]


def test_a_disabled_plugin_is_not_imported(adaverify):
    """Its module would raise."""
    done = adaverify(("raises",), "plugins", "--json", ADAVERIFY_PLUGINS_DISABLED="raises")
    (row,) = [row for row in json.loads(done.stdout) if row["name"] == "raises"]
    assert row["outcome"] == "disabled by setting"
    assert row["reason"] == "ADAVERIFY_PLUGINS_DISABLED lists it"


@pytest.mark.parametrize("name", ["absent", "raises", "newer"])
def test_a_named_plugin_that_cannot_be_used_stops_the_start(adaverify, name):
    """An error for whoever asked for the plugin, with the reason and what was discovered."""
    done = adaverify((name, "good"), "doctor", "--device", "cpu", ADAVERIFY_PLUGINS_REQUIRED=name)
    assert done.returncode == 3, done.stdout
    outcome, reason = OUTCOMES[name]
    assert reason in done.stderr
    assert f"{name} ({outcome})" in done.stderr
    assert "good (" in done.stderr


FATAL = {
    "a name of ours": (
        ("twice",),
        "policy 'ratio' is registered by both twice-dist and adaverify-verification",
    ),
    "one plugin name": (
        ("good", "namesake"),
        "plugin 'good' is registered by both good-dist and namesake-dist",
    ),
    "a misspelt hook": (("misspelt",), "did you mean adaverify_register_policies"),
}


@pytest.mark.parametrize(("plugins", "says"), FATAL.values(), ids=FATAL)
def test_a_contract_break_stops_the_start(adaverify, plugins, says):
    """Duplicate names with both owners, and a hook that nobody would ever call."""
    done = adaverify(plugins, "plugins")
    assert done.returncode == 3, done.stdout
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_the_installer_refuses_other_contracts_as_well(
    command_line: CleanEnvironment, wheels, wheelhouse: Wheelhouse
):
    """Nobody gets there by an ordinary installation; what is tested above was installed by force."""
    with pytest.raises(AssertionError, match=r"adaverify-contracts<0\.3,>=0\.2"):
        command_line.install(wheels["newer"], wheelhouse=wheelhouse)


def test_hooks_are_called_once_in_the_order_of_their_specifications(command_line: CleanEnvironment, site):
    """Whatever the order in which a module defines them."""
    code = (
        "import sys\nsys.path.insert(0, sys.argv[1])\n"
        "import order_hooks\nfrom adaverify_runtime import PluginSettings, load_plugins\n"
        "load_plugins(PluginSettings())\nprint(' '.join(order_hooks.calls))\n"
    )
    expected = [name for name in vars(hookspecs) if name.startswith("adaverify_register_")]
    assert expected != sorted(expected)
    assert command_line.run(code, str(site["order"])).split() == expected
