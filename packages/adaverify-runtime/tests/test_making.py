"""Factories of plugins: what one raises or returns stops the start with the plugin's name."""

import asyncio
import sys
from dataclasses import replace

import pytest

from adaverify_contracts import (
    BudgetReads,
    DrafterDescriptor,
    GraphBackendDescriptor,
    LimitsError,
    PluginError,
    PolicyDescriptor,
    Requirements,
    Seen,
    SignalDescriptor,
    hookimpl,
)
from adaverify_graphs import EagerBackend
from adaverify_runtime import GraphSettings, PlannerSettings, Settings, contained_as
from adaverify_verification import RatioPolicy
from adaverify_verification.signals import DrafterSignal


class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")


class Bare(BaseException):
    pass


def raising(error):
    def factory(*arguments):
        raise error

    return factory


def exiting(*arguments):
    sys.exit()


class Odd:
    """Registers one descriptor of a kind with a given factory."""

    def __init__(self, make, kind, factory):
        self.make, self.kind, self.factory = make, kind, factory

    def of(self, kind, *descriptors):
        return descriptors if kind == self.kind else ()

    @hookimpl
    def adaverify_register_decode_strategies(self):
        return self.of("strategy", self.make.strategy("odd", priority=99, allocate=self.factory))

    @hookimpl
    def adaverify_register_signals(self):
        return self.of("signal", SignalDescriptor("odd", Seen.HISTORY, True, self.factory))

    @hookimpl
    def adaverify_register_policies(self):
        return self.of("policy", PolicyDescriptor("odd", BudgetReads.HISTORY, self.factory))

    @hookimpl
    def adaverify_register_graph_backends(self):
        descriptor = GraphBackendDescriptor("odd", Requirements(), True, 99, self.factory)
        return self.of("backend", descriptor)


WORDS = {
    "strategy": ("decode strategy", "allocate", "DecodeRowBuilder"),
    "signal": ("signal", "factory", "Signal"),
    "policy": ("policy", "factory", "Policy"),
    "backend": ("graph backend", "factory", "GraphBackend"),
}


@pytest.fixture
def start(make, real_plugins, verifier):
    """Return a function that assembles a verifier with a plugin whose factory is given."""

    def assemble(kind, factory):
        chosen = {kind: "odd"} if kind in ("signal", "policy") else {}
        settings = Settings(
            planner=PlannerSettings(**chosen),
            graphs=GraphSettings(backend="odd" if kind == "backend" else None),
        )
        mode = "adaptive" if kind != "backend" else "fixed"
        plugins = real_plugins(Odd(make, kind, factory))
        return verifier(plugins=plugins, settings=settings, mode=mode)

    return assemble


