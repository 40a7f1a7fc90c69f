"""Incremental text and stop texts across token boundaries."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_engine.text import Detokenizer


class Bytes:
    """Every byte a token, so that characters span tokens; 256 is special and has no text."""

    def decode(self, tokens):
        return bytes(token for token in tokens if token < 256).decode("utf-8", errors="replace")


def feed(text: str, stops=()):
    detokenizer = Detokenizer(Bytes(), stops)
    pieces = []
    for byte in text.encode():
        if detokenizer.push(byte):
            break
        pieces.append(detokenizer.take(final=False))
    pieces.append(detokenizer.take(final=True))
    return detokenizer, "".join(pieces)


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="abé€😀 ", max_size=30))
def test_streamed_text_equals_the_whole(text):
    """Pieces join to the decoded whole, and no replacement character leaks from a split character."""
    detokenizer, streamed = feed(text)
    assert streamed == detokenizer.text == text


@settings(max_examples=80, deadline=None)
@given(st.text(alphabet="ab€", max_size=30), st.lists(st.text("ab€", min_size=1, max_size=4), max_size=3))
def test_stop_texts_cut_at_their_first_completion(text, stops):
    """Nothing of a stop text is streamed, whatever token boundaries it spans."""
    detokenizer, streamed = feed(text, stops)
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    assert detokenizer.stopped == bool(ends)
    if ends:
        first = min(ends)
        expected = min(text[:first].index(stop) for stop in stops if stop in text[:first])
        text = text[:expected]
    assert streamed == detokenizer.text == text


def test_possible_beginning_of_a_stop_text_is_held_back():
    """Text that may yet become a stop text is not streamed before it is decided."""
    detokenizer = Detokenizer(Bytes(), ("END",))
    for byte in b"xEN":
        detokenizer.push(byte)
    assert detokenizer.take(final=False) == "x"
    detokenizer.push(ord("y"))
    assert detokenizer.take(final=False) == "ENy"


@pytest.mark.parametrize("count", [1, 40])
def test_tokens_without_text_are_ordinary(count):
    """Special tokens add nothing, and many of them do not pile up."""
    detokenizer = Detokenizer(Bytes())
    for token in [256] * count + [ord("z")]:
        detokenizer.push(token)
    assert detokenizer.take(final=True) == "z"


def test_broken_bytes_are_shown_at_the_end():
    """Bytes that never become a character appear as replacement, once, when the request ends."""
    detokenizer = Detokenizer(Bytes())
    detokenizer.push(0xF0)
    assert detokenizer.take(final=False) == ""
    assert detokenizer.take(final=True) == "\ufffd"


@settings(max_examples=80, deadline=None)
@given(st.text(alphabet="abé€😀 ", max_size=30), st.lists(st.integers(1, 9), min_size=1, max_size=40))
def test_text_of_whole_steps_equals_that_of_single_tokens(text, sizes):
    """Tokens that arrive several at a time stream the same text, whatever characters they split."""
    detokenizer = Detokenizer(Bytes())
    data, pieces = list(text.encode()), []
    for size in sizes * len(data):
        if not data:
            break
        step, data = data[:size], data[size:]
        detokenizer.extend(step)
        pieces.append(detokenizer.take(final=False))
        assert "\ufffd" not in pieces[-1]
    pieces.append(detokenizer.take(final=True))
    assert "".join(pieces) == detokenizer.text == text


def test_text_that_is_not_streamed_is_decoded_once():
    """``stream=False`` decodes at the end, everything in one call, and hands out nothing before."""
    calls = []

    class Counting(Bytes):
        def decode(self, tokens):
            calls.append(len(tokens))
            return super().decode(tokens)

    detokenizer = Detokenizer(Counting(), stream=False)
    for byte in "ab€".encode():
        detokenizer.extend([byte])
        assert detokenizer.take(final=False) == ""
    assert not calls
    assert detokenizer.take(final=True) == "ab€"
    assert calls == [5, 0]
