"""Words about a stranger's exceptions and values, whatever those do when they are asked for text."""

import sys

import pytest

from adaverify_contracts import PluginError
from adaverify_contracts.describing import describe, shown, text_of, traceback_of


class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")

    __repr__ = __str__


class Leaving(Exception):
    def __str__(self):
        sys.exit(0)


class Trick(str):
    __slots__ = ()

    def __format__(self, spec):
        raise ValueError("no format")


class Tricky(Exception):
    def __str__(self):
        return Trick("plain")


class Interrupted(Exception):
    def __str__(self):
        raise KeyboardInterrupt


def test_an_ordinary_error_has_its_type_and_text():
    assert describe(ValueError("seven")) == "ValueError: seven"
    assert shown("a") == "'a'"


def test_an_error_without_usable_text_is_described_without_it():
    assert describe(Mute()) == "Mute: <Mute, whose __str__ raised ValueError>"
    assert describe(Leaving()) == "Leaving: <Leaving, whose __str__ raised SystemExit>"
    assert shown(Mute()) == "<Mute, whose __repr__ raised ValueError>"


def test_the_text_is_a_plain_str():
    assert type(text_of(Tricky())) is str
    assert describe(Tricky()) == "Tricky: plain"


def test_an_interrupt_passes():
    with pytest.raises(KeyboardInterrupt):
        describe(Interrupted())


def test_a_traceback_is_there_in_every_case():
    assert "Mute" in traceback_of(Mute())
    assert "ValueError: seven" in traceback_of(ValueError("seven"))


def test_a_typed_error_about_a_value_that_cannot_be_shown():
    error = PluginError("odd", plugin="odd", arrived=Mute(), remedy="cure it")
    assert "whose __repr__ raised ValueError" in str(error)
    assert error.advising("go home").remedy == "cure it, or go home"
    assert error.advising("go home").plugin == "odd"
