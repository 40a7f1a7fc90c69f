"""The trace: what was written is read, whole lines only, and a corrupt line is named."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import PlanState, RequestRows, StepRecord, TraceError
from adaverify_replay import TraceHeader, TraceWriter, read_header, read_trace

HEADER = TraceHeader(
    fingerprint={"device": "a gpu", "ladder": [8, 16]}, settings={"planner": {"mode": "fixed"}}
)


def test_what_was_written_is_read(tmp_path, record):
    """Header and records survive the file, None and tuples included."""
    path = tmp_path / "trace.jsonl"
    records = [
        record(step=step, lag=None, realised_seconds=None, fallbacks=("unknown-request", "x"))
        for step in range(5)
    ]
    with TraceWriter(path, HEADER) as writer:
        for item in records:
            writer.write(item)
    assert read_trace(path) == records
    assert read_header(path) == HEADER
    assert len(path.read_text().splitlines()) == 6


text = st.text(max_size=20)
count = st.integers(0, 2**40)
seconds = st.none() | st.floats(0, 1e6, allow_nan=False)
score = st.none() | st.floats(-1e6, 1e6)
ROW = ("keys", "drafted", "admitted", "accepted", "judged", "learn", "sampled", "scores")
entry = st.tuples(count, st.just(3), st.just(2), st.integers(0, 2), st.integers(0, 3), *[st.booleans()] * 2)
table = st.lists(st.tuples(entry, st.tuples(score, score, score)), max_size=4).map(
    lambda lines: RequestRows(
        *(zip(*((*row, values) for row, values in lines), strict=True) if lines else [()] * len(ROW))
    )
)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.builds(
            StepRecord,
            **dict.fromkeys(("reason", "strategy", "digest"), text),
            state=st.sampled_from([state.value for state in PlanState]),
            **dict.fromkeys(
                ("step", "requests", "certain_tokens", "scheduled", "planned", "verified", "accepted"), count
            ),
            **dict.fromkeys(("emitted", "tokens", "tier", "realised_tokens"), count),
            **dict.fromkeys(("predicted_seconds", "realised_seconds"), seconds),
            predicted_tokens=st.floats(0, 1e6, allow_nan=False),
            lag=st.none() | count,
            fallbacks=st.lists(text, max_size=3).map(tuple),
            rows=st.none() | table,
        ),
        max_size=6,
        unique_by=lambda item: item.step,
    )
)
def test_any_record_survives_the_file(tmp_path_factory, records):
    """Line separators of every alphabet inside a reason do not cut a line."""
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    with TraceWriter(path, flush_every=2) as writer:
        for item in records:
            writer.write(item)
    assert read_trace(path) == records


def test_a_crash_loses_at_most_the_buffer_and_never_half_a_line(tmp_path, record):
    """The process dies without closing: what was flushed is whole."""
    path = tmp_path / "trace.jsonl"
    child = os.fork()
    if child == 0:
        writer = TraceWriter(path, HEADER, flush_every=4)
        for step in range(10):
            writer.write(record(step=step))
        os._exit(0)
    os.waitpid(child, 0)
    assert [item.step for item in read_trace(path)] == list(range(8))


def test_appending_continues_a_trace_and_drops_a_torn_tail(tmp_path, record):
    """A crash left half a line; the next run of the same setup appends after the last whole one."""
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path, HEADER) as writer:
        writer.write(record(step=0))
        writer.write(record(step=1))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with TraceWriter(path, HEADER) as writer:
        assert writer.dropped_bytes == len(whole.splitlines()[-1]) + 1 - 20
        writer.write(record(step=2))
    assert [item.step for item in read_trace(path)] == [0, 2]


def test_a_torn_tail_is_an_error_unless_allowed(tmp_path, record):
    """Dropping data is the reader's decision, and the message says how."""
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as writer:
        writer.write(record(step=0))
        writer.write(record(step=1))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(TraceError, match=r"trace\.jsonl:3: .*no line end.*allow_torn_tail=True") as caught:
        read_trace(path)
    assert caught.value.line == 3
    assert [item.step for item in read_trace(path, allow_torn_tail=True)] == [0]


