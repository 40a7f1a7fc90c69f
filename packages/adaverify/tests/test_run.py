"""``adaverify run`` on a tiny model: the table, the JSON, the trace and the exit code."""

from __future__ import annotations

import json

import pytest

from adaverify_contracts import LoadedModel, StepRecord, hookimpl
from adaverify_replay import read_header, read_trace
from adaverify_testing import TinyModel, TinyTokenizer

MODES = ["none", "fixed", "adaptive"]


class ShapeDependent(TinyModel):
    """A model whose logits depend on how many rows are computed at once: what a broken kernel looks like."""

    def logits(self, hidden):
        logits = super().logits(hidden)
        return logits.roll(1, dims=1) if len(hidden) > 2 else logits


def texts_of(report, mode="none"):
    """Return one mode's completions of a report, in prompt order."""
    return [one["modes"][mode]["text"] for one in report["completions"]]


def shape_dependent(options):
    return LoadedModel(ShapeDependent(options=options), TinyTokenizer())


def test_the_table_fits_80_columns_and_says_everything(cold_cache, tiny, run_tiny):
    """One line a mode, no word broken, then identity, strategies, origin of the prices and overhead."""
    result = run_tiny()
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    heads = [line.split() for line in lines if line.startswith("mode ")]
    assert heads == [
        ["mode", "tokens/s", "min-max", "steps", "length", "verified", "wasted", "budget", "ratio"],
        ["mode", "draft", "plan", "forward", "accept", "observe", "not", "the", "model"],
    ]
    rows = [line.split() for line in lines if line.split()[:1] and line.split()[0] in MODES]
    assert [row[0] for row in rows] == MODES * 2
    assert all(len(row) == 9 for row in rows[:3])
    assert "Tokens: identical in all modes, 4 prompts compared" in result.stdout
    assert "Strategies: reference, uniform. Cost: cost table measured now." in result.stdout
    assert "measuring step times" in result.stderr


def test_json_is_one_value_with_every_figure(run_once):
    """Standard output is the value and nothing else; progress and notes go to standard error."""
    result = run_once("--json")
    report = json.loads(result.stdout)
    assert list(report) == [
        "setup",
        "cost_table",
        "modes",
        "rivals",
        "tokens",
        "completions",
        "notes",
        "warnings",
        "disabled_observers",
    ]
    assert set(report["setup"]) == {
        "model",
        "dtype",
        "device",
        "drafter",
        "drafter_fallback",
        "draft_tokens",
        "strategies",
        "prompts",
        "concurrency",
        "tokens",
        "rounds",
        "temperature",
        "trim_invariant",
        "seed",
        "cost",
        "signal",
        "calibration",
    }
    assert list(report["modes"]) == MODES
    for name, mode in report["modes"].items():
        stats = mode["stats"]
        assert stats["emitted"] == 4 * 12
        assert stats["wasted"] == stats["verified"] - stats["accepted"]
        assert sum(mode["time_shares"].values()) == pytest.approx(1.0)
        best = max(one["tokens_per_second"] for key, one in report["modes"].items() if key != name)
        assert mode["ratio_to_best_other"] == pytest.approx(mode["tokens_per_second"] / best)
    assert report["modes"]["none"]["stats"]["verified"] == 0
    assert report["modes"]["fixed"]["stats"]["verified"] == report["modes"]["fixed"]["stats"]["drafted"] > 0
    assert report["tokens"]["compared"] == 4
    for one in report["completions"]:
        assert one["identical"] is True
        assert list(one["modes"]) == MODES
        assert [len(found["tokens"]) for found in one["modes"].values()] == [12] * 3
        assert len({found["text"] for found in one["modes"].values()}) == 1


def test_the_trace_holds_every_adaptive_step_and_report_reads_it(tiny, run_tiny, invoke, tmp_path):
    """Reason, digest, predicted and realised time and tokens, for the warm-up and the recorded round."""
    path = tmp_path / "steps.jsonl"
    result = run_tiny("--trace", path, "--json")
    assert result.exit_code == 0, result.stderr
    records = read_trace(path)
    report = json.loads(result.stdout)
    assert len(records) >= report["modes"]["adaptive"]["stats"]["steps"] * 2 - 1
    assert [record.step for record in records] == list(range(len(records)))
    assert sum(record.emitted for record in records) == 2 * 4 * 12
    for record in records:
        assert isinstance(record, StepRecord)
        assert record.reason
        assert record.digest
        assert record.realised_seconds > 0
        assert record.predicted_seconds is None or record.predicted_seconds > 0
        assert record.verified <= record.scheduled
    assert read_header(path).settings["run"]["concurrency"] == 2

    summary = invoke("report", path, "--json")
    assert json.loads(summary.stdout)["steps"] == len(records)
    assert "states" in invoke("report", path).stdout


