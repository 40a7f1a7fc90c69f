"""Acceptance records: what they refuse, and that a file says what was written or nothing."""

import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from adaverify_contracts import AdaverifyError, RecordsError
from adaverify_replay import REGIMES, SOURCES, AcceptanceRecords, RecordsHeader, records_file

K = 3


@pytest.fixture
def header():
    return RecordsHeader("toy", "toy-block", K, "PREFIX", True, 0.8, 1, {"prompts": {"code": 2}})


@pytest.fixture
def records(header):
    return AcceptanceRecords(
        header,
        scores=np.arange(15, dtype=np.float16).reshape(5, K) / 8,
        accepted=np.array([0, 3, 1, 2, 0], np.uint8),
        starts=np.array([0, 2, 5]),
        source=np.array([0, 2], np.uint8),
        regime=np.array([1, 0], np.uint8),
        contexts=np.array([7, 9], np.int32),
    )


def arrays(records):
    return {name: getattr(records, name) for name in records.__slots__ if name != "header"}


def test_a_file_gives_back_what_was_saved(records, tmp_path):
    path = tmp_path / "records.npz"
    records.save(path)
    again = AcceptanceRecords.load(path)
    assert again.header == records.header
    for name, array in arrays(records).items():
        np.testing.assert_array_equal(getattr(again, name), array)
        assert getattr(again, name).dtype == array.dtype
    assert again.digest == records.digest
    assert [path.name for path in tmp_path.iterdir()] == ["records.npz"]


def test_equal_records_are_equal_files(records, tmp_path):
    one, other = tmp_path / "one.npz", tmp_path / "other.npz"
    records.save(one)
    AcceptanceRecords.load(one).save(other)
    assert one.read_bytes() == other.read_bytes()


def test_sizes_are_those_of_the_arrays(records):
    assert (records.positions, records.sequences, records.draft_tokens) == (5, 2, K)
    assert records.lengths.tolist() == [2, 3]


def test_sequences_are_chosen_by_source_and_regime(records):
    assert records.of("code").tolist() == [0]
    assert records.of(regime="greedy").tolist() == [1]
    assert records.of("chat").tolist() == []
    assert records.of("code", "greedy").tolist() == []
    with pytest.raises(RecordsError, match=r"poetry.*choose one of the allowed words"):
        records.of("poetry")


def test_fewer_drafts_are_the_first_columns(records):
    """What a drafter that stops earlier would have said, and what would have been accepted of it."""
    cut = records.first(2)
    assert (cut.draft_tokens, cut.positions, cut.sequences) == (2, 5, 2)
    np.testing.assert_array_equal(cut.scores, records.scores[:, :2])
    assert cut.accepted.tolist() == [0, 2, 1, 2, 0]
    assert cut.digest != records.digest
    assert records.first(K) is records


@pytest.mark.parametrize("count", [0, K + 1])
def test_drafts_that_were_not_recorded_are_refused_with_both_numbers(records, count):
    with pytest.raises(
        RecordsError, match=f"have {K} drafts a position, and {count} were asked for"
    ) as caught:
        records.first(count)
    assert caught.value.allowed == f"1 .. {K}"
    assert "adaverify record --draft-tokens" in caught.value.remedy


