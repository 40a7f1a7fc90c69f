"""Cost tables: measured, monotone, saved, refused."""

import json

import pytest

from adaverify_contracts import CostTableError, FingerprintMismatchError
from adaverify_verification import CostTable, Fingerprint, json_file

HERE = Fingerprint.from_mapping({"device": "cpu", "dtype": "bfloat16", "ladder": (8, 16), "shards": 1})
POINTS = [(8, 8, 128, 1.0), (16, 8, 128, 2.0), (8, 8, 4096, 1.5), (16, 8, 4096, 3.0)]


def test_a_table_survives_the_disk_unchanged(tmp_path):
    """Saved and loaded tables are equal, drafting and rejection prices included."""
    table = CostTable.from_points(HERE, POINTS, draft=[(8, 0.2)], rejected_seconds=0.01)
    table.save(tmp_path / "deep" / "cost.json")
    assert CostTable.load(tmp_path / "deep" / "cost.json", HERE) == table
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["cost.json"]


def test_an_outlier_is_named_and_the_curve_never_falls():
    """speed.llama.cpp: measured [5.0, 4.2, 6.0] made one row dearer than two."""
    table = CostTable.from_points(HERE, [(1, 1, 0, 5.0), (2, 1, 0, 4.2), (4, 1, 0, 6.0)])
    assert table.curves[0].seconds == pytest.approx((4.6, 4.6, 6.0))
    assert table.curves[0].measured == (5.0, 4.2, 6.0)
    assert len(table.outliers) == 2
    assert "1 tokens" in table.outliers[0]
    assert "2 tokens" in table.outliers[1]


def test_repeated_points_count_by_their_median():
    """One stall does not move a price."""
    table = CostTable.from_points(HERE, [(8, 1, 0, 1.0), (8, 1, 0, 1.1), (8, 1, 0, 90.0)])
    assert table.points == ((8, 1, 0, 1.1),)


@pytest.mark.parametrize(
    "point",
    [
        (8, 8, 128, float("nan")),
        (8, 8, 128, float("inf")),
        (8, 8, 128, -1.0),
        (8, 8, 128, 0.0),
        (0, 8, 128, 1.0),
        (8, 0, 128, 1.0),
        (8, 8, -1, 1.0),
        (8.5, 8, 128, 1.0),
        (8, 8, 1.0),
        (8, 8, 128, "1"),
        (True, 8, 128, 1.0),
    ],
)
def test_points_that_are_no_measurement_are_refused(point):
    """NaN, infinite, negative and zero times, and shapes off the axes."""
    with pytest.raises(CostTableError):
        CostTable.from_points(HERE, [*POINTS, point])


def test_an_empty_table_is_refused():
    """No measurement is an error here and the state unpriced in the planner."""
    with pytest.raises(CostTableError, match="no measurement"):
        CostTable.from_points(HERE, [])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"format": "adaverify-cost-table", "version": 2}',
        '{"format": "adaverify-cost-table", "version": 1}',
        '{"format": "adaverify-cost-table", "version": 1, "fingerprint": {}, "points": [[1, 1, 0, 1.0]]}',
        '{"format": "adaverify-cost-table", "version": 1, "fingerprint": {"a": "b"}, "points": []}',
        (
            '{"format": "adaverify-cost-table", "version": 1, "fingerprint": {"a": "b"}, '
            '"points": [[1, 1, 0, NaN]]}'
        ),
        '{"format": "adaverify-cost-table", "version": 1, "fingerprint": {"a": "b"}, "points": [3]}',
        '{"format": "adaverify-cost-table", "version": 1, "fingerprint": {"a": "b"}, "points": {"1": 2}}',
        '{"format": "adaverify-cost-table", "version": 1, "fingerprint": "x", "points": [[1, 1, 0, 1.0]]}',
    ],
)
def test_a_corrupt_file_is_a_cost_table_error(tmp_path, text):
    """Truncated, foreign, empty or poisoned files never reach the planner."""
    path = tmp_path / "cost.json"
    path.write_text(text)
    with pytest.raises(CostTableError):
        CostTable.load(path, HERE)


def test_a_missing_or_unreadable_file_says_what_to_do(tmp_path):
    """The remedy is a command."""
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(CostTableError, match="adaverify profile"):
            CostTable.load(path, HERE)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CostTableError):
        CostTable.load(tmp_path / "binary", HERE)


@pytest.mark.parametrize(
    ("field", "value"), [("device", "other"), ("dtype", "float32"), ("ladder", (8, 24)), ("shards", 4)]
)
def test_a_table_of_another_setup_is_refused_naming_the_field(tmp_path, field, value):
    """vllm #52233, FreeToken #71: reuse only under an equal fingerprint."""
    CostTable.from_points(HERE, POINTS).save(tmp_path / "t.json")
    other = Fingerprint.from_mapping({**dict(HERE.pairs), field: value})
    with pytest.raises(FingerprintMismatchError) as caught:
        CostTable.load(tmp_path / "t.json", other)
    assert list(caught.value.differences) == [field]
    assert dict(HERE.pairs)[field] in str(caught.value)
    assert CostTable.load(tmp_path / "t.json", None).points