RAISED = {
    "exit": (exiting, "SystemExit"),
    "cancelled": (raising(asyncio.CancelledError("later")), "CancelledError: later"),
    "generator": (raising(GeneratorExit()), "GeneratorExit"),
    "bare": (raising(Bare("own")), "Bare: own"),
    "division": (lambda *_: 1 // 0, "ZeroDivisionError"),
    "signature": (lambda a, b, c, d, e: None, "TypeError"),
    "mute": (raising(Mute()), "Mute: <Mute, whose __str__ raised ValueError>"),
}


@pytest.mark.parametrize("kind", WORDS)
@pytest.mark.parametrize(("factory", "words"), RAISED.values(), ids=RAISED)
def test_what_a_factory_raises_names_plugin_and_descriptor(start, kind, factory, words):
    """Above all ``sys.exit()``, which ended the program with code 0 and no words."""
    word, field, _ = WORDS[kind]
    with pytest.raises(PluginError) as caught:
        start(kind, factory)
    assert f"{word} 'odd' of plugin 'extra-0': {field} raised {words}" in str(caught.value)
    assert "list extra-0 in ADAVERIFY_PLUGINS_DISABLED" in str(caught.value)
    assert caught.value.plugin == "extra-0"
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("kind", WORDS)
def test_an_interrupt_passes(start, kind):
    with pytest.raises(KeyboardInterrupt):
        start(kind, raising(KeyboardInterrupt()))


@pytest.mark.parametrize("kind", WORDS)
def test_a_typed_error_and_an_allocators_stay_what_they_are(start, kind):
    with pytest.raises(LimitsError, match="cannot be allocated"):
        start(kind, raising(MemoryError()))


class Nameless:
    strategy = 5
    buffers: dict = {}  # noqa: RUF012 - never written

    def build(self, batch):
        raise AssertionError("built although it has no name")


@pytest.mark.parametrize("kind", WORDS)
@pytest.mark.parametrize(
    "made",
    [None, object(), 7, "text", {}, RatioPolicy],
    ids=["none", "object", "number", "text", "dict", "class"],
)
def test_what_a_factory_returns_must_be_what_the_contract_names(start, kind, made):
    """None replaced a strategy in silence, and a policy without ``choose`` failed at every step."""
    word, field, needed = WORDS[kind]
    with pytest.raises(PluginError) as caught:
        start(kind, lambda *_: made)
    text = str(caught.value)
    assert f"{word} 'odd' of plugin 'extra-0': {field} returned something that is no {needed}" in text
    assert repr(made) in text
    assert "which lacks" in text


def test_a_builders_name_is_text(start):
    with pytest.raises(PluginError, match="which lacks strategy"):
        start("strategy", lambda *_: Nameless())


class Exploding:
    def __getattr__(self, name):
        raise Bare("do not ask")

    __repr__ = __getattr__


def test_a_result_that_cannot_even_be_asked(start):
    with pytest.raises(PluginError, match="what factory returned raised Bare: do not ask"):
        start("signal", lambda *_: Exploding())


def test_what_fits_is_used(start):
    assert type(start("policy", RatioPolicy)).__name__ == "Verifier"
    assert isinstance(start("signal", DrafterSignal).manager.signal, DrafterSignal)
    assert start("backend", lambda device: EagerBackend()).captures


@pytest.mark.parametrize("made", [None, object()])
def test_a_drafter_must_be_one(kit, made):
    descriptor = DrafterDescriptor("odd", Seen.HISTORY, True, lambda *_: made)
    with pytest.raises(PluginError, match="drafter 'odd' of plugin 'outsider': factory returned") as caught:
        contained_as("outsider", descriptor).factory(kit.limits, "cpu")
    assert "Drafter or a BlockDrafter" in caught.value.allowed or "propose" in caught.value.allowed


def fussy(make, obstacle):
    return replace(make.drafter(), obstacle=obstacle)


@pytest.mark.parametrize(
    ("obstacle", "words"),
    [
        (lambda k: 1 // 0, "obstacle raised ZeroDivisionError"),
        (exiting, "obstacle raised SystemExit"),
        (lambda: "", "obstacle raised TypeError"),
        (lambda k: None, "obstacle returned something that is no str"),
        (lambda k: 5, "obstacle returned something that is no str"),
    ],
)
def test_an_obstacle_that_fails_names_plugin_and_drafter(make, obstacle, words):
    """It took the doctor down with a traceback."""
    drafter = contained_as("odd-plugin", fussy(make, obstacle))
    with pytest.raises(PluginError) as caught:
        drafter.refusal(7)
    assert f"drafter 'echo' of plugin 'odd-plugin': {words}" in str(caught.value)
    assert "list odd-plugin in ADAVERIFY_PLUGINS_DISABLED" in str(caught.value)


def test_an_obstacle_that_answers_is_passed_on(make):
    drafter = contained_as("p", fussy(make, lambda k: f"it drafts 4, and K is {k}" if k > 4 else ""))
    assert (drafter.refusal(7), drafter.refusal(4)) == ("it drafts 4, and K is 7", "")
    assert contained_as("p", make.drafter()).refusal(7) == ""
    with pytest.raises(LimitsError):
        contained_as("p", fussy(make, raising(LimitsError("too long")))).refusal(7)
    with pytest.raises(KeyboardInterrupt):
        contained_as("p", fussy(make, raising(KeyboardInterrupt()))).refusal(7)