def test_a_second_run_appends_and_says_so_and_other_sizes_are_refused(tiny, run_tiny, tmp_path):
    """Records of two setups are never mixed in one file; the difference is named in a line."""
    path = tmp_path / "steps.jsonl"
    alone = ("--mode", "adaptive", "--trace", path)
    assert run_tiny(*alone).exit_code == 0
    first = len(read_trace(path))
    again = run_tiny(*alone)
    assert again.exit_code == 0
    assert f"appending to its {first} records" in again.stderr
    assert len(read_trace(path)) > first
    other = run_tiny(*alone, "--rounds", 2)
    assert other.exit_code == 3
    assert other.stdout == ""
    assert "another setup" in other.stderr
    assert "settings.run.rounds = 1 in the file, 2 here" in other.stderr


def test_wrong_tokens_in_float32_are_a_failed_check(tiny, run_tiny):
    """A model whose numbers depend on the batch's shape gives other tokens with drafts: exit code 1."""
    tiny(load=shape_dependent)
    result = run_tiny("--mode", "none", "--mode", "fixed", "--concurrency", 1)
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert "for another reason than a near-tie: prompt 1 leaves the text" in text
    assert "This is a fault." in text
    report = json.loads(run_tiny("--mode", "none", "--mode", "fixed", "--concurrency", 1, "--json").stdout)
    assert report["tokens"]["identical"] is False
    differing = {one["prompt"] for one in report["tokens"]["divergences"]}
    assert {i for i, one in enumerate(report["completions"]) if not one["identical"]} == differing
    wrong = report["completions"][min(differing)]["modes"]
    assert wrong["none"]["tokens"] != wrong["fixed"]["tokens"]
    assert any(not one["near_tie"] for one in report["tokens"]["divergences"])


def test_the_same_difference_in_bfloat16_is_said_and_no_failure(tiny, run_tiny):
    """In bfloat16 a batch's shape moves logits by itself, so tokens prove nothing."""
    tiny(load=shape_dependent)
    result = run_tiny("--mode", "none", "--mode", "fixed", "--concurrency", 1, "--dtype", "bfloat16")
    assert result.exit_code == 0
    assert "between modes. In bfloat16" in " ".join(result.stdout.split())


def test_one_mode_alone_has_nothing_to_compare(tiny, run_tiny):
    """No ratio, no claim of identity, and no cost table where nothing is planned; a repeated mode is one."""
    alone = json.loads(run_tiny("--mode", "fixed", "--json").stdout)
    assert (alone["tokens"]["compared"], alone["tokens"]["identical"]) == (0, None)
    assert [list(one["modes"]) for one in alone["completions"]] == [["fixed"]] * 4
    result = run_tiny("--mode", "fixed", "--mode", "fixed")
    assert result.exit_code == 0
    assert "one mode ran, so there is nothing to compare" in result.stdout
    assert "Cost: no cost table: nothing to plan." in result.stdout
    (row,) = [line.split() for line in result.stdout.splitlines() if line.startswith("fixed")][:1]
    assert row[-1] == "-"


@pytest.mark.parametrize("drafts", [0, 1, 40])
def test_no_drafts_and_more_drafts_than_output_are_ordinary(tiny, run_tiny, drafts):
    """K = 0 turns speculation off; a K beyond the output is cut to the room of each request."""
    report = json.loads(run_tiny("--draft-tokens", drafts, "--json").stdout)
    assert report["setup"]["draft_tokens"] == drafts
    assert report["tokens"]["identical"] is True
    assert (report["modes"]["fixed"]["stats"]["verified"] > 0) == (drafts > 0)


