"""Which ragged strategy builds the rows: by measurement, and never a loser."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import CostTableError, FingerprintMismatchError
from adaverify_runtime import RowChoice, RowCost, RowCostTable

ROOT = Path(__file__).resolve().parents[3]
CELLS = (
    (8, 2048, 9.0, 9.0, 0.0),
    (8, 8192, 10.0, 9.9, 0.2),
    (64, 2048, 20.0, 15.0, 1.0),
    (64, 8192, 50.0, 30.0, 1.0),
    (512, 2048, 25.0, 40.0, 1.0),
    (512, 8192, 90.0, 60.0, 1.0),
)


def table(cells=CELLS, **fingerprint):
    costs = [
        RowCost(name, tokens, context, seconds, noise)
        for tokens, context, one, two, noise in cells
        for name, seconds in (("one", one), ("two", two))
    ]
    return RowCostTable(tuple(costs), fingerprint)


@pytest.mark.parametrize(
    ("tokens", "context", "strategy", "word"),
    [
        (64, 2048, "two", "two"),
        (64, 8192, "two", "two"),
        (64, 5000, "two", "two"),
        # One corner ties, or lost.
        (8, 2048, "one", "tie"),
        (8, 8192, "one", "tie"),
        (30, 8192, "one", "tie"),
        (512, 2048, "one", "one"),
        (100, 3000, "one", "one"),
        (512, 8192, "two", "two"),
        # Outside what was measured.
        (7, 2048, "one", "unknown shape"),
        (64, 2047, "one", "unknown shape"),
        (513, 8192, "one", "unknown shape"),
        (64, 32768, "one", "unknown shape"),
        (0, 0, "one", "unknown shape"),
    ],
)
def test_an_alternative_only_where_it_was_measured_to_win(tokens, context, strategy, word):
    choice = RowChoice(table(), "one", ["two"])
    for _ in range(2):
        found = choice.choose(tokens, context)
        assert (found.strategy, found.word) == (strategy, word) and found.reason.startswith("rows: ")
    assert not any(choice.counters.values()), "asking counts nothing"
    choice.count(found.word)
    assert {name: n for name, n in choice.counters.items() if n} == {word: 1}


def test_a_grid_with_a_hole_is_unknown_beside_the_hole():
    choice = RowChoice(table(CELLS[:-1]), "one", ["two"])
    assert choice.choose(100, 5000).word == "unknown shape" and choice.choose(64, 8192).word == "two"


def test_of_several_the_one_that_gains_most_is_taken():
    """Each is compared where it was measured; one that was not measured at a shape does not stop another."""
    costs = [RowCost("one", 8, 64, 10.0), RowCost("two", 8, 64, 8.0), RowCost("three", 8, 64, 5.0)]
    costs += [RowCost("one", 16, 64, 10.0), RowCost("two", 16, 64, 8.0)]
    choice = RowChoice(RowCostTable(tuple(costs), {}), "one", ["two", "three"])
    assert [choice.choose(n, 64).strategy for n in (8, 16, 12)] == ["three", "two", "two"]


@given(
    times=st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=4, max_size=4),
    tokens=st.integers(1, 20),
    context=st.integers(1, 20),
)
@settings(max_examples=60, deadline=None)
def test_it_never_loses_at_a_measured_corner(times, tokens, context):
    """Whatever was measured, an alternative is faster at all corners around the shape, or not taken."""
    corners = [(5, 5), (5, 15), (15, 5), (15, 15)]
    cells = [(*corner, *time, 0.0) for corner, time in zip(corners, times, strict=True)]
    if RowChoice(table(cells), "one", ["two"]).choose(tokens, context).strategy == "two":
        inside = [
            (one, two)
            for t, c, one, two, _ in cells
            if (tokens not in (5, 15) or t == tokens) and (context not in (5, 15) or c == context)
        ]
        assert 5 <= tokens <= 15 and 5 <= context <= 15 and all(two < one for one, two in inside)


def test_a_saved_table_is_loaded_again(tmp_path):
    path = tmp_path / "rows.json"
    table(device="a", heads=64).save(path)
    path.write_text(json.dumps({"other": 1, **json.loads(path.read_text())}))
    loaded = RowCostTable.load(path, {"device": "a"})
    assert loaded.costs == table().costs and loaded.strategies == ("one", "two")
    with pytest.raises(FingerprintMismatchError) as caught:
        RowCostTable.load(path, {"device": "b", "heads": 64})
    assert caught.value.differences == {"device": ("a", "b")}


def test_the_published_measurement_decides():
    """The published times of one and two tokens a row: pairs win at long contexts only."""
    report = ROOT / "docs/measurements/data/2026-11-30-h200-logits.json"
    if not report.is_file():
        pytest.skip("outside the repository")
    costs = tuple(
        RowCost(name, cell["tokens"], cell["context"], cell[f"{name}_us"] / 1e6, cell["noise_us"] / 1e6)
        for cell in json.loads(report.read_text())["cells"]
        for name in ("flatten", "paired")
    )
    choice = RowChoice(RowCostTable(costs, {}), "flatten", ["paired"])
    shapes = ((512, 32768), (512, 2048), (264, 32768), (512, 65536))
    assert [choice.choose(*shape).word for shape in shapes] == ["paired", "flatten", "tie", "unknown shape"]


def test_a_benchmark_report_is_a_table(tmp_path):
    """`adaverify bench NAME --json` has row costs among the facts; the rest is the fingerprint."""
    costs = [{"strategy": "one", "tokens": 8, "context": 64, "seconds": 1e-5, "noise_seconds": 0.0}]
    other = {"name": "plan", "facts": {}}
    report = {"benchmarks": [other, {"name": "logits", "facts": {"device": "a", "row_costs": costs}}]}
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(report))
    loaded = RowCostTable.load(path, {"device": "a"})
    assert loaded.costs == (RowCost("one", 8, 64, 1e-5),)
    assert dict(loaded.fingerprint) == {"device": "a"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"row_costs": 3, "fingerprint": {}}',
        '{"row_costs": [{}], "fingerprint": {}}',
        "no json",
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, text):
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(CostTableError, match="no row-cost table") as caught:
        RowCostTable.load(path)
    assert "has no attribute" not in str(caught.value)
    with pytest.raises(CostTableError, match="FileNotFoundError"):
        RowCostTable.load(tmp_path / "absent.json")


@pytest.mark.parametrize(
    "values",
    [
        ("one", 0, 1, 1.0),
        ("one", 1, 0, 1.0),
        ("", 1, 1, 1.0),
        ("one", 1, 1, 0.0),
        ("one", 1, 1, float("nan")),
        ("one", 1, 1, float("inf")),
        ("one", 1, 1, 1.0, -1.0),
        ("one", 1.5, 1, 1.0),
        ("one", 1, 1, "fast"),
    ],
)
def test_an_entry_that_is_no_measurement_is_refused(values):
    with pytest.raises(CostTableError, match="no measurement"):
        RowCost(*values)


def test_an_entry_twice_is_refused():
    with pytest.raises(CostTableError, match="twice"):
        RowCostTable((RowCost("one", 1, 1, 1.0), RowCost("one", 1, 1, 2.0)), {})
