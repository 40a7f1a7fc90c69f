"""``adaverify simulate``: tables and JSON of a simulation, and what it refuses."""

from __future__ import annotations

import json

import pytest

from adaverify_replay import AcceptanceRecords
from adaverify_verification import CostTable, Fingerprint


@pytest.fixture
def simulate(invoke, install, priced_file):
    install()

    def run(*arguments):
        return invoke("simulate", "--table", priced_file, *arguments)

    return run


QUICK = ("--concurrency", 2, "--tokens", 300, "--warmup", 32, "--arm", "adaptive", "--arm", "oracle")
# For what does not depend on the arms.
CHEAPEST = ("--concurrency", 1, "--tokens", 300, "--warmup", 32, "--arm", "none")


def test_the_shipped_records_are_simulated_by_default(simulate):
    result = simulate(*QUICK, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    shipped = AcceptanceRecords.load()
    assert report["records"]["digest"] == shipped.digest
    assert report["records"]["positions"] == shipped.positions
    (found,) = report["results"]
    assert found["concurrency"] == 2
    adaptive, oracle = found["arms"]["adaptive"], found["arms"]["oracle"]
    assert oracle["wasted"] == 0 and adaptive["wasted"] > 0
    assert adaptive["steps"] >= 256 and adaptive["tokens"] >= 300
    assert report["planner"] == {"signal": "calibrated", "policy": "ratio", "lag": 2, "calibration": None}


def test_the_table_fits_80_columns(simulate):
    result = simulate(*QUICK, "--concurrency", 4, "--arm", "fixed-7")
    assert result.exit_code == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if "/" not in line or "token" in line]
    assert max(map(len, lines)) <= 80
    assert "2 requests" in result.stdout and "4 requests" in result.stdout


def test_sources_and_regimes_are_chosen(simulate):
    report = json.loads(simulate(*CHEAPEST, "--source", "prose", "--regime", "sampled", "--json").stdout)
    shipped = AcceptanceRecords.load()
    assert report["records"]["sequences"] == len(shipped.of("prose", "sampled"))
    assert (report["records"]["source"], report["records"]["regime"]) == ("prose", "sampled")


def test_the_ladder_is_the_tables_unless_said_otherwise(simulate):
    for more, tiers in (((), [8, 16, 32, 64]), (("--tiers", "8,24"), [8, 24]), (("--tiers", ""), [])):
        report = json.loads(simulate(*CHEAPEST, *more, "--json").stdout)
        assert report["table"]["tiers"] == tiers


def test_the_signal_of_the_settings_plans(simulate, monkeypatch):
    monkeypatch.setenv("ADAVERIFY_PLANNER_SIGNAL", "optimistic")
    report = json.loads(simulate(*CHEAPEST, "--json").stdout)
    assert report["planner"]["signal"] == "optimistic"


def test_prices_beyond_the_table_are_said(simulate):
    result = simulate(*CHEAPEST, "--concurrency", 32)
    assert "16 requests at most" in result.stderr
    assert "128 query tokens" in result.stderr
    result = simulate(*QUICK, "--context", 1 << 20)
    assert "KV lengths 16 to 256: 10486" in " ".join(result.stderr.split())
    assert "on average is priced as 256 is" in " ".join(result.stderr.split())
    assert "KV lengths" not in simulate(*QUICK, "--context", 100).stderr


