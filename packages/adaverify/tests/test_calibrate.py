"""``adaverify calibrate`` on a tiny model: run or trace in, figures of held-out prompts and a file out."""

from __future__ import annotations

import json

import pytest

from adaverify_replay import read_header, read_trace

PROMPTS = [
    f"{word} {word} {word} {tail}" for word in ("abc", "hello there", "1 2 3 4", "xyz") for tail in "pqrst"
]
SMALL = ("--concurrency", 4, "--tokens", 16, "--draft-tokens", 3, "--dtype", "float32")


@pytest.fixture
def calibrate(tiny, invoke, prompts):
    """Return a function that calibrates on a run of twenty prompts."""

    def run(*arguments):
        return invoke("calibrate", "--prompts", prompts(*PROMPTS), *SMALL, *arguments)

    return run


@pytest.fixture
def recorded(calibrate, tmp_path):
    """A trace of a fully verified run, and its report."""
    path = tmp_path / "steps.jsonl"
    result = calibrate("--record", path, "--json")
    assert result.exit_code == 0, result.stderr
    return path, json.loads(result.stdout)


def test_the_report_has_before_and_after_of_every_position(calibrate, tmp_path):
    """Every prompt is judged by a fit that did not see it; file and diagrams are written."""
    scaled = ("--signal", "temperature-scaled")
    result = calibrate("--json", "--plot", "r.png", "--output", "mine.json", *scaled)
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert set(report) == {"setup", "signal", "left_out", "regimes", "calibration", "plot"}
    assert (report["setup"]["target"], report["setup"]["drafter"]) == ("tiny", "n-gram")
    (found,) = report["regimes"].values()
    assert (found["folds"], found["fitted"]["prompts"], found["held_out"]["prompts"]) == (5, 20, 20)
    assert found["fitted"]["rows"] == found["held_out"]["rows"] == found["positions"][0]["after"]["rows"]
    assert [row["position"] for row in found["positions"]] == [1, 2, 3]
    for row in found["positions"]:
        assert row["temperature"] > 0
        assert row["before"]["rows"] == row["after"]["rows"] > 0
        assert 0 <= row["after"]["floor"] <= row["after"]["limit"] < 1
        assert 0 <= row["after"]["ece"] <= 1 and 0 <= row["after"]["brier"] <= 1
    assert (tmp_path / "r.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    state = json.loads((tmp_path / "mine.json").read_text())
    assert state["fingerprint"] == "target tiny, drafter n-gram"
    assert state["learnt"]["greedy"]["temperatures"] == [row["temperature"] for row in found["positions"]]
    assert state["learnt"]["sampled"] is None


def test_the_tables_fit_80_columns(calibrate):
    """Both forms, with what was left out and where the file went."""
    for signal in ("temperature-scaled", "calibrated"):
        result = calibrate("--signal", signal)
        assert result.exit_code == 0, result.stderr
        assert max(map(len, result.stdout.splitlines())) <= 80
        assert "greedy: " in result.stdout and "Calibration: calibration.json" in result.stdout
        assert "ECE after" in result.stdout


def test_a_trace_gives_the_figures_of_its_run(recorded, invoke):
    """Scores and fates are in the trace, so that calibrating again needs no model; the split is the same."""
    path, first = recorded
    assert read_header(path).settings["run"]["drafter"] == "n-gram"
    assert all(record.rows is not None for record in read_trace(path))
    again = json.loads(invoke("calibrate", path, "--json").stdout)
    assert again["regimes"] == first["regimes"]
    assert again["setup"]["traces"] == [str(path)]
    other = json.loads(invoke("calibrate", path, "--json", "--held-out", 0.5, "--seed", 3).stdout)
    halves = other["regimes"]["greedy"]
    assert (halves["folds"], halves["fitted"]["prompts"], halves["held_out"]["prompts"]) == (1, 10, 10)
    pair = json.loads(invoke("calibrate", path, "--json", "--folds", 2).stdout)["regimes"]["greedy"]
    assert (pair["folds"], pair["held_out"]["prompts"]) == (2, 20)
    fitted = [(row["slope"], row["intercept"]) for row in pair["positions"]]
    assert fitted == [(row["slope"], row["intercept"]) for row in first["regimes"]["greedy"]["positions"]]
    assert first["signal"] == "calibrated", "what a run serves with, where nothing is chosen"


def test_regimes_of_two_traces_stay_apart(calibrate, recorded, invoke, tmp_path):
    """Greedy and sampled runs into one file, each with temperatures of its own."""
    path, _ = recorded
    sampled = tmp_path / "sampled.jsonl"
    assert calibrate("--record", sampled, "--temperature", 0.8, "--seed", 1).exit_code == 0
    report = json.loads(invoke("calibrate", path, sampled, "--json").stdout)
    assert set(report["regimes"]) == {"greedy", "sampled"}
    learnt = json.loads((tmp_path / "calibration.json").read_text())["learnt"]
    assert all(learnt[name]["refits"] for name in ("greedy", "sampled"))
    assert learnt["greedy"]["intercepts"] != learnt["sampled"]["intercepts"]


@pytest.mark.parametrize("signal", ["temperature-scaled", "calibrated"])
def test_run_takes_the_file(calibrate, run_tiny, signal, tmp_path, monkeypatch):
    """By option or by setting; the run names signal and file, and tokens stay identical."""
    assert calibrate("--signal", signal).exit_code == 0
    option = ("--calibration", tmp_path / "calibration.json") if signal == "calibrated" else ()
    if not option:
        monkeypatch.setenv("ADAVERIFY_PATHS_CALIBRATION", str(tmp_path / "calibration.json"))
    result = run_tiny(*option, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["setup"]["signal"] == signal
    assert report["setup"]["calibration"] == str(tmp_path / "calibration.json")
    assert report["tokens"]["identical"] is True
    assert any(f"calibration.json, for signal {signal}" in note for note in report["notes"])


def test_run_and_profile_take_another_engines_file(tiny, run_tiny, invoke, tmp_path):
    """Three temperatures for K = 3; profile prices the steps of that signal."""
    (tmp_path / "sglang.json").write_text(json.dumps({"temperatures": [1.5, 1.2, 0.9], "num_samples": 7}))
    shown = run_tiny("--calibration", "sglang.json", "--mode", "fixed").stdout
    assert "Calibration of signal temperature-scaled: sglang.json" in shown
    sizes = ("--concurrency", 2, "--context", 64, "--repeats", 1, "--dtype", "float32")
    assert invoke("profile", *sizes, "--draft-tokens", 3, "--calibration", "sglang.json").exit_code == 0
    refused = invoke("profile", *sizes, "--draft-tokens", 2, "--calibration", "sglang.json")
    assert refused.exit_code == 3
    assert "3 temperatures were given for K = 2" in refused.stderr


def test_a_file_for_another_drafter_or_signal_is_refused(calibrate, run_tiny, tmp_path, monkeypatch):
    """Exit 3, with both names; nothing ran."""
    assert calibrate("--signal", "temperature-scaled").exit_code == 0
    path = tmp_path / "calibration.json"
    path.write_text(path.read_text().replace("drafter n-gram", "drafter other"))
    result = run_tiny("--calibration", path)
    assert result.exit_code == 3
    assert "saved 'target tiny, drafter other', here 'target tiny, drafter n-gram'" in result.stderr
    assert result.stdout == ""
    monkeypatch.setenv("ADAVERIFY_PLANNER_SIGNAL", "calibrated")
    assert "another one was chosen" in run_tiny("--calibration", path).stderr


def test_calibrating_does_not_read_the_file_it_is_about_to_write(calibrate, tmp_path, monkeypatch):
    """The setting names the file for runs; here it is what is made."""
    monkeypatch.setenv("ADAVERIFY_PATHS_CALIBRATION", str(tmp_path / "calibration.json"))
    assert calibrate().exit_code == 0
    assert (tmp_path / "calibration.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--output", "no/folder/c.json"), 3, "--output cannot be written"),
        (("--record", "no/folder/t.jsonl"), 3, "--record cannot be written"),
        (("--plot", "curve.doc"), 3, "suffix names no format"),
        (("--signal", "optimistic"), 2, "nothing to fit"),
        (("--held-out", "1"), 2, "no share"),
        (("--held-out", "nan"), 2, "no share"),
        (("--folds", "1"), 2, "--folds"),
        (("--folds", "2", "--held-out", "0.5"), 2, "--held-out by some"),
        (("--count", 1), 3, "one prompt cannot be split"),
        (("--draft-tokens", 0), 3, "no drafts to calibrate on"),
    ],
)
def test_what_cannot_succeed_is_refused(calibrate, arguments, code, words, tmp_path):
    """Paths before the run; nothing is written after a refusal."""
    result = calibrate(*arguments)
    assert result.exit_code == code
    assert words in " ".join(result.stderr.split())
    assert not (tmp_path / "calibration.json").exists()


def test_a_trimmed_trace_says_what_was_left_out(recorded, invoke):
    """A trace in which no step verified everything has nothing to fit to; the reasons are counted."""
    path, _ = recorded
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[1:]:
        for name in ("admitted", "accepted"):
            line["rows"][name] = [0] * len(line["rows"]["keys"])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = invoke("calibrate", path)
    assert result.exit_code == 3
    assert "no drafts to calibrate on" in result.stderr and "trimmed steps" in result.stderr


def test_a_trace_and_the_options_of_a_run_exclude_each_other(recorded, invoke):
    """An option that would be ignored is an error."""
    path, _ = recorded
    result = invoke("calibrate", path, "--tokens", 3, "--chat")
    assert result.exit_code == 3
    assert "--tokens, --chat" in result.stderr


def test_traces_of_two_setups_are_refused(recorded, invoke, tmp_path):
    """Their scores mean different things."""
    path, _ = recorded
    other = tmp_path / "other.jsonl"
    other.write_text(path.read_text().replace('"model":"tiny"', '"model":"large"', 1))
    result = invoke("calibrate", path, other)
    assert result.exit_code == 3
    assert "target large, drafter n-gram" in " ".join(result.stderr.split())
