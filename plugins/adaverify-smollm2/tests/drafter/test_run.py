"""The whole run at tiny size: sequences, training, weights, card; then resumed and extended."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

SCRIPT = Path(__file__).resolve().parents[2] / "training" / "train.py"


@pytest.fixture
def script():
    """The training script as a module."""
    spec = importlib.util.spec_from_file_location("drafter_train_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def prompts_file(tmp_path) -> Path:
    """Random prompts in every split."""
    from drafter_training.prompts import KINDS, SPLITS, PromptSet

    random = np.random.default_rng(1)
    splits = [split for split in SPLITS for _ in range(40 if split == "train" else 4)]
    lengths = random.integers(4, 10, len(splits))
    kinds = {"human-eval": "code", "human-eval-chat": "chat", "prose": "prose"}
    PromptSet(
        ids=random.integers(3, 260, lengths.sum()).astype(np.uint16),
        starts=np.concatenate([[0], np.cumsum(lengths)]),
        kind=np.array([KINDS.index(kinds.get(split, "code")) for split in splits], np.uint8),
        split=np.array([SPLITS.index(split) for split in splits], np.uint8),
        source=np.array(["somewhere"] * len(splits)),
        stops=np.array([0, 2]),
    ).save(tmp_path / "prompts.npz")
    return tmp_path / "prompts.npz"


def test_a_run_leaves_weights_card_and_log(script, prompts_file, tiny_path, tmp_path, capsys):
    """Every file is there, weights load and are the evaluated ones, and a second run reuses the data."""
    from adaverify_smollm2.drafter import load_block_drafter, read_card

    out, state = tmp_path / "out", tmp_path / "state"
    sizes = "--rows 20 --width 48 --parts 2 --batch 4 --anchors 4 --log-every 1 --vocabulary 200"
    shape = "--feature-layers 1 2 --cross-layers 0 1 --table 16 --rank 8 --export-vocabulary 120"
    places = [
        "--prompts",
        str(prompts_file),
        "--model",
        str(tiny_path),
        "--out",
        str(out),
        "--state",
        str(state),
    ]
    common = [
        "run",
        *places,
        "--device",
        "cpu",
        *sizes.split(),
        *shape.split(),
        "--compare-vocabularies",
        "60",
    ]
    script.main([*common, "--steps", "6"])
    names = {path.name for path in out.iterdir()}
    weights = {"backbone.safetensors", "head.safetensors", "table.safetensors"}
    assert names == weights | {"card.json", "MODEL_CARD.md", "train.jsonl"}
    card = read_card(out)
    model = load_block_drafter(torch.device("cpu"), torch.float32, out)
    assert model.config.draft_vocabulary == card["config"]["draft_vocabulary"] == 120
    evaluation = card["evaluation"]
    assert list(evaluation["variants"]) == ["float, 200 ids", "float, 60 ids", "int8, 120 ids"]
    for regime in ("greedy", "sampled"):
        assert len(evaluation[regime]["temperatures"]) == model.config.block
        pooled = evaluation[regime]["pooled"]
        assert pooled["steps"] > 100 and 1 <= pooled["accepted_length"] <= 8
    text = (out / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert "$" not in text and f"{evaluation['greedy']['prose']['accepted_length']:.2f}" in text
    lines = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]

    parts = {path: path.stat().st_mtime_ns for path in state.glob("*.npz")}
    capsys.readouterr()
    script.main([*common, "--steps", "8", "--extend"])
    assert "continues stable.pt at step 3" in capsys.readouterr().out
    assert parts == {path: path.stat().st_mtime_ns for path in state.glob("*.npz")}
    lines = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines[6:]] == [4, 5, 6, 7, 8]


def test_a_wall_clock_budget_ends_with_the_rate_at_zero(script, prompts_file, tiny_path, tmp_path):
    """Training by the clock anneals within its seconds, whatever a step takes."""
    out, state = tmp_path / "out", tmp_path / "state"
    sizes = "--rows 20 --width 48 --parts 1 --batch 4 --anchors 4 --log-every 1 --vocabulary 200"
    shape = "--feature-layers 1 2 --cross-layers 0 1 --table 16 --rank 8 --export-vocabulary 120"
    places = [
        "--prompts",
        str(prompts_file),
        "--model",
        str(tiny_path),
        "--out",
        str(out),
        "--state",
        str(state),
    ]
    common = ["run", *places, "--device", "cpu", *sizes.split(), *shape.split(), "--compare-vocabularies"]
    options = script.parse([*common, "60"])
    from drafter_training import stages
    from drafter_training.target import DenseTarget

    state.mkdir()
    target = DenseTarget.load(tiny_path, torch.device("cpu"), torch.float32, options.positions)
    import time

    stages.generate(options, target, time.monotonic() + 60, lambda text: None)
    trainer = stages.make_trainer(options, target, time.monotonic() + 3.0, lambda text: None)
    stages.train(options, trainer, lambda text: None)
    assert trainer.seconds >= trainer.recipe.seconds > 0
    lines = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    rates = [line["rate"] for line in lines]
    fall = rates[rates.index(max(rates)) :]
    assert fall == sorted(fall, reverse=True) and fall[-1] < max(rates)