@pytest.mark.parametrize("source", ["option", "setting"])
def test_a_calibration_of_something_else_is_named_with_its_source(simulate, monkeypatch, tmp_path, source):
    """Its error named neither the file nor who named that."""
    path = tmp_path / "calibration.json"
    state = {"format": 1, "signal": "calibrated", "fingerprint": "x", "draft_tokens": 3, "learnt": {}}
    path.write_text(json.dumps(state))
    if source == "setting":
        monkeypatch.setenv("ADAVERIFY_PATHS_CALIBRATION", str(path))
    result = simulate(*QUICK, *(("--calibration", path) if source == "option" else ()))
    said = " ".join(result.stderr.split())
    assert (result.exit_code, result.stdout) == (3, "")
    assert f"calibration file {path}: saved calibration belongs to another setup" in said
    assert ("ADAVERIFY_PATHS_CALIBRATION" in said) == (source == "setting")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--arm", "fixed-8"), 3, "fixed-8"),
        (("--source", "poetry"), 3, "poetry"),
        (("--records", "missing.npz"), 3, "missing.npz"),
        (("--tiers", "16,8"), 2, "ladder"),
        (("--tiers", "a"), 2, "ladder"),
        (("--lag", -1), 2, "lag"),
        (("--concurrency", 0), 2, "concurrency"),
    ],
)
def test_what_cannot_be_simulated_is_refused(simulate, arguments, code, words):
    result = simulate(*arguments)
    assert result.exit_code == code
    assert words in result.stderr


def test_without_step_times_nothing_is_simulated(invoke, install):
    install()
    result = invoke("simulate")
    assert result.exit_code == 3
    assert "adaverify profile --table" in result.stderr


def test_a_calibration_that_holds_null_is_refused(simulate, tmp_path):
    (tmp_path / "null.json").write_text("null")
    result = simulate(*QUICK, "--calibration", "null.json")
    assert result.exit_code == 3
    assert "CalibrationError" in result.stderr and "arrived: null" in result.stderr


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--tiers", 10**30 - 1),
        ("--concurrency", 100_000),
        ("--tokens", 100_000_000),
        ("--warmup", 100_000_000),
        ("--context", 2_000_000),
        ("--context", 100_000_000_000),
        ("--seed", 10**40),
    ],
)
def test_sizes_that_nobody_can_wait_for_are_refused_at_once(simulate, option, value):
    result = simulate(option, value)
    assert result.exit_code == 2
    assert option.strip("-") in result.stderr or "ladder" in result.stderr


@pytest.mark.parametrize("option", ["--source", "--regime"])
def test_another_word_is_the_remedy_for_an_unknown_one(simulate, option):
    result = simulate(option, "both")
    assert result.exit_code == 3
    assert "choose one of the allowed words" in result.stderr
    assert "record them again" not in result.stderr


def table_of(path, **facts):
    """Save prices of a line over the tokens, measured on what ``facts`` say."""
    points = [(tokens, 1, 16, 1e-3 + 1e-4 * tokens) for tokens in (1, 8, 64)]
    CostTable.from_points(Fingerprint.from_mapping(facts), points).save(path)
    return path


def test_a_table_of_another_setup_is_said_in_one_note(invoke, install, tmp_path):
    install()
    table = table_of(tmp_path / "other.json", device="abacus", model="big", draft_tokens=7)
    result = invoke("simulate", "--table", table, *QUICK)
    assert result.exit_code == 0
    said = " ".join(result.stderr.split())
    assert said.count("another setup") == 1
    assert "model big (records: smollm2-135m)" in said and "recorded drafts" not in said
    assert "abacus" not in said, "the shipped records do not name their processor"


def test_the_k_of_the_table_is_simulated_and_said(invoke, install, tmp_path):
    """Drafting times are of that K; the first columns are what such a drafter would have said."""
    install()
    table = table_of(tmp_path / "three.json", draft_tokens=3)
    result = invoke("simulate", "--table", table, "--concurrency", 2, "--tokens", 300, "--json")
    assert result.exit_code == 0, result.stderr
    assert f"K = 3 (step times {table}): the first 3 of 7 recorded drafts" in " ".join(result.stderr.split())
    report = json.loads(result.stdout)
    assert report["draft_tokens"] == {"simulated": 3, "recorded": 7, "from": f"step times {table}"}
    arms = report["results"][0]["arms"]
    assert list(arms) == ["none", "fixed-1", "fixed-2", "fixed-3", "adaptive", "oracle"]
    assert 1.0 < arms["fixed-3"]["accepted_length"] <= 4.0
    shown = invoke("simulate", "--table", table, *QUICK).stdout
    assert "K = 3 of 7 recorded" in " ".join(shown.split())


