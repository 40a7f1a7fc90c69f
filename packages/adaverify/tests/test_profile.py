"""``adaverify profile``: the table is stored, the curve is an image, and bad paths are found first."""

from __future__ import annotations

import json

import pytest

from adaverify_verification import CostTable

SMALL = ("--concurrency", 2, "--context", 64, "--draft-tokens", 2, "--repeats", 1, "--dtype", "float32")


def test_the_curve_is_a_png_and_the_table_is_stored(tiny, invoke, tmp_path):
    """Every measured point is in the JSON, positive, and the stored table says the same."""
    result = invoke("profile", *SMALL, "--json")
    assert result.exit_code == 0, result.stderr
    value = json.loads(result.stdout)
    assert set(value) == {"fingerprint", "points", "draft", "bare", "outliers", "disturbed", "table", "plot"}
    assert (tmp_path / "cost-curve.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert {point["requests"] for point in value["points"]} == {1, 2}
    assert all(point["seconds"] > 0 for point in value["points"])
    assert max(point["tokens"] for point in value["points"]) == 2 * (2 + 1)
    assert value["fingerprint"]["model"] == "tiny"
    table = CostTable.load(value["table"], None)
    assert sum(len(curve.tokens) for curve in table.curves) == len(value["points"])


def test_a_run_of_the_same_sizes_takes_the_table(cold_cache, tiny, invoke, prompts):
    """Sizes are rounded, so that a table serves all runs of like length."""
    assert invoke("profile", *SMALL, "--context", 128).exit_code == 0
    sizes = ("--concurrency", 2, "--tokens", 8, "--draft-tokens", 2, "--dtype", "float32", "--rounds", 1)
    result = invoke("run", "--prompts", prompts(), *sizes)
    assert "measuring" not in result.stderr
    assert "Cost: cost table " in result.stdout


def test_the_tables_fit_80_columns(tiny, invoke):
    """Shapes, times and where everything went."""
    result = invoke("profile", *SMALL, "--plot", "curve.svg")
    assert result.exit_code == 0
    tables = [line for line in result.stdout.splitlines() if not line.startswith(("Table:", "Curve:"))]
    assert max(map(len, tables)) <= 80
    assert "Curve: curve.svg" in result.stdout


def test_a_named_file_is_written_and_the_settings_file_is_not(tiny, invoke, tmp_path, monkeypatch):
    """ADAVERIFY_PATHS_COST_TABLE is read; only --table writes."""
    named = tmp_path / "mine.json"
    monkeypatch.setenv("ADAVERIFY_PATHS_COST_TABLE", str(named))
    result = invoke("profile", *SMALL, "--json")
    assert json.loads(result.stdout)["table"] is None
    assert "pass --table to write it" in result.stderr
    assert not named.exists()
    assert json.loads(invoke("profile", *SMALL, "--json", "--table", named).stdout)["table"] == str(named)
    assert named.exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--plot", "curve"), "the suffix names no format"),
        (("--plot", "curve.doc"), "the suffix names no format"),
        (("--plot", "no/folder/curve.png"), "--plot cannot be written"),
        (("--table", "no/folder/table.json"), "--table cannot be written"),
        (("--device", "abacus"), "there is no device 'abacus' here"),
        (("--concurrency", 10**8), "do not fit the memory"),
        (("--concurrency", 10**9), "does not fit int32 boundaries"),
    ],
)
def test_what_cannot_succeed_is_refused_before_measuring(tiny, invoke, arguments, word, tmp_path):
    """No minute of measuring ends in a wrong path; no file is left behind."""
    result = invoke("profile", *SMALL, *arguments)
    assert result.exit_code == 3
    assert result.stdout == ""
    assert word in " ".join(result.stderr.split())
    assert not list(tmp_path.glob("curve*"))


def test_a_busy_machine_stores_nothing_and_says_what_to_run(cold_cache, tiny, invoke, machine, tmp_path):
    """Code 1, no table in the cache, the curve drawn all the same, and the command with this run's sizes."""
    machine.slow = lambda tokens, number: 1.0 + 0.4 * number if tokens == 2 else 1.0
    result = invoke("profile", *SMALL, "--repeats", 3, "--json")
    assert result.exit_code == 1
    value = json.loads(result.stdout)
    assert value["disturbed"]
    assert value["table"] is None
    assert not (cold_cache / "cost-tables").exists()
    assert "points never came to rest. The table is not stored" in result.stderr
    command = "`adaverify profile --concurrency 2 --context 128 --draft-tokens 2 --model smollm2-135m"
    assert command in result.stderr
    machine.runs.clear()
    again = invoke("profile", *SMALL, "--repeats", 3, "--table", "mine.json")
    assert again.exit_code == 1
    assert "disturbed: 2 tokens" in again.stdout
    assert CostTable.load(tmp_path / "mine.json", None).disturbed
