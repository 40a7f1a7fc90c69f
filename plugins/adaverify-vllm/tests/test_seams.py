"""Seams, the watch for an import, and what happens where vLLM is missing or another one."""

from __future__ import annotations

import functools
import importlib
import logging
import subprocess
import sys
import textwrap
from types import ModuleType, SimpleNamespace

import pytest

from adaverify_vllm import installation, plugin, report, seams
from adaverify_vllm.plugin import register, unregister
from adaverify_vllm.watching import ImportWatch


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    unregister()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A module that imports slowly enough to be told apart: it leaves a mark."""
    (tmp_path / "engine_of_others.py").write_text("VALUE = 1\n\ndef factory(*, a, b=None):\n    return a\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "engine_of_others"
    sys.modules.pop("engine_of_others", None)


def test_the_watch_calls_when_the_module_is_imported(package):
    """Once, with the whole module, and the module keeps its own loader."""
    seen = []
    watch = ImportWatch(package, seen.append)
    watch.start()
    assert seen == []
    module = importlib.import_module(package)
    assert seen == [module]
    assert module.VALUE == 1
    assert module.__spec__.loader is module.__loader__
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert watch not in sys.meta_path
    importlib.reload(module)
    assert seen == [module]


def test_the_watch_calls_at_once_for_a_module_that_is_there(package):
    module = importlib.import_module(package)
    seen = []
    ImportWatch(package, seen.append).start()
    assert seen == [module]


def test_the_watch_lets_a_missing_module_be_missing():
    watch = ImportWatch("no_such_engine_anywhere", pytest.fail)
    watch.start()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_engine_anywhere")
    watch.stop()
    assert watch not in sys.meta_path


def test_a_signature_is_compared_without_annotations():
    def one(a: int, *, b: str = "x") -> int: ...

    assert seams.signature(one) == "(a, *, b='x')"


def test_a_seam_that_differs_is_named_with_both_forms(package):
    seam = seams.Seam(package, "factory", "(*, a, b=None, c=1)", seams.signature)
    missing = seams.Seam(package, "gone", "()", seams.signature)
    absent = seams.Seam("no_such_engine_anywhere", "x", "()", seams.signature)
    first, second, third = seams.differences(seams.look((seam, missing, absent)))
    assert first == "engine_of_others.factory is '(*, a, b=None)', expected '(*, a, b=None, c=1)'"
    assert "AttributeError" in second
    assert "ModuleNotFoundError" in third


@pytest.mark.parametrize(
    ("release", "fits"), [("0.33.0", True), ("0.33.2", True), ("0.34.0", False), ("1", False)]
)
def test_releases_are_supported_by_minor_version(release, fits):
    assert seams.supports(release) is fits


def test_another_release_is_refused_in_one_line(monkeypatch, caplog):
    """What arrived, what is allowed, what to do; and nothing is watched."""
    monkeypatch.setattr(seams, "vllm_version", lambda: "0.34.1")
    before = list(sys.meta_path)
    with caplog.at_level(logging.WARNING, "vllm.adaverify"):
        register()
    (record,) = caplog.records
    assert record.getMessage() == (
        "adaverify-vllm changes nothing: vLLM 0.34.1 is not supported, only 0.33.x; install the "
        "adaverify-vllm made for it, or remove this one to silence this line"
    )
    assert sys.meta_path == before


@pytest.mark.parametrize(
    ("runner", "there"),
    [
        ("an_engine.worker.runner", True),
        ("an_engine.worker.other", False),
        ("no_engine_anywhere.runner", False),
    ],
)
def test_the_runners_file_is_looked_for_and_not_imported(tmp_path, monkeypatch, runner, there):
    """A release that moved it is told apart before anything is watched."""
    (tmp_path / "an_engine" / "worker").mkdir(parents=True)
    for name in ("__init__", "worker/__init__", "worker/runner"):
        (tmp_path / "an_engine" / f"{name}.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(seams, "RUNNER", runner)
    assert seams.has_runner() is there


def test_a_release_without_the_runner_is_refused_in_one_line(monkeypatch, caplog):
    monkeypatch.setattr(seams, "vllm_version", lambda: "0.33.1")
    monkeypatch.setattr(seams, "has_runner", lambda: False)
    with caplog.at_level(logging.WARNING, "vllm.adaverify"):
        register()
    (record,) = caplog.records
    assert f"vLLM 0.33.1 has no module {seams.RUNNER}" in record.getMessage()


@pytest.fixture
def arrival(package, monkeypatch):
    """Register for a runner that can be imported here; returns what was installed into."""
    seen = []
    monkeypatch.setattr(seams, "vllm_version", lambda: "0.33.0")
    monkeypatch.setattr(seams, "RUNNER", package)
    monkeypatch.setattr(seams, "has_runner", lambda: True)
    monkeypatch.setattr(installation, "put_in", seen.append)
    monkeypatch.setattr(plugin, "_enabled", lambda: None)
    return seen


def test_the_bridge_goes_in_when_the_runner_is_imported(arrival, package):
    register()
    assert arrival == []
    module = importlib.import_module(package)
    assert arrival == [module]


def test_off_is_silent_and_leaves_the_runner_alone(arrival, package, monkeypatch, caplog):
    monkeypatch.setenv("ADAVERIFY_VLLM", "off")
    with caplog.at_level(logging.DEBUG, "vllm.adaverify"):
        register()
        importlib.import_module(package)
    assert caplog.records == []
    assert arrival == []


def test_a_configuration_that_asks_for_nothing_leaves_the_runner_alone(arrival, package, monkeypatch):
    monkeypatch.setattr(plugin, "_enabled", lambda: False)
    register()
    importlib.import_module(package)
    assert arrival == []


def test_a_wrong_setting_never_reaches_vllm(arrival, package, monkeypatch, caplog):
    """The import goes on; one line names the variable's form and where to look."""
    monkeypatch.setenv("ADAVERIFY_VLLM", "perhaps")
    with caplog.at_level(logging.WARNING, "vllm.adaverify"):
        register()
        importlib.import_module(package)
    assert arrival == []
    (record,) = caplog.records
    assert "on or off" in record.getMessage()
    assert "doctor --vllm" in record.getMessage()