def test_the_option_then_the_settings_decide_k(invoke, install, tmp_path, monkeypatch):
    """Whoever asks is named, and drafting priced for another K is said."""
    install()
    table = table_of(tmp_path / "three.json", draft_tokens=3)
    monkeypatch.setenv("ADAVERIFY_ENGINE_DRAFT_TOKENS", "2")
    found = invoke("simulate", "--table", table, *QUICK, "--json")
    assert json.loads(found.stdout)["draft_tokens"]["from"] == "ADAVERIFY_ENGINE_DRAFT_TOKENS"
    assert "drafting 2 is priced as the table has it, where K is 3" in " ".join(found.stderr.split())
    found = invoke("simulate", "--table", table, *QUICK, "--draft-tokens", 3, "--json")
    assert json.loads(found.stdout)["draft_tokens"] == {
        "simulated": 3,
        "recorded": 7,
        "from": "--draft-tokens",
    }
    assert "priced as the table has it" not in found.stderr


@pytest.mark.parametrize("measured", [0, 9])
def test_more_drafts_than_were_recorded_are_refused_with_both_numbers(invoke, install, tmp_path, measured):
    """Nobody knows what would have become of them; the remedy names the way out."""
    install()
    table = table_of(tmp_path / "other.json", draft_tokens=measured)
    result = invoke("simulate", "--table", table, *QUICK)
    assert (result.exit_code, result.stdout) == (3, "")
    said = " ".join(result.stderr.split())
    assert f"the records have 7 drafts a position, and {measured} were asked for" in said
    assert "allowed: 1 .. 7" in said and "--draft-tokens 7" in said
    assert "other.json" in said
    result = invoke("simulate", "--table", table, *QUICK, "--draft-tokens", 8)
    assert result.exit_code == 3 and "--draft-tokens: the records have 7" in " ".join(result.stderr.split())


def test_the_summary_says_which_step_times_were_used_and_from_where(simulate, priced_file):
    """1 ms and 0.2 ms a token of made-up prices, padded to the table's ladder; beyond it as it says."""
    sizes = ("--concurrency", 1, "--concurrency", 32, "--context", 100)
    result = simulate(*QUICK[2:], *sizes)
    text = " ".join(result.stdout.split())
    assert f"Step times: {priced_file}" in text
    assert "Measured on a setup that the table does not name: 1 to 16 requests, 1 to 128 tokens" in text
    assert "KV lengths 16 to 256; steps padded to 8, 16, 32, 64 tokens" in text
    report = json.loads(simulate(*QUICK[2:], *sizes, "--json").stdout)
    one, many = report["table"]["times"]
    assert (one["requests"], one["ground"]) == (1, "measured")
    assert one["plain"] == pytest.approx(1e-3 + 2e-4 * 8), "one token executes as the first tier"
    assert one["full"] == pytest.approx(1e-3 + 2e-4 * 8)
    assert many["ground"] == "beyond 16 requests, 128 tokens"
    assert many["full"] == pytest.approx(1e-3 + 2e-4 * 256)
    oracle = report["results"][0]["arms"]["oracle"]
    assert oracle["step_seconds"] == pytest.approx(one["full"])


def test_a_cpus_table_is_simulated_over_its_whole_rows(invoke, install, tmp_path):
    """Rows that are padded by another rule than here are refused, since nobody knows what was computed."""
    install()
    path = tmp_path / "table.json"
    table_of(path, device="a CPU", rows=(8, 16), draft_tokens=7)
    quick = (*CHEAPEST[2:], "--concurrency", 3, "--json")
    result = invoke("simulate", "--table", path, *quick)
    assert json.loads(result.stdout)["table"]["tiers"] == [1, 2, 4, 8, 16, 24]
    table_of(path, device="a CPU", rows=(4, 32), draft_tokens=7)
    refused = invoke("simulate", "--table", path, *quick)
    assert refused.exit_code == 3
    assert "4,32" in refused.stderr and "8,16" in refused.stderr
    assert invoke("simulate", "--table", path, *quick, "--tiers", "8,16").exit_code == 0
