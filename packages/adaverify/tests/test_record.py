"""``adaverify record`` on a tiny model: texts in, a file of truth out, that `simulate` reads."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from adaverify import texts
from adaverify.texts import QUESTIONS, held_out, prose_openings, texts_of
from adaverify_contracts import DrafterDescriptor, LoadedModel, PromptError, Seen, hookimpl
from adaverify_replay import AcceptanceRecords
from adaverify_testing import TinyModel, TinyTokenizer

K = 3
SMALL = ("--code", 3, "--chat", 2, "--prose", 1, "--tokens", 12, "--draft-tokens", K, "--dtype", "float32")
# One text of every source, each of them sampled as well.
ONE_OF_EACH = ("--code", 1, "--chat", 1, "--prose", 1, "--sampled", 1.0)


class EchoBlock:
    """Drafts with the target itself, which sees what is cached and not its own drafts."""

    taps, queries = (1, 2), 1

    def __init__(self, limits, device):
        self.width = limits.draft_tokens

    def bind(self, target, dtype):
        self.target = target

    def block(self, features, tokens, positions, temperatures, attend):
        drafts, scores = [], []
        for place in range(self.width):
            hidden = self.target.forward(
                tokens, positions + place, lambda layer, query, key, value: attend(layer, query)
            )
            best, chosen = self.target.logits(hidden).topk(2)
            tokens = chosen[:, 0]
            drafts.append(tokens)
            scores.append(best[:, 0] - best[:, 1] + temperatures)
        return torch.stack(drafts, 1), torch.stack(scores, 1)


class BlockPlugin:
    @hookimpl
    def adaverify_register_drafters(self):
        return (DrafterDescriptor("tiny-block", Seen.PREFIX, True, EchoBlock, target="tiny"),)


@pytest.fixture
def record(tiny, invoke, tmp_path):
    """Return a function that records six texts of a tiny model."""
    tiny(BlockPlugin())

    def run(*arguments):
        return invoke("record", "--out", tmp_path / "records.npz", *SMALL, *arguments)

    return run


def test_the_file_holds_what_the_report_says(record, tmp_path):
    result = record("--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    records = AcceptanceRecords.load(tmp_path / "records.npz")
    assert report["digest"] == records.digest
    assert report["bytes"] == (tmp_path / "records.npz").stat().st_size
    header = records.header
    assert (header.model, header.drafter, header.draft_tokens, header.seen) == (
        "tiny",
        "tiny-block",
        K,
        "PREFIX",
    )
    assert (header.temperature, header.seed, header.deterministic) == (0.8, 1, True)
    assert header.source["prompts"] == {"code": 3, "chat": 2, "prose": 1}
    assert header.source["device_name"], "simulate holds the table's device against it"
    # Half of each source is sampled as well; half of one rounds to none.
    kinds = {(one["source"], one["regime"]): one["sequences"] for one in report["kinds"]}
    assert kinds == {
        ("code", "greedy"): 3,
        ("chat", "greedy"): 2,
        ("prose", "greedy"): 1,
        ("code", "sampled"): 2,
        ("chat", "sampled"): 1,
    }
    # The second prompt leaves the tiny model no more room.
    assert sorted(records.lengths.tolist()) == [3, 3, *[12] * 7]
    assert 0 < records.accepted.mean() < K
    assert sum(one["positions"] for one in report["kinds"]) == records.positions


def test_scores_are_of_the_regime_of_the_text(record, tmp_path):
    """The drafter is told the temperature that the text was sampled at."""
    assert record(*ONE_OF_EACH).exit_code == 0
    records = AcceptanceRecords.load(tmp_path / "records.npz")
    sampled = records.take(records.of(regime="sampled")).scores
    greedy = records.take(records.of(regime="greedy")).scores
    # Margins are never negative, and the sampled ones got 0.8 added.
    assert sampled.min() >= 0.79 > greedy.min() >= 0


def test_the_same_options_record_the_same_file(record, tmp_path):
    found = []
    for _ in range(2):
        assert record(*ONE_OF_EACH).exit_code == 0
        found.append((tmp_path / "records.npz").read_bytes())
    assert found[0] == found[1]


def test_the_table_fits_80_columns(record):
    result = record(*ONE_OF_EACH)
    assert result.exit_code == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if "records.npz" not in line]
    assert max(map(len, lines)) <= 80
    assert "sampled" in result.stdout


def test_records_can_be_simulated(record, invoke, tmp_path, priced_file):
    assert record().exit_code == 0
    result = invoke(
        "simulate",
        "--records",
        tmp_path / "records.npz",
        "--table",
        priced_file,
        *("--concurrency", 2, "--tokens", 300, "--warmup", 32),
        "--json",
    )
    assert result.exit_code == 0, result.stderr
    (found,) = json.loads(result.stdout)["results"]
    assert set(found["arms"]) == {"none", "fixed-1", "fixed-2", "fixed-3", "adaptive", "oracle"}


def test_a_drafter_that_keeps_requests_is_refused(record):
    result = record("--drafter", "n-gram")
    assert result.exit_code == 3
    assert "n-gram cannot be recorded" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--code", 0, "--chat", 0, "--prose", 0), 3, "nothing to record"),
        (("--code", 165), 3, "165"),
        (("--temperature", 0), 2, "greedy"),
        (("--sampled", 1.5), 2, "sampled"),
        (("--sampled", "nan"), 2, "nan is no share"),
        (("--out", "missing/records.npz"), 3, "missing"),
    ],
)
def test_what_cannot_be_recorded_is_refused(record, arguments, code, words):
    result = record(*arguments)
    assert result.exit_code == code
    assert words in result.stderr


def test_texts_that_failed_are_refused(tiny, invoke, tmp_path):
    """They would be recorded as if the target had ended them there."""

    class Mute(TinyTokenizer):
        def decode(self, tokens):
            return None

    tiny(BlockPlugin(), load=lambda options: LoadedModel(TinyModel(options=options), Mute()))
    result = invoke("record", "--out", tmp_path / "records.npz", *SMALL)
    assert result.exit_code == 3
    text = " ".join(result.stderr.split())
    assert "of plugin 'extra-0': the tokenizer failed for" in text
    assert "decode returned NoneType" in text
    assert not (tmp_path / "records.npz").exists()


def test_the_texts_are_the_same_ones_every_time_and_of_their_source():
    found = texts_of(3, 4, 2)
    assert found == texts_of(3, 4, 2)
    assert [one.source for one in found] == ["code"] * 3 + ["chat"] * 4 + ["prose"] * 2
    assert [one.chat for one in found] == [one.source == "chat" for one in found]
    assert [one.place for one in found[:7]] == [
        "HumanEval/0",
        "HumanEval/1",
        "HumanEval/2",
        "question 1",
        "HumanEval/163",
        "question 2",
        "HumanEval/162",
    ]
    assert len({one.text for one in texts_of(32, 16, 16)}) == 64


def test_prose_is_of_held_out_modules_only():
    openings = prose_openings()
    assert len(openings) >= 24
    assert all(held_out(name) for name, _ in openings)
    assert len({name for name, _ in openings[:10]}) == 10, "modules take turns"
    assert all(text[0].isupper() and len(text.split()) >= 20 for _, text in openings)
    assert not held_out("json/__init__.py") or not held_out("ast.py"), "most documents are trained on"


def test_questions_are_not_asked_twice(monkeypatch):
    assert len(set(QUESTIONS)) == len(QUESTIONS)
    monkeypatch.setattr(texts, "human_eval_prompts", lambda: ["one", "two"])
    with pytest.raises(PromptError, match="14"):
        texts_of(0, len(QUESTIONS) + 3, 0)
    assert len(texts_of(0, len(QUESTIONS) + 2, 0)) == 14


def test_sampled_sequences_differ_from_the_greedy_ones(record, tmp_path):
    """At a high temperature: the same prompts, other text, so other fates."""
    assert record("--temperature", 5.0, "--sampled", 1.0).exit_code == 0
    records = AcceptanceRecords.load(tmp_path / "records.npz")
    greedy, sampled = (records.take(records.of(regime=name)) for name in ("greedy", "sampled"))
    assert greedy.sequences == sampled.sequences == 6
    np.testing.assert_array_equal(greedy.contexts, sampled.contexts)
    assert sampled.accepted.mean() < greedy.accepted.mean()
