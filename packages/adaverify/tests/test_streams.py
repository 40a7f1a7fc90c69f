"""Standard streams: all of a text is written, or the process ends."""

from __future__ import annotations

import io
import sys

import pytest

from adaverify import streams


class Short(io.RawIOBase):
    """Takes ten bytes a call, as a pipe or a nearly full disk may, and ends after ``room`` bytes."""

    def __init__(self, room=1 << 20, error=None):
        self.taken, self.room, self.error = b"", room, error

    def writable(self):
        return True

    def write(self, data):
        some = bytes(data[: min(10, self.room - len(self.taken))])
        if not some:
            raise self.error
        self.taken += some
        return len(some)


@pytest.fixture
def unbuffered(monkeypatch):
    """Return a function that makes a raw file standard output, as PYTHONUNBUFFERED does."""

    def made(raw):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "utf-8", write_through=True))
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        streams.guard_streams()
        return raw

    return made


def test_a_raw_file_that_takes_less_than_it_is_given_gets_the_rest(unbuffered):
    """Half a JSON value came out, and the exit code was 0."""
    raw = unbuffered(Short())
    sys.stdout.write("0123456789abcde" * 7)
    assert raw.taken == b"0123456789abcde" * 7


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(27, "File too large"), streams.OutputError),
        (BrokenPipeError(32, "Broken pipe"), streams.PipeClosedError),
    ],
    ids=["full", "closed"],
)
def test_a_raw_file_that_fails_half_way_is_told_apart(unbuffered, error, kind):
    raw = unbuffered(Short(25, error))
    with pytest.raises(streams.OutputError) as found:
        sys.stdout.write("x" * 100)
    assert type(found.value) is kind
    assert raw.taken == b"x" * 25
    raw.room = 1 << 20  # The stream flushes what it holds when it goes.