def test_one_token_a_prompt_and_one_prompt_are_ordinary(tiny, run_tiny):
    """A request that ends with its prefill has no decode step at all."""
    result = run_tiny("--tokens", 1, texts=["abc"])
    assert result.exit_code == 0, result.stderr
    assert "1 prompt, 1 at once" in result.stdout


def test_sampled_tokens_follow_the_seed(tiny, run_tiny):
    """The same seed gives the same text in every run, another seed another, and neither is compared."""

    def texts(seed, *modes):
        result = run_tiny("--temperature", 1.0, "--seed", seed, "--json", *modes)
        report = json.loads(result.stdout)
        assert (report["tokens"]["compared"], report["tokens"]["identical"]) == (0, None)
        assert {one["identical"] for one in report["completions"]} == {None}
        return texts_of(report)

    first = texts(3)
    assert first == texts(3, "--mode", "none")
    assert first != texts(4, "--mode", "none")
    assert len(set(first)) == 4


def test_trim_invariant_tokens_are_compared(tiny, run_tiny):
    """Sampled, and token for token the same in every mode; the modes of the seed's text agree."""
    result = run_tiny("--temperature", 1.0, "--seed", 3, "--trim-invariant", "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert (report["tokens"]["compared"], report["tokens"]["identical"]) == (4, True)
    assert report["setup"]["trim_invariant"] is True
    assert texts_of(report) == texts_of(report, "adaptive")


def test_prompts_of_one_text_have_noise_of_their_own(tiny, run_tiny):
    """One seed for the run is not one noise for all prompts."""
    alone = ("--mode", "none", "--temperature", 1.0, "--seed", 3, "--json")
    result = run_tiny(*alone, texts=["same", "same", "same"])
    assert len(set(texts_of(json.loads(result.stdout)))) == 3


def test_chat_wraps_the_prompt(run_once):
    """The template's tokens change the completion; the prompt is shown as it was written."""
    plain = json.loads(run_once("--json").stdout)["completions"]
    chat = json.loads(run_once("--json", "--chat", "--mode", "none").stdout)["completions"]
    assert [one["prompt"] for one in plain] == [one["prompt"] for one in chat]
    assert texts_of({"completions": plain}) != texts_of({"completions": chat})


def test_show_prints_as_many_completions_as_asked(tiny, run_tiny):
    """Zero prints none, more than there are prints all; brackets in a prompt are no markup."""
    texts = ["a[bold]b[/bold]", "[red]x"]
    assert "prompt \u2500" not in run_tiny("--mode", "none", "--show", 0, texts=texts).stdout
    shown = run_tiny("--mode", "none", "--show", 9, texts=texts).stdout
    assert shown.count("prompt \u2500") == 2
    assert "a[bold]b[/bold]\n" in shown
    assert "[red]x\n" in shown


def test_human_eval_is_the_default(tiny, invoke):
    """No arguments about prompts: the first of HumanEval, as many as --count says."""
    small = ("--tokens", 2, "--rounds", 1, "--mode", "none", "--concurrency", 2)
    tiny_long = invoke("run", *small, "--count", 2, "--json")
    completions = json.loads(tiny_long.stdout)["completions"]
    assert ["has_close_elements" in completions[0]["prompt"], len(completions)] == [True, 2]


def test_more_prompts_and_requests_than_there_are_is_said(tiny, run_tiny):
    """All prompts run, and the user learns that there were fewer."""
    result = run_tiny("--mode", "none", "--count", 9, "--concurrency", 7, "--json")
    assert result.exit_code == 0
    assert "holds 4 prompts; --count asked for 9" in result.stderr
    assert "--concurrency 7 and 4 prompts: no more than 4 run at once" in result.stderr
    setup = json.loads(result.stdout)["setup"]
    assert (setup["prompts"], setup["concurrency"]) == (4, 4)


def test_settings_are_the_defaults_of_the_options(tiny, invoke, prompts, monkeypatch, tmp_path):
    """Concurrency, K, dtype and trace come from the environment where no option names them."""
    monkeypatch.setenv("ADAVERIFY_ENGINE_MAX_REQUESTS", "3")
    monkeypatch.setenv("ADAVERIFY_ENGINE_DRAFT_TOKENS", "2")
    monkeypatch.setenv("ADAVERIFY_ENGINE_DTYPE", "float32")
    monkeypatch.setenv("ADAVERIFY_PATHS_TRACE", str(tmp_path / "preset.jsonl"))
    result = invoke(
        "run", "--mode", "adaptive", "--prompts", prompts(), "--tokens", 4, "--rounds", 1, "--json"
    )
    setup = json.loads(result.stdout)["setup"]
    assert (setup["concurrency"], setup["draft_tokens"], setup["dtype"]) == (3, 2, "float32")
    assert read_trace(tmp_path / "preset.jsonl")


def test_an_observer_that_raises_is_disabled_and_reported(tiny, run_tiny):
    """A stranger's observer never reaches the engine; the run ends well and says what happened."""

    class Broken:
        @hookimpl
        def adaverify_step_recorded(self, record):
            raise OSError("no room left")

    tiny(Broken())
    result = run_tiny("--mode", "none")
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    assert "Observer extra-1 raised in none at step 0 and is disabled: OSError: no room left." in text


def test_a_plugin_that_failed_to_load_is_said_and_the_run_goes_on(tiny, run_tiny):
    """Nothing falls away in silence."""
    tiny(ImportError("no libcuda"))
    result = run_tiny("--mode", "none", "--json")
    assert result.exit_code == 0
    assert "plugin extra-1 of extra-1 was not loaded (import failed)" in result.stderr
    assert "no libcuda" in json.loads(result.stdout)["warnings"][0]


def test_reliability_is_in_the_json_always_and_printed_when_asked(run_once):
    """Predicted and observed acceptance by position, with the number of labels; none without drafts."""
    report = json.loads(run_once("--json").stdout)
    assert report["modes"]["none"]["reliability"] == {}
    rows = report["modes"]["fixed"]["reliability"]["greedy"]
    assert [row["position"] for row in rows] == [1, 2, 3]
    assert rows[0]["labels"] > 0
    for row in rows:
        assert set(row) == {"position", "labels", "predicted", "observed"}
        assert row["labels"] == 0 or (0 < row["predicted"] < 1 and 0 <= row["observed"] <= 1)
    shown = run_once("--reliability").stdout
    assert "Reliability of confidences" in shown
    heads = [line.split() for line in shown.splitlines() if "predicted" in line and "labels" in line]
    assert heads[0] == ["mode", "regime", "position", "labels", "predicted", "observed", "difference"]
    assert max(len(line) for line in shown.splitlines() if "/" not in line) <= 80
    assert "Reliability" not in run_once().stdout


def test_completions_that_differ_are_shown_once_a_text(tiny, run_tiny, run_once):
    """Each text carries the names of the modes that wrote it."""
    assert "completion, none, fixed, adaptive \u2500" in run_once().stdout
    tiny(load=shape_dependent)
    shown = run_tiny("--mode", "none", "--mode", "fixed", "--concurrency", 1).stdout
    assert "completion, none \u2500" in shown
    assert "completion, fixed \u2500" in shown


def test_other_numbers_of_drafts_run_beside_the_modes(tiny, run_tiny):
    """``--fixed`` adds arms that draft less; adaptive is held against the best of all of them."""
    result = run_tiny("--json", "--fixed", "2", "--fixed", "1", "--fixed", "2", "--drafter", "n-gram")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert list(report["modes"]) == [*MODES, "fixed-1", "fixed-2"]
    assert report["tokens"]["identical"] is True
    speeds = {mode: one["tokens_per_second"] for mode, one in report["modes"].items()}
    best = max(speed for mode, speed in speeds.items() if mode != "adaptive")
    assert report["modes"]["adaptive"]["ratio_to_best_other"] == pytest.approx(speeds["adaptive"] / best)
    few, many = report["modes"]["fixed-1"]["stats"], report["modes"]["fixed"]["stats"]
    assert 0 < few["drafted"] < many["drafted"]
    assert few["verified"] == few["drafted"]


@pytest.mark.parametrize("count", ["0", "3", "99"])
def test_numbers_of_drafts_that_are_not_below_k_are_refused(tiny, run_tiny, count):
    """K itself is what the mode fixed runs; nothing is measured before the refusal."""
    result = run_tiny("--fixed", count)
    assert result.exit_code == 2
    assert "allowed: 1 .. 2" in result.stderr
    assert "measuring" not in result.stderr
