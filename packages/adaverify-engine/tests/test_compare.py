"""The comparison: same prompts, same tokens, and a wrong token is found."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from adaverify_contracts import EngineError
from adaverify_engine import Completion, FinishReason, Sampling, compare
from adaverify_engine.compare import NEAR_TIE, _differences, first_difference

# The package's name ``compare`` is the function.
compare_module = sys.modules[compare.__module__]


def completion(tokens, gaps=None):
    gaps = [1.0] * len(tokens) if gaps is None else gaps
    return Completion(0, 3, tuple(tokens), "", FinishReason.LENGTH, tuple(gaps), (), 1)


def test_modes_compared_on_the_same_prompts(make_engine, tiny, monkeypatch):
    """Three modes, warm-up apart, spread and counters per mode, identical tokens."""
    # A slow machine would need several turns, and then the order in which modes end is their speeds'.
    monkeypatch.setattr(compare_module, "TURN", float("inf"))
    model = tiny.Decoder()
    engines = {mode: make_engine(mode, model=model) for mode in ("none", "fixed", "adaptive")}
    prompts = tiny.prompts(6)
    calls = []
    report = compare(
        engines,
        prompts,
        Sampling(max_tokens=20),
        rounds=2,
        warmup=1,
        progress=lambda *call: calls.append(call),
    )
    assert report.identical
    assert report.compared == 6
    assert [call[:2] for call in calls] == [(done, 9) for done in range(1, 10)]
    assert [call[2] for call in calls][:6] == ["none", "fixed", "adaptive", "fixed", "adaptive", "none"]
    for result in report.results.values():
        assert len(result.rounds) == 2
        assert result.lowest <= result.tokens_per_second <= result.highest
        assert result.stats["emitted"] == 2 * 6 * 20
    assert report.results["none"].stats["verified"] == 0
    assert report.results["adaptive"].stats["verified"] < report.results["fixed"].stats["verified"]
    assert report.speedup("fixed", over="fixed") == 1.0
    for prompt, done in zip(prompts, report.completions, strict=True):
        assert list(done.tokens) == tiny.greedy(model, prompt, 20)
    assert json.loads(json.dumps(report.as_dict()))["identical"] is True
    assert list(report.by_mode) == ["none", "fixed", "adaptive"]
    assert len({tuple(one.tokens for one in found) for found in report.by_mode.values()}) == 1


def test_eager_engines_take_turns_and_nobody_pays_for_another(make_engine, tiny, monkeypatch):
    """A shared machine moves by a third within seconds: modes a minute apart met different machines."""
    clock, taken = [0.0], []
    monkeypatch.setattr(compare_module, "TURN", 3.0)
    monkeypatch.setattr(compare_module, "perf_counter", lambda: clock[0])
    engines = {mode: make_engine(mode) for mode in ("none", "fixed")}
    for (mode, engine), seconds in zip(engines.items(), (1.0, 2.0), strict=True):

        def step(mode=mode, seconds=seconds, step=engine.step):
            taken.append(mode)
            clock[0] += seconds
            return step()

        monkeypatch.setattr(engine, "step", step)
    report = compare(engines, tiny.prompts(3), Sampling(max_tokens=12), rounds=1, warmup=0)
    assert taken[:10] == ["none"] * 3 + ["fixed"] * 2 + ["none"] * 3 + ["fixed"] * 2
    for mode, seconds in (("none", 1.0), ("fixed", 2.0)):
        assert report.results[mode].rounds == pytest.approx((36 / (seconds * taken.count(mode)),))


def test_engines_with_captured_steps_run_one_after_the_other(make_engine, tiny, monkeypatch):
    """A step that was launched ahead would run on in another's turn."""
    taken = []
    monkeypatch.setattr(compare_module, "TURN", 0.0)
    engines = {mode: make_engine(mode) for mode in ("none", "fixed")}
    monkeypatch.setattr(type(engines["none"]), "pipeline", property(lambda engine: object()))
    for mode, engine in engines.items():
        monkeypatch.setattr(
            engine, "step", lambda mode=mode, step=engine.step: (taken.append(mode), step())[1]
        )
    compare(engines, tiny.prompts(3), Sampling(max_tokens=12), rounds=1, warmup=0)
    assert taken == sorted(taken, key=["none", "fixed"].index) and len(set(taken)) == 2