def test_taken_sequences_keep_their_rows(records):
    taken = records.take(np.array([1, 0]))
    assert taken.starts.tolist() == [0, 3, 5]
    assert taken.accepted.tolist() == [1, 2, 0, 0, 3]
    np.testing.assert_array_equal(taken.scores, records.scores[[2, 3, 4, 0, 1]])
    assert taken.contexts.tolist() == [9, 7]
    with pytest.raises(RecordsError):
        records.take(np.zeros(0, np.int64))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scores", np.zeros((5, K), np.float32)),
        ("scores", np.zeros((5, K + 1), np.float16)),
        ("scores", np.full((5, K), np.nan, np.float16)),
        ("accepted", np.array([0, 4, 1, 2, 0], np.uint8)),
        ("accepted", [0, 3, 1, 2, 0]),
        ("starts", np.array([0, 2, 4])),
        ("starts", np.array([1, 2, 5])),
        ("starts", np.array([0, 5, 5])),
        ("starts", np.array([0, 5])),
        ("source", np.array([0, len(SOURCES)], np.uint8)),
        ("regime", np.array([0, len(REGIMES)], np.uint8)),
        ("contexts", np.array([7, 0], np.int32)),
    ],
)
def test_arrays_that_contradict_one_another_are_refused(records, name, value):
    with pytest.raises(RecordsError, match=name if name != "accepted" else "accepted|array") as caught:
        AcceptanceRecords(records.header, **{**arrays(records), name: value})
    assert caught.value.allowed and caught.value.remedy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("draft_tokens", 0),
        ("draft_tokens", True),
        ("seen", "EVERYTHING"),
        ("temperature", float("nan")),
        ("seed", "1"),
        ("model", None),
        ("source", []),
    ],
)
def test_a_header_of_wrong_values_is_refused(header, name, value):
    with pytest.raises(RecordsError, match=name):
        replace(header, **{name: value})


def rewritten(path, **changed):
    """Write the archive again with other arrays or another document."""
    with np.load(path) as stored:
        found = {name: stored[name] for name in stored.files}
    for name, value in changed.items():
        if name in found and not callable(value):
            found[name] = value
        elif callable(value):
            document = json.loads(found["header"].tobytes())
            value(document)
            found["header"] = np.frombuffer(json.dumps(document).encode(), np.uint8)
        else:
            found[name] = value
    np.savez(path, **found)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"PK not an archive"),
        lambda path: path.write_bytes(path.read_bytes()[:-40]),
        lambda path: path.write_bytes(path.read_bytes()[:200] + b"\0" * 40 + path.read_bytes()[240:]),
        lambda path: np.savez(path, scores=np.zeros(3)),
        lambda path: rewritten(path, more=np.zeros(1)),
        lambda path: rewritten(path, header=np.frombuffer(b"no json", np.uint8)),
        lambda path: rewritten(path, header=np.frombuffer(b"[1]", np.uint8)),
        lambda path: rewritten(path, accepted=np.array([0, 3, 1, 2, 1], np.uint8)),
        lambda path: rewritten(path, document=lambda value: value.update(version=2)),
        lambda path: rewritten(path, document=lambda value: value.update(model="other")),
        lambda path: rewritten(path, document=lambda value: value.pop("seed")),
        lambda path: rewritten(path, document=lambda value: value.update(more=1)),
        lambda path: rewritten(path, document=lambda value: value.update(digest="0")),
        lambda path: rewritten(path, starts=np.array([None, 1], object)),
    ],
)
def test_a_damaged_file_is_refused_with_its_path(records, tmp_path, damage):
    path = tmp_path / "records.npz"
    records.save(path)
    damage(path)
    with pytest.raises(RecordsError, match=r"records\.npz") as caught:
        AcceptanceRecords.load(path)
    assert caught.value.path == str(path)
    assert caught.value.remedy


def test_an_archive_that_unpacks_to_too_much_is_not_unpacked(records, tmp_path, monkeypatch):
    path = tmp_path / "records.npz"
    records.save(path)
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(entry.file_size for entry in archive.infolist())
    monkeypatch.setattr(records_file, "MAX_BYTES", unpacked - 1)
    with pytest.raises(RecordsError, match="unpacked"):
        AcceptanceRecords.load(path)


def test_what_cannot_be_written_is_refused(records, tmp_path):
    with pytest.raises(RecordsError, match="cannot be written"):
        records.save(tmp_path / "missing" / "records.npz")
    assert issubclass(RecordsError, AdaverifyError)


def test_a_header_that_is_nested_too_deeply_is_told_in_our_words(records, tmp_path):
    path = tmp_path / "records.npz"
    records.save(path)
    rewritten(path, header=np.frombuffer(b"[" * 100_000, np.uint8))
    with pytest.raises(RecordsError, match="nested too deeply"):
        AcceptanceRecords.load(path)