def good_line(record):
    return json.dumps(record().as_dict())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda line: "{not json", "not JSON"),
        (lambda line: "[1, 2]", "not a JSON object"),
        (lambda line: "", "not JSON"),
        (lambda line: line.replace('"tier": 12, ', ""), "'missing': \\['tier'\\]"),
        (lambda line: line.replace("{", '{"extra": 1, ', 1), "'unknown': \\['extra'\\]"),
        (lambda line: line.replace('"tier": 12', '"tier": "12"'), "tier has the wrong type"),
        (lambda line: line.replace('"tier": 12', '"tier": true'), "tier has the wrong type"),
        (lambda line: line.replace('"tier": 12', '"tier": null'), "tier has the wrong type"),
        (lambda line: line.replace('"lag": 1', '"lag": 0.5'), "lag has the wrong type"),
        (lambda line: line.replace('"fallbacks": []', '"fallbacks": [1]'), "fallbacks has the wrong type"),
    ],
)
def test_a_corrupt_line_is_named_by_number(tmp_path, record, change, words):
    """Line 3 is corrupt between two good ones: the error says 3."""
    path = tmp_path / "trace.jsonl"
    header = json.dumps(TraceHeader().as_dict())
    path.write_text(
        "\n".join([header, good_line(record), change(good_line(record)), good_line(record)]) + "\n"
    )
    with pytest.raises(TraceError, match=words) as caught:
        read_trace(path)
    assert caught.value.line == 3
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "empty"),
        ('{"step": 1}\n', "not a trace header"),
        ('{"format": "adaverify-trace", "version": 3, "fingerprint": {}, "settings": {}}\n', "allowed: 1, 2"),
        ('{"format": "adaverify-trace", "version": true, "fingerprint": {}, "settings": {}}\n', "version"),
        ('{"format": "adaverify-trace", "fingerprint": {}, "settings": {}}\n', "version"),
        ('{"format": "adaverify-trace", "version": 1, "fingerprint": 3, "settings": {}}\n', "fingerprint"),
    ],
)
def test_a_file_that_is_no_trace_of_ours_is_refused(tmp_path, content, words):
    """The first line decides."""
    path = tmp_path / "trace.jsonl"
    path.write_text(content)
    with pytest.raises(TraceError, match=words):
        read_trace(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scores": [[0.5, "x"]] * 2}, "finite numbers"),
        ({"scores": [[0.5, float("inf")]] * 2}, "finite numbers"),
        ({"scores": [[0.5, True]] * 2}, "finite numbers"),
        ({"scores": [[0.5], [0.5, 0.5]]}, "K a request"),
        ({"scores": [0.5, 0.5]}, "K a request"),
        ({"drafted": [3, 2]}, "drafted is more than there are scores"),
        ({"accepted": [3, 0]}, "accepted is not within 0 .. admitted"),
        ({"judged": [4, 0]}, "judged is not within 0 .. drafted"),
        ({"admitted": [-1, 0]}, "admitted|accepted"),
        ({"keys": [2**70, 1]}, "64 bits"),
        ({"learn": [1, 0]}, "true and false"),
        ({"learn": [True]}, "one entry a request"),
        ({"learn": 3}, "one entry a request"),
        ({"extra": []}, "not an object with keys"),
    ],
)
def test_malformed_rows_are_named_by_line(tmp_path, record, change, words):
    """Whatever a stranger's writer or an editor left, the line is named and nothing is read."""
    path = tmp_path / "trace.jsonl"
    good = record(
        rows=RequestRows((5, 9), (2, 1), (2, 0), (1, 0), (2, 0), *[(True, False)] * 2, ((0.5, None),) * 2)
    )
    with TraceWriter(path) as writer:
        writer.write(good)
    assert read_trace(path) == [good]
    value = good.as_dict()
    value["rows"] |= change
    path.write_text(path.read_text() + json.dumps(value) + "\n")
    with pytest.raises(TraceError, match=words) as caught:
        read_trace(path)
    assert caught.value.line == 3


def test_a_trace_of_version_1_is_read_without_rows(tmp_path, record):
    """Old traces stay readable and nothing is appended to them; an old reader refuses version 2."""
    path = tmp_path / "trace.jsonl"
    old = record().as_dict()
    del old["rows"]
    header = TraceHeader().as_dict() | {"version": 1}
    path.write_text(f"{json.dumps(header)}\n{json.dumps(old)}\n")
    assert read_trace(path) == [record()]
    assert read_header(path).version == 1
    with pytest.raises(TraceError, match=r"version.*1 in the file, 2 here"):
        TraceWriter(path)
    path.write_text(f"{json.dumps(header)}\n{json.dumps(record().as_dict())}\n")
    with pytest.raises(TraceError, match=r"'unknown': \['rows'\]"):
        read_trace(path)
    assert TraceHeader().version == 2


