"""What an outsider's model, tokenizer, drafter or signal returns: refused by name, or counted and said."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from adaverify_contracts import (
    DraftBatch,
    DrafterDescriptor,
    LoadedModel,
    Seen,
    SignalDescriptor,
    hookimpl,
)
from adaverify_engine.drafters import NgramDrafter
from adaverify_testing import TinyModel, TinyTokenizer

SMALL = ("--mode", "none", "--mode", "fixed", "--show", 0, "--no-measure")


WHO = "model 'smollm2-135m' of plugin 'extra-0'"


def words_of(text):
    return " ".join(text.split())


def refused(result, *words):
    """Code 3, a typed error with these words, and no result."""
    assert result.exit_code == 3, result.stderr
    assert result.stdout == ""
    text = words_of(result.stderr)
    assert "fault of adaverify" not in text
    for word in words:
        assert word in text


LOADS = {
    "none": (lambda options: None, "NoneType"),
    "number": (lambda options: 5, "int"),
    "class": (lambda options: LoadedModel, "LoadedModel"),
    "no model": (lambda options: LoadedModel(None, TinyTokenizer()), "forward"),
    "no tokenizer": (lambda options: LoadedModel(TinyModel(), object()), "encode"),
}


@pytest.mark.parametrize(("load", "words"), LOADS.values(), ids=LOADS)
def test_load_that_returns_no_model_names_the_plugin(tiny, run_tiny, load, words):
    tiny(load=load)
    refused(
        run_tiny(*SMALL),
        f"PluginError: {WHO}: load returned no model",
        words,
    )


def test_a_model_without_sizes_names_the_plugin(tiny, run_tiny):
    def load(options):
        model = TinyModel()
        model.geometry = {"vocabulary": 64}
        return LoadedModel(model, TinyTokenizer())

    tiny(load=load)
    refused(run_tiny(*SMALL), f"PluginError: {WHO}: load", "geometry", "ModelGeometry")


def odd_model(method, change):
    """Return a loader of the tiny model with ``method`` returning ``change`` of what it should."""

    def load(options):
        model = TinyModel(options=options)
        right = getattr(model, method)
        setattr(model, method, lambda *arguments: change(right(*arguments)))
        return LoadedModel(model, TinyTokenizer())

    return load


@pytest.mark.parametrize(
    ("method", "change", "words"),
    [
        ("logits", lambda logits: None, "NoneType"),
        ("logits", lambda logits: logits[1:], ", 64)"),
        ("logits", lambda logits: logits[:, :5], ", 5)"),
        ("logits", lambda logits: logits.double(), "torch.float64"),
        ("forward", lambda hidden: None, "NoneType"),
        ("forward", lambda hidden: hidden[:, :7], ", 7)"),
        ("forward", lambda hidden: hidden.long(), "torch.int64"),
    ],
)
def test_a_model_that_returns_nonsense_is_refused(tiny, run_tiny, method, change, words):
    """Logits of five ids of 64 gave wrong tokens, in all modes alike and with code 0."""
    what = "logits" if method == "logits" else "hidden states"
    tiny(load=odd_model(method, change))
    refused(run_tiny(*SMALL), f"EngineError: the model tiny returned no {what} of its contract", words)


@pytest.mark.parametrize(
    ("ids", "words", "chat"),
    [
        (None, "NoneType", False),
        (None, "NoneType", True),
        ("abc", "abc", True),
        ([1.5], "list", False),
        ([True], "list", False),
        ({1: 2}, "dict", True),
        ([1, 64], "64", False),
        ([-1], "-1", True),
        (torch.zeros(1, 3, dtype=torch.int64), "Tensor", False),
    ],
)
def test_a_tokenizer_that_returns_no_ids_names_the_plugin(tiny, run_tiny, ids, words, chat):
    class Odd(TinyTokenizer):
        def encode(self, text):
            return ids

        def chat(self, messages):
            return ids

    tiny(load=lambda options: LoadedModel(TinyModel(options=options), Odd()))
    result = run_tiny(*SMALL, *(("--chat",) if chat else ()))
    refused(result, "PluginError", "plugin 'extra-0'", "chat" if chat else "encode", words, "prompt 1 of 4")


class Mute(TinyTokenizer):
    """Has no text for id 61, or for no id at all."""

    def __init__(self, answer, always=True):
        super().__init__()
        self.answer, self.always = answer, always

    def decode(self, tokens):
        if self.always or 61 in tokens:
            return self.answer()
        return super().decode(tokens)


def raising():
    raise ValueError("no such text")


def speechless(*arguments):
    return lambda options: LoadedModel(TinyModel(options=options), Mute(*arguments))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (raising, "ValueError: no such text"),
        (lambda: None, "decode returned NoneType"),
        (lambda: b"abc", "decode returned bytes"),
        (lambda: 5, "decode returned int"),
    ],
)
def test_requests_that_all_fail_are_said_counted_and_end_with_1(tiny, run_tiny, answer, reason):
    """They were empty completions, called identical in all modes, with code 0 and nothing said."""
    tiny(load=speechless(answer))
    result = run_tiny(*SMALL)
    assert result.exit_code == 1, result.stderr
    said, shown = words_of(result.stderr), words_of(result.stdout)
    assert "plugin extra-0" in said
    assert "model smollm2-135m: 4 of 4 prompts failed in none, fixed" in said
    assert reason in said
    assert "identical" not in shown
    assert "Tokens: no prompt was completed by every mode, so nothing is compared." in shown
    assert "Failed: 4 of 4 prompts in none, 4 of 4 prompts in fixed." in shown
    assert "Counted in none: request-failed x 8." in shown
    json_result = run_tiny(*SMALL, "--json")
    assert json_result.exit_code == 1
    report = json.loads(json_result.stdout)
    assert report["tokens"]["identical"] is None
    assert report["tokens"]["compared"] == 0
    assert len(report["tokens"]["failed"]) == 8
    assert report["modes"]["fixed"]["counters"]["request-failed"] == 8
    for one in report["completions"]:
        assert one["identical"] is None
        assert reason in one["modes"]["none"]["error"]
        assert one["modes"]["none"]["reason"] == "failed"


def test_calibrate_refuses_texts_that_failed(tiny, invoke, prompts):
    """Short texts would be fitted as if the target had ended them."""
    tiny(load=speechless(raising))
    sizes = ("--concurrency", 2, "--tokens", 16, "--draft-tokens", 3, "--dtype", "float32")
    result = invoke("calibrate", "--prompts", prompts(), *sizes)
    refused(result, f"PluginError: {WHO}: the tokenizer failed for 4 of 4", "ValueError: no such text")


def test_sampled_requests_that_fail_are_no_comparison(tiny, run_tiny):
    tiny(load=speechless(raising, False))
    result = run_tiny(*SMALL, "--temperature", 1.0, "--seed", 3)
    assert result.exit_code == 1
    assert "sampled requests are not compared" in words_of(result.stdout)


def test_one_mode_alone_fails_as_visibly(tiny, run_tiny):
    tiny(load=speechless(raising))
    result = run_tiny("--mode", "none", "--show", 0)
    assert result.exit_code == 1
    assert "4 of 4 prompts failed in none" in words_of(result.stderr)
    assert "one mode ran, so there is nothing to compare" in words_of(result.stdout)


def test_prompts_that_did_not_fail_are_compared(tiny, run_tiny):
    """The identity is one of the others, and says how many."""
    tiny(load=speechless(raising, False))
    result = run_tiny(*SMALL, "--json")
    assert result.exit_code == 1
    tokens = json.loads(result.stdout)["tokens"]
    lost = {one["prompt"] for one in tokens["failed"]}
    assert 0 < len(lost) < 4, "some must fail and some must not, or nothing is tested"
    assert tokens["compared"] == 4 - len(lost)
    assert tokens["identical"] is True
    shown = words_of(run_tiny(*SMALL).stdout)
    assert f"identical in all modes, {4 - len(lost)} prompt" in shown
    assert f"Failed: {len(lost)} of 4 prompts in none" in shown


class Odd:
    """Registers a signal or a drafter."""

    def __init__(self, signal=None, drafter=None):
        self.signal, self.drafter = signal, drafter

    @hookimpl
    def adaverify_register_signals(self):
        return () if self.signal is None else (SignalDescriptor("odd", Seen.HISTORY, True, self.signal),)

    @hookimpl
    def adaverify_register_drafters(self):
        return () if self.drafter is None else (DrafterDescriptor("odd", Seen.HISTORY, True, self.drafter),)


class Flat:
    """Half a chance for every draft; subclasses misbehave."""

    def __init__(self, limits, device):
        pass

    def confidences(self, scores, slots):
        return torch.full_like(scores, 0.5)

    def ready(self):
        return True, "always"

    def learn(self, outcome):
        pass

    def forget(self, slot):
        pass


class Numbers(Flat):
    def confidences(self, scores, slots):
        return np.full(tuple(scores.shape), 0.5, dtype=np.float32)


class Unready(Flat):
    def ready(self):
        return None


@pytest.mark.parametrize("signal", [Numbers, Unready])
def test_a_signal_that_fails_is_counted_without_prices(cold_cache, tiny, run_tiny, monkeypatch, signal):
    """Without a table only ``unpriced`` was counted."""
    tiny(Odd(signal=signal))
    monkeypatch.setenv("ADAVERIFY_PLANNER_SIGNAL", "odd")
    result = run_tiny("--mode", "none", "--mode", "adaptive", "--no-measure", "--dtype", "float32", "--json")
    assert result.exit_code == 0, result.stderr
    counters = json.loads(result.stdout)["modes"]["adaptive"]["counters"]
    assert counters["signal-nonsense"] >= counters["unpriced"] > 5


@pytest.mark.parametrize("token", [-100, 10**9, 64])
def test_a_drafter_whose_ids_are_none_is_counted(tiny, run_tiny, token):
    class Outside(NgramDrafter):
        def propose(self, slots, room):
            shape = (len(slots), 3)
            return DraftBatch(torch.full(shape, token), room.clip(0, 3), torch.zeros(shape))

    tiny(Odd(drafter=Outside))
    result = run_tiny(*SMALL, "--drafter", "odd", "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["tokens"]["identical"] is True
    assert report["modes"]["fixed"]["counters"]["drafter-nonsense"] > 5