def test_off_holds_for_a_call_by_the_user_too(arrival, monkeypatch, caplog):
    monkeypatch.setenv("ADAVERIFY_VLLM", "off")
    with caplog.at_level(logging.DEBUG, "vllm.adaverify"):
        assert installation.install(ModuleType("a_runner")) is False
    assert caplog.records == []
    assert arrival == []


@pytest.mark.parametrize(
    ("release", "value", "words"),
    [
        ("0.34.1", "on", "vLLM 0.34.1 is not supported, only 0.33.x"),
        (None, "on", "vLLM is not installed"),
        ("0.33.0", "perhaps", "on or off"),
    ],
)
def test_a_call_by_the_user_is_refused_in_the_same_line(arrival, monkeypatch, caplog, release, value, words):
    """As at the start: nothing is touched, and nothing raises."""
    monkeypatch.setattr(seams, "vllm_version", lambda: release)
    monkeypatch.setenv("ADAVERIFY_VLLM", value)
    with caplog.at_level(logging.WARNING, "vllm.adaverify"):
        assert installation.install(ModuleType("a_runner")) is False
    assert arrival == []
    (record,) = caplog.records
    assert record.getMessage().startswith("adaverify-vllm changes nothing")
    assert words in record.getMessage()


def test_switched_off_before_the_factory_is_called_vllms_own_serves(monkeypatch, caplog):
    theirs = object()
    fails = SimpleNamespace(activate=lambda _: pytest.fail("activated"))
    monkeypatch.setitem(sys.modules, "adaverify_vllm.activation", fails)
    monkeypatch.setenv("ADAVERIFY_VLLM", "off")
    with caplog.at_level(logging.DEBUG, "vllm.adaverify"):
        assert getattr(runner_with(lambda **_: theirs), seams.FACTORY)(a=1) is theirs
    assert caplog.records == []


def test_another_plugin_over_ours_and_a_second_call_make_one_manager(monkeypatch):
    """Our wrapper, left behind under theirs by an engine that asked for nothing, acts again."""
    made = []
    asked = [None]

    def activate(_):
        made.append("a manager")
        return made[-1]

    monkeypatch.setitem(sys.modules, "adaverify_vllm.activation", SimpleNamespace(activate=activate))
    monkeypatch.setattr(seams, "SEAMS", ())
    runner = runner_with(lambda **_: asked[0])
    ours = getattr(runner, seams.FACTORY)

    @functools.wraps(ours)
    def another(**arguments):
        return ours(**arguments)

    setattr(runner, seams.FACTORY, another)
    assert another(a=1) is None
    asked[0] = object()
    assert another(a=1) is asked[0]
    assert installation.put_in(runner) is True
    assert getattr(runner, seams.FACTORY) is another
    assert another(a=1) == "a manager"
    assert made == ["a manager"]


def test_a_wrapper_of_ours_under_another_that_hides_it_stays_out(monkeypatch):
    """Both are asked and the outer one acts."""
    made = []
    activate = SimpleNamespace(activate=lambda _: made.append(1) or "a manager")
    monkeypatch.setitem(sys.modules, "adaverify_vllm.activation", activate)
    monkeypatch.setattr(seams, "SEAMS", ())
    runner = runner_with(lambda **_: object())
    ours = getattr(runner, seams.FACTORY)
    installation.uninstall()
    setattr(runner, seams.FACTORY, lambda **arguments: ours(**arguments))
    assert installation.put_in(runner) is True
    assert getattr(runner, seams.FACTORY)(a=1) == "a manager"
    assert made == [1]


