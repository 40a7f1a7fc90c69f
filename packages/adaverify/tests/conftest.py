"""The command line over the real runtime and engine, with a tiny model in place of the real one."""

from __future__ import annotations

import json
import os
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from adaverify import cli, console, session
from adaverify.commands import plugins as plugins_command
from adaverify.commands import run as run_command
from adaverify_contracts import ModelDescriptor, hookimpl
from adaverify_engine import profiling
from adaverify_runtime import examine_plugins, load_plugins
from adaverify_testing import InlineDistribution, InlineEntryPoint, tiny_model
from adaverify_verification import CostTable, Fingerprint, contention

BUILT_INS = ("capability", "engine", "graphs", "reference", "verification")


class TinyPlugin:
    """Registers the tiny model under the default name, so that commands need no option to find it."""

    def __init__(self, load=tiny_model, name=session.MODEL, geometry=None):
        self.load, self.name, self.geometry = load, name, geometry

    @hookimpl
    def adaverify_register_models(self):
        return (ModelDescriptor(self.name, "two layers", self.load, self.geometry),)


@pytest.fixture(scope="session")
def warm_cache(tmp_path_factory):
    """A cache that all tests share, so that step times of the tiny model are measured once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path, warm_cache):
    """80 columns, no colours, the shared cache, a folder of its own, and no other variable of ours."""
    for name in list(os.environ):
        if name.upper().startswith("ADAVERIFY_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ADAVERIFY_PATHS_CACHE", str(warm_cache))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    console.out.cache_clear()
    console.err.cache_clear()


@pytest.fixture(scope="session")
def step_seconds():
    """Seconds of a one-token step of the tiny model here, once; see ``machine``."""
    return []


@pytest.fixture(autouse=True)
def machine(monkeypatch, step_seconds):
    """Profile on a quiet machine: real steps run, and their times are a line over the tokens.

    Neighbours of this machine would decide the outcome of tests otherwise. ``machine.slow`` is a factor by
    (tokens, number of the run of that size); the line is near the real times, so that serving agrees with it.
    ``machine.waits`` are the seconds that each thread has waited for a processor, at every reading;
    ``machine.load`` is the load average.
    """
    real = profiling._Runner.step
    runs = {}

    def step(runner, tokens, requests, context):
        seconds = real(runner, tokens, requests, context)
        if len(step_seconds) < 5:
            step_seconds.append(seconds)
        number = runs[tokens] = runs.get(tokens, -1) + 1
        return min(step_seconds[:5]) * (1 + 0.05 * tokens) * state.slow(tokens, number)

    state = SimpleNamespace(slow=lambda tokens, number: 1.0, runs=runs, waits=dict, load=0.0)
    monkeypatch.setattr(run_command, "load_average", lambda: state.load)
    monkeypatch.setattr(contention, "thread_waits", lambda: state.waits())
    monkeypatch.setattr(profiling._Runner, "step", step)
    return state


@pytest.fixture
def cold_cache(surroundings, monkeypatch, tmp_path):
    """The cache of a new user."""
    monkeypatch.setenv("ADAVERIFY_PATHS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def install(monkeypatch):
    """Return a function that makes exactly the built-ins and the given plugins the installed ones."""

    def installed(*plugins):
        points = [EntryPoint(name, f"adaverify_{name}.hooks", "adaverify") for name in BUILT_INS]
        for number, plugin in enumerate(plugins):
            origin = InlineDistribution(f"extra-{number}", "1.0")
            points.append(InlineEntryPoint(f"extra-{number}", plugin, origin))
        monkeypatch.setattr(session, "load_plugins", lambda settings: load_plugins(settings, points))
        monkeypatch.setattr(
            plugins_command, "examine_plugins", lambda settings: examine_plugins(settings, points)
        )

    return installed


@pytest.fixture
def tiny(install):
    """Return a function that installs the tiny model, or one loaded by ``load``, and further plugins.

    ``geometry`` is what its descriptor says of it.
    """

    def installed(*plugins, load=tiny_model, geometry=None):
        install(TinyPlugin(load, geometry=geometry), *plugins)

    installed()
    return installed


@pytest.fixture
def invoke():
    """Return a function that runs the command line and hands back exit code, stdout and stderr."""

    def run(*arguments):
        result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
        # A mistake of our own would be swallowed by the runner and show as code 1.
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def prompts(tmp_path):
    """Return a function that writes a prompts file, four short prompts when none are given."""

    def write(*texts):
        path = tmp_path / "prompts.jsonl"
        texts = texts or ("abcabcabc", "hello there hello there", "xyz", "1 2 3 4 5 6 7")
        path.write_text("".join(json.dumps(text) + "\n" for text in texts), encoding="utf-8")
        return path

    return write


@pytest.fixture
def run_tiny(invoke, prompts):
    """Return a function that runs ``adaverify run`` small: four prompts, two at once, float32, one round."""

    def run(*arguments, texts=()):
        small = ("--prompts", prompts(*texts), "--concurrency", 2, "--tokens", 12, "--rounds", 1)
        return invoke("run", *small, "--dtype", "float32", "--draft-tokens", 3, *arguments)

    return run


@pytest.fixture
def priced_file(tmp_path):
    """A file of made-up prices: 1 ms and 0.2 ms a query token, up to 16 requests and 128 tokens."""
    points = [
        (tokens, requests, context, 1e-3 + 2e-4 * tokens)
        for tokens in (1, 2, 4, 8, 16, 32, 64, 128)
        for requests in (1, 16)
        for context in (16, 256)
        if tokens >= requests
    ]
    path = tmp_path / "prices.json"
    CostTable.from_points(Fingerprint.from_mapping({"ladder": (8, 16, 32, 64)}), points).save(path)
    return path


@pytest.fixture(scope="module")
def finished_runs():
    """What ``run_once`` has run."""
    return {}


@pytest.fixture
def run_once(tiny, run_tiny, finished_runs):
    """Return ``run_tiny`` of the tiny model alone, which runs once in a module for the same options.

    For tests that look at a result and neither at the cache nor at a file.
    """

    def run(*arguments):
        if arguments not in finished_runs:
            finished_runs[arguments] = run_tiny(*arguments)
        return finished_runs[arguments]

    return run