def test_a_failed_save_leaves_the_old_table(tmp_path, monkeypatch):
    """Readers see the old file or the new one, never half of it."""
    path = tmp_path / "t.json"
    CostTable.from_points(HERE, POINTS).save(path)
    before = path.read_text()
    monkeypatch.setattr(json_file.os, "fsync", lambda number: number / 0)
    with pytest.raises(ZeroDivisionError):
        CostTable.from_points(HERE, POINTS[:1]).save(path)
    assert path.read_text() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_table_has_the_mode_of_any_other_new_file(tmp_path):
    """A cache that several users share would be measured anew by all but one of them."""
    (tmp_path / "plain").write_text("")
    CostTable.from_points(HERE, POINTS).save(tmp_path / "t.json")
    assert (tmp_path / "t.json").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_misspelt_key_is_refused_and_named(tmp_path):
    """Read as absent, it would be a price of nothing."""
    path = tmp_path / "cost.json"
    CostTable.from_points(HERE, POINTS, rejected_seconds=0.01).save(path)
    path.write_text(path.read_text().replace("rejected_seconds", "rejected_sec0nds"))
    with pytest.raises(CostTableError, match="rejected_sec0nds"):
        CostTable.load(path, HERE)


def test_two_times_for_one_point_count_by_their_median_and_are_told():
    """A file with a line too many is no reason to stop, and not one to be silent about either."""
    table = CostTable.from_points(
        HERE,
        [(1, 1, 16, 1.0), (4, 1, 16, 2.0), (4, 1, 16, 3.0), (4, 1, 16, 9.0)],
        draft=[(1, 0.5), (2, 0.7), (1, 0.1)],
    )
    assert table.points == ((1, 1, 16, 1.0), (4, 1, 16, 3.0))
    assert table.draft == ((1, 0.3), (2, 0.7))
    assert table.outliers == (
        "4 tokens, 1 requests, context 16: 3 times from 2 to 9 s, used 3 s",
        "drafting for 1 requests: 2 times from 0.1 to 0.5 s, used 0.3 s",
    )


def test_two_times_that_agree_are_not_told():
    """Sizes that are padded alike are measured more than once."""
    table = CostTable.from_points(HERE, [(4, 1, 16, 2.0), (4, 1, 16, 2.02)])
    assert (table.points, table.outliers) == (((4, 1, 16, 2.01),), ())


@pytest.mark.parametrize("huge", [10**400, -(10**400)])
@pytest.mark.parametrize("place", range(4))
def test_integers_that_no_float_holds_are_refused_by_type(huge, place):
    raw = list(POINTS[0])
    raw[place] = huge
    with pytest.raises(CostTableError):
        CostTable.from_points(HERE, [*POINTS, raw])
    with pytest.raises(CostTableError):
        CostTable.from_points(HERE, POINTS, draft=[(8, huge)])
    with pytest.raises(CostTableError):
        CostTable.from_points(HERE, POINTS, rejected_seconds=huge)


@pytest.fixture
def stored(tmp_path):
    """Return a function that loads a good table's file with some keys changed."""

    def load(**changes):
        path = tmp_path / "cost.json"
        CostTable.from_points(HERE, POINTS).save(path)
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        return CostTable.load(path, None)

    return load


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": True}, "of this version"),
        ({"outliers": [5]}, "outliers"),
        ({"disturbed": "busy"}, "disturbed"),
        ({"draft": "x"}, "adaverify profile"),
        ({"fingerprint": {"ladder": "8,-3,x"}}, "ladder"),
        ({"fingerprint": {"ladder": "16,8"}}, "ladder"),
        ({"fingerprint": {"ladder": [8, 10**30]}}, "ladder"),
        ({"fingerprint": {"ladder": 5}}, "ladder"),
        ({"fingerprint": ["ladder"]}, "an object of texts and numbers"),
        ({"fingerprint": {"device": {"name": "H200"}}}, "an object of texts and numbers"),
        ({"points": [[8, 8, 128, 1.0], [8, 8, 128, 2.0]]}, r"two times for one size.*8, 8, 128, 1.0, 2.0"),
        ({"draft": [[8, 1.0], [8, 2.0]]}, "draft have two times for one size"),
        ({"fingerprint": {"draft_tokens": "many"}}, "draft_tokens"),
        ({"fingerprint": {"draft_tokens": -1}}, "draft_tokens"),
        ({"points": [[4, 8, 128, 1.0]]}, "fewer tokens than requests"),
        ({"points": [[8, 8, 10**15, 1.0]]}, "context"),
        ({"points": [[8, 8, 128, 1e308]]}, "no step takes that time"),
        ({"points": [[8, 8, 128, 5e-324]]}, "no step takes that time"),
        ({"points": [[8, 8, 128, 10**400]]}, "usable time"),
        ({"draft": [[8, 1e30]]}, "drafting for 8 requests"),
    ],
)
def test_a_stored_table_of_what_cannot_be_true_is_refused(stored, changes, words):
    """Each was taken in silence, and `simulate` planned with it."""
    with pytest.raises(CostTableError, match=words):
        stored(**changes)


def test_a_table_without_a_setup_is_told_in_our_words(tmp_path):
    """It arrived as a KeyError."""
    path = tmp_path / "cost.json"
    CostTable.from_points(HERE, POINTS).save(path)
    document = json.loads(path.read_text())
    del document["fingerprint"]
    path.write_text(json.dumps(document))
    with pytest.raises(CostTableError, match="the cost table has no fingerprint") as caught:
        CostTable.load(path, None)
    assert "Error" not in str(caught.value)


def test_ladders_and_drafts_that_can_be_are_taken(stored):
    for facts in ({"ladder": "", "draft_tokens": "0"}, {"ladder": "8", "bare": "1,2", "draft_tokens": "7"}):
        assert dict(stored(fingerprint=facts).fingerprint.pairs) == facts


@pytest.mark.parametrize("text", ["null", "[]", "1"])
def test_a_file_of_a_bare_value_shows_it(tmp_path, text):
    (tmp_path / "cost.json").write_text(text)
    with pytest.raises(CostTableError) as caught:
        CostTable.load(tmp_path / "cost.json", None)
    assert caught.value.arrived == text