@pytest.mark.parametrize(("modes", "temperature"), [(["none", "fixed"], 1.0), (["fixed"], 0.0)])
def test_what_was_not_compared_is_not_called_identical(make_engine, tiny, modes, temperature):
    """Sampled prompts, or one mode alone: nothing was compared, so the answer is none at all."""
    engines = {mode: make_engine(mode) for mode in modes}
    asked = Sampling(max_tokens=6, temperature=temperature)
    report = compare(engines, tiny.prompts(2), asked, rounds=1, warmup=0)
    assert (report.compared, report.identical) == (0, None)


def test_a_prompt_that_failed_in_any_mode_and_round_is_compared_in_none(make_engine, tiny):
    """Failed completions may be equal, and one is shorter than a whole one: neither says much."""

    class Once(tiny.Tokenizer):
        answers = 0

        def decode(self, tokens):
            self.answers += 1
            return super().decode(tokens) if self.answers > 2 else None

    engines = {"none": make_engine("none"), "fixed": make_engine("fixed", tokenizer=Once())}
    report = compare(engines, tiny.prompts(3), Sampling(max_tokens=10), rounds=1, warmup=1)
    assert [(one.mode, "decode returned NoneType" in one.error) for one in report.failed] == [("fixed", True)]
    assert (report.compared, report.identical, report.divergences) == (2, True, ())
    assert json.loads(json.dumps(report.as_dict()))["failed"][0]["prompt"] == report.failed[0].prompt


def test_another_model_is_a_failure_not_a_near_tie(make_engine, tiny):
    """A mode that emits wrong tokens is caught with prompt, position and gap."""
    engines = {"none": make_engine("none"), "fixed": make_engine("fixed", model=tiny.Decoder(seed=5))}
    report = compare(engines, tiny.prompts(3), Sampling(max_tokens=10), rounds=1, warmup=0)
    assert not report.identical
    assert {failure.prompt for failure in report.failures} <= {0, 1, 2}
    assert all(failure.gap >= NEAR_TIE for failure in report.failures)


def test_near_ties_are_counted_and_explained_by_the_gap():
    """The first difference decides: tiny gap, near-tie; else a failure. Sampled prompts are left out."""
    base = completion([1, 2, 3], [1.0, 1e-5, 1.0])
    latest = {"none": [base, base, base], "fixed": [completion([1, 9, 3]), completion([7, 2, 3]), base]}
    found = _differences(["none", "fixed"], latest, [Sampling()] * 3, NEAR_TIE)
    assert [(one.prompt, one.position, one.near_tie) for one in found] == [(0, 1, True), (1, 0, False)]
    sampled = [Sampling(temperature=1.0)] * 3
    assert _differences(["none", "fixed"], latest, sampled, NEAR_TIE) == []


def test_first_difference():
    """Positions, lengths and equality."""
    base = completion([1, 2, 3])
    assert first_difference(base, completion([1, 2, 3])) is None
    assert first_difference(base, completion([1, 5, 3])) == 1
    assert first_difference(base, completion([1, 2])) == 2
    assert first_difference(completion([]), completion([])) is None


@pytest.mark.parametrize("wrong", [{"prompts": []}, {"rounds": 0}, {"sampling": [Sampling()]}])
def test_nothing_to_compare_is_refused(make_engine, wrong):
    """Empty input is an error with the numbers."""
    given = {"prompts": [[1], [2]], "sampling": Sampling(), "rounds": 1} | wrong
    with pytest.raises(EngineError, match="nothing to compare"):
        compare({"none": make_engine("none")}, **given)


def test_engines_of_other_sizes_or_busy_are_refused(make_engine):
    """A comparison is fair or refused."""
    first, other = make_engine("none"), make_engine("fixed", max_requests=2)
    with pytest.raises(EngineError, match="differ in their sizes"):
        compare({"none": first, "fixed": other}, [[1]], Sampling())
    first.add([1])
    with pytest.raises(EngineError, match="busy"):
        compare({"none": first}, [[1]], replace(Sampling(), max_tokens=2))