def test_a_wrapper_that_hides_the_signature_is_blamed_on_its_plugin(monkeypatch, caplog):
    """Not on vLLM, whose own factory is as expected."""
    runner = ModuleType("a_runner_that_somebody_wrapped")
    setattr(runner, seams.FACTORY, lambda **_: None)
    monkeypatch.setitem(sys.modules, runner.__name__, runner)
    monkeypatch.setattr(seams, "RUNNER", runner.__name__)
    seam = seams.Seam(runner.__name__, seams.FACTORY, "(*, a)", seams.signature)
    monkeypatch.setattr(seams, "SEAMS", (seam,))
    with caplog.at_level(logging.WARNING, "vllm.adaverify"):
        assert installation.put_in(runner) is False
    (record,) = caplog.records
    assert f"another plugin, {__name__}, has wrapped vLLM's factory" in record.getMessage()
    assert "functools.wraps" in record.getMessage()
    assert "this vLLM differs" not in record.getMessage()


def test_registering_twice_watches_once(monkeypatch):
    monkeypatch.setattr(seams, "vllm_version", lambda: "0.33.0")
    monkeypatch.setattr(seams, "RUNNER", "a_runner_that_nobody_has_imported")
    monkeypatch.setattr(seams, "has_runner", lambda: True)
    register()
    register()
    assert sum(isinstance(finder, ImportWatch) for finder in sys.meta_path) == 1


def runner_with(original):
    """Return a module with this factory, and the bridge in it."""
    runner = ModuleType("a_runner")
    setattr(runner, seams.FACTORY, original)
    installation.replace(runner, seams.FACTORY, installation._factory(original, runner))
    return runner


def test_what_vllm_refuses_is_refused():
    """The factory asks vLLM's own first, with the same arguments; the bridge stays."""

    def refuses(**arguments):
        raise ValueError(f"full CUDA graphs are required: {arguments}")

    runner = runner_with(refuses)
    with pytest.raises(ValueError, match=r"required: \{'enable_adaptive_verification': True\}"):
        getattr(runner, seams.FACTORY)(enable_adaptive_verification=True)
    assert getattr(runner, seams.FACTORY) is not refuses


def test_where_vllm_makes_none_its_own_factory_is_put_back():
    """A second engine of the process finds the original."""

    def none(**_):
        return None

    runner = runner_with(none)
    assert getattr(runner, seams.FACTORY)(enable_adaptive_verification=False) is None
    assert getattr(runner, seams.FACTORY) is none


def test_what_another_plugin_put_over_ours_stays_when_ours_goes(monkeypatch):
    """Ours then hands on what vLLM's own returns."""
    theirs = object()

    def original(**_):
        return theirs

    runner = runner_with(original)
    ours = getattr(runner, seams.FACTORY)

    def another(**arguments):
        return ours(**arguments)

    setattr(runner, seams.FACTORY, another)
    installation.uninstall()
    assert getattr(runner, seams.FACTORY) is another
    monkeypatch.setitem(sys.modules, "adaverify_vllm.activation", None)
    assert another(a=1) is theirs


@pytest.mark.parametrize("error", [RuntimeError, ImportError, SystemExit])
def test_a_manager_that_cannot_be_made_leaves_vllms_own(monkeypatch, caplog, error):
    """One line says why; vLLM serves as if we were not there."""
    theirs = object()

    def fails(_):
        raise error("no such thing")

    monkeypatch.setitem(sys.modules, "adaverify_vllm.activation", SimpleNamespace(activate=fails))
    runner = runner_with(lambda **_: theirs)
    with caplog.at_level(logging.WARNING, "vllm.adaverify"):
        assert getattr(runner, seams.FACTORY)(a=1) is theirs
    (record,) = caplog.records
    assert f"{error.__name__}: no such thing" in record.getMessage()


@pytest.mark.skipif(seams.vllm_version() is not None, reason="vLLM is installed here")
def test_the_report_without_vllm_says_what_to_install():
    found = report()
    assert found["versions"]["vllm"] == "not installed"
    assert found["seams"] == []
    assert found["problems"] == ["adaverify-vllm changes nothing: vLLM is not installed; install vllm"]
    assert not any(part["active"] for part in found["parts"])


def test_importing_the_plugin_imports_nothing_heavy():
    """vLLM loads it in every process: the module alone brings neither torch nor our components."""
    code = textwrap.dedent(
        """
        import sys
        import adaverify_vllm.plugin
        heavy = {"torch", "numpy", "pydantic", "adaverify_runtime", "adaverify_verification", "vllm"}
        print(sorted(heavy & set(sys.modules)))
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_entry_points_are_vllms_and_the_doctors():
    """The group that vLLM loads in every process, and the one the command line looks in."""
    assert plugin.register is register
    points = importlib.metadata.entry_points()
    (ours,) = [p for p in points.select(group="vllm.general_plugins") if p.name == "adaverify"]
    assert ours.load() is register
    (bridge,) = points.select(group="adaverify.bridges", name="vllm")
    assert bridge.load() is report