def test_only_the_newest_version_is_written(tmp_path):
    """Records with rows below a header of version 1 could not be read by anybody."""
    with pytest.raises(TraceError, match="arrived: 1; allowed: 2"):
        TraceWriter(tmp_path / "trace.jsonl", TraceHeader(version=1))
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_and_a_missing_folder_are_typed(tmp_path, record):
    """No bare OSError reaches the user."""
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(TraceError, match="cannot be opened"):
        TraceWriter(tmp_path / "no" / "folder.jsonl")


def test_appending_to_another_setup_is_refused(tmp_path):
    """FreeToken #71: measurements of two setups never share a file."""
    path = tmp_path / "trace.jsonl"
    TraceWriter(path, HEADER).close()
    with pytest.raises(TraceError, match="another setup") as caught:
        TraceWriter(path, TraceHeader(fingerprint={"device": "another gpu", "ladder": [8, 16]}))
    assert caught.value.arrived == {
        "fingerprint.device": "'a gpu' in the file, 'another gpu' here",
        "settings.planner": "{'mode': 'fixed'} in the file, None here",
    }
    assert read_header(path) == HEADER


def test_a_file_of_another_kind_is_never_overwritten(tmp_path):
    """A wrong path must not destroy what is there."""
    path = tmp_path / "notes.txt"
    path.write_text("something without a line end")
    with pytest.raises(TraceError, match="something else"):
        TraceWriter(path)
    assert path.read_text() == "something without a line end"


def test_numbers_that_are_not_finite_are_refused(tmp_path, record):
    """NaN is not JSON, and a reader elsewhere would fail on it."""
    with TraceWriter(tmp_path / "trace.jsonl") as writer:
        with pytest.raises(TraceError, match="step 0 is not JSON"):
            writer.write(record(predicted_seconds=float("nan")))
        writer.write(record(step=1))
    assert [item.step for item in read_trace(tmp_path / "trace.jsonl")] == [1]


def test_a_closed_writer_refuses_and_closing_twice_is_harmless(tmp_path, record):
    """Nothing is written into a file that was handed over."""
    writer = TraceWriter(tmp_path / "trace.jsonl", sync=True)
    writer.write(record())
    writer.close()
    writer.close()
    with pytest.raises(TraceError, match="closed"):
        writer.write(record())
    assert len(read_trace(tmp_path / "trace.jsonl")) == 1


def test_a_trace_is_a_regular_file(tmp_path):
    """Reading a device to its end never ends: /dev/full once filled the memory of a machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in ("/dev/full", pipe):
        with pytest.raises(TraceError, match="regular file"):
            TraceWriter(path, HEADER)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-0.5", "1" + "0" * 30, "9" * 400])
def test_numbers_that_no_record_holds_are_refused(tmp_path, record, number):
    """Python's JSON reads them, and a summary would fail on them or be worth nothing."""
    path = tmp_path / "t.jsonl"
    with TraceWriter(path) as writer:
        writer.write(record(realised_seconds=0.5))
    path.write_text(path.read_text().replace('"realised_seconds":0.5', f'"realised_seconds":{number}'))
    with pytest.raises(TraceError, match="realised_seconds is out of range"):
        read_trace(path)


def test_a_device_and_an_endless_line_are_refused(tmp_path):
    """/dev/zero has no end; a line of zeros is no record however long the file is."""
    with pytest.raises(TraceError, match="regular file only"):
        read_trace("/dev/zero")
    path = tmp_path / "zeros.jsonl"
    with path.open("wb") as file:
        file.truncate(8 << 30)
    with pytest.raises(TraceError, match="too long for a step record"):
        read_trace(path)


def test_a_line_that_is_nested_too_deeply_is_told_in_our_words(tmp_path):
    path = tmp_path / "deep.jsonl"
    path.write_text("[" * 100_000 + "\n")
    with pytest.raises(TraceError, match="nested too deeply"):
        read_trace(path)
