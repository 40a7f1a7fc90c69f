"""One or two tokens a row, by measurement."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import CostTableError, FingerprintMismatchError
from adaverify_sm90_flatten import RowChoice, RowCost, RowCostTable

CELLS = (
    RowCost(8, 2048, 9.0, 9.0),
    RowCost(8, 8192, 10.0, 9.9, noise_us=0.2),
    RowCost(64, 2048, 20.0, 15.0, noise_us=1.0),
    RowCost(64, 8192, 50.0, 30.0, noise_us=1.0),
    RowCost(512, 2048, 25.0, 40.0, noise_us=1.0),
    RowCost(512, 8192, 90.0, 60.0, noise_us=1.0),
)
TABLE = RowCostTable(CELLS, {"device": "a card"})


@pytest.mark.parametrize(
    ("tokens", "context", "strategy", "counter"),
    [
        (64, 2048, "paired", "paired"),
        (64, 8192, "paired", "paired"),
        (64, 5000, "paired", "paired"),
        # One corner ties, or lost: flatten.
        (8, 2048, "flatten", "tie"),
        (8, 8192, "flatten", "tie"),
        (30, 8192, "flatten", "tie"),
        (512, 2048, "flatten", "flatten"),
        (100, 3000, "flatten", "flatten"),
        (512, 8192, "paired", "paired"),
        # Outside what was measured.
        (7, 2048, "flatten", "unknown"),
        (64, 2047, "flatten", "unknown"),
        (513, 8192, "flatten", "unknown"),
        (64, 32768, "flatten", "unknown"),
        (0, 0, "flatten", "unknown"),
    ],
)
def test_paired_only_where_it_was_measured_to_win(tokens, context, strategy, counter):
    choice = RowChoice(TABLE)
    found = choice.choose(tokens, context)
    assert found.strategy == strategy
    assert {name: count for name, count in choice.counters.items() if count} == {counter: 1}
    assert str(tokens) in found.reason


def test_without_a_table_everything_is_unknown():
    choice = RowChoice()
    assert choice.choose(64, 8192).strategy == "flatten"
    assert choice.counters["unknown"] == 1


def test_a_grid_with_a_hole_is_unknown_beside_the_hole():
    table = RowCostTable(CELLS[:-1], {})
    choice = RowChoice(table)
    assert choice.choose(100, 5000).strategy == "flatten"
    assert choice.counters["unknown"] == 1


@given(
    times=st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=4, max_size=4),
    tokens=st.integers(1, 20),
    context=st.integers(1, 20),
)
@settings(max_examples=60, deadline=None)
def test_it_never_loses_at_a_measured_corner(times, tokens, context):
    """Whatever was measured, paired is chosen only if it is faster at all corners around the shape."""
    corners = [(5, 5), (5, 15), (15, 5), (15, 15)]
    cells = tuple(RowCost(*corner, *time) for corner, time in zip(corners, times, strict=True))
    choice = RowChoice(RowCostTable(cells, {}))
    if choice.choose(tokens, context).strategy == "paired":
        around = choice._table.around(tokens, context)
        assert around and all(cell.paired_us < cell.flatten_us for cell in around)
    assert sum(choice.counters.values()) == 1


def test_a_table_comes_from_the_benchmarks_file(tmp_path):
    path = tmp_path / "logits.json"
    cell = {"tokens": 64, "context": 2048, "flatten_us": 2.0, "paired_us": 1.0, "noise_us": 0.1, "rows": 288}
    path.write_text(json.dumps({"cells": [cell], "fingerprint": {"device": "a", "heads": 64}, "other": 1}))
    table = RowCostTable.load(path, {"device": "a"})
    assert table.cells == (RowCost(64, 2048, 2.0, 1.0, 0.1),)
    with pytest.raises(FingerprintMismatchError) as caught:
        RowCostTable.load(path, {"device": "b", "heads": 64})
    assert caught.value.differences == {"device": ("a", "b")}


def test_a_table_comes_from_the_command_lines_json(tmp_path):
    """``adaverify bench logits --json``: the rows are the cells, the facts the setup."""
    path = tmp_path / "bench.json"
    row = {
        "requests": 64,
        "tokens": 288,
        "context": 8192,
        "flatten_us": 2.0,
        "paired_us": 1.5,
        "noise_us": 0.1,
    }
    logits = {"name": "logits", "rows": [row], "facts": {"device": "a", "heads": 64}}
    plan = {"name": "plan", "rows": [{"requests": 1}], "facts": {}}
    path.write_text(json.dumps({"setup": {}, "benchmarks": [plan, logits]}))
    assert RowCostTable.load(path, {"device": "a"}).cells == (RowCost(288, 8192, 2.0, 1.5, 0.1),)
    path.write_text(json.dumps({"setup": {}, "benchmarks": [plan]}))
    with pytest.raises(CostTableError, match="no row-cost table"):
        RowCostTable.load(path)


def test_the_measured_table_loads_and_decides():
    """The benchmark's own file, as published: wins at long contexts, not at short ones."""
    name = "docs/measurements/data/2026-11-30-h200-logits.json"
    found = [folder / name for folder in Path(__file__).parents if (folder / name).is_file()]
    if not found:
        pytest.skip("outside the repository")
    choice = RowChoice(RowCostTable.load(found[0], {"device": "NVIDIA H200", "head_dim": 128}))
    assert choice.choose(512, 32768).strategy == "paired"
    assert choice.choose(512, 2048).strategy == "flatten"
    assert choice.choose(264, 32768).strategy == "flatten"
    assert choice.counters == {"paired": 1, "flatten": 1, "tie": 1, "unknown": 0}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"cells": 3, "fingerprint": {}}', '{"cells": [{}], "fingerprint": {}}', "no json"],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, text):
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(CostTableError, match="no row-cost table"):
        RowCostTable.load(path)
    with pytest.raises(CostTableError, match="FileNotFoundError"):
        RowCostTable.load(tmp_path / "absent.json")


@pytest.mark.parametrize(
    "values", [(0, 1, 1.0, 1.0), (1, 0, 1.0, 1.0), (1, 1, 0.0, 1.0), (1, 1, 1.0, float("nan"))]
)
def test_a_cell_that_is_no_measurement_is_refused(values):
    with pytest.raises(CostTableError, match="no measurement"):
        RowCost(*values)


def test_a_cell_twice_is_refused():
    with pytest.raises(CostTableError, match="twice"):
        RowCostTable((CELLS[0], CELLS[0]), {})
