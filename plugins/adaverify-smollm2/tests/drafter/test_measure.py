"""Evaluation: against a brute-force run of the engine's own rule, and against numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch


def engine_steps(target, drafter, prompt, limit, block):
    """Speculate one request greedily by the engine's acceptance rule, a pass of the target a step.

    Returns how many tokens each step emitted.
    """
    from drafter_training.context import DenseContext, anchored

    from adaverify_engine.acceptance.match import accept_equal

    config = drafter.config

    def following(ids):
        seen = target.run(torch.tensor([ids]), (1,), ())
        return target.weights.head(seen.hidden)[0].argmax(-1).tolist()

    ids = [*prompt, following(prompt)[-1]]
    emitted, stops = [], {0, 2}
    while len(ids) - len(prompt) <= limit and ids[-1] not in stops:
        at = torch.tensor([[len(ids) - 1]])
        tokens = torch.tensor([ids])
        seen = target.run(tokens, config.feature_layers, config.cross_layers)
        drafts, _ = drafter.draft(
            anchored(seen.features, at), tokens[0, -1:], at.flatten(), DenseContext(seen, at, block)
        )
        choices = following(ids + drafts[0].tolist())[len(ids) - 1 :]
        count = int(accept_equal(torch.tensor([choices]), drafts, torch.tensor([block])))
        new = choices[: count + 1]
        for place, token in enumerate(new):
            if token in stops:
                new = new[: place + 1]
                break
        ids += new
        emitted.append(len(new))
    return emitted


@pytest.fixture
def trained(tiny_target, tiny_config):
    """A drafter that has seen the tiny target's text, so that some drafts are accepted."""
    from drafter_training.generate import Writer
    from drafter_training.initial import initial_drafter
    from drafter_training.loss import Teacher
    from drafter_training.sequences import Feed, Sequences
    from drafter_training.trainer import Recipe, Trainer

    prompts = torch.randint(3, 260, (12, 40), generator=torch.Generator().manual_seed(5))
    lengths = torch.tensor([3, 4, 5, 6] * 3)
    out = Writer(tiny_target, 12, 40, 0).write(prompts, lengths, torch.ones(0), seed=1)
    greedy = np.ones(12, bool)
    stops = np.array([0, 2])
    rows = Sequences.cut(out.numpy(), lengths.numpy(), greedy, np.arange(12), stops).long_enough(2)
    ids = torch.arange(250)
    from dataclasses import replace

    model = initial_drafter(tiny_target, replace(tiny_config, draft_vocabulary=250), ids, seed=1)
    feed = Feed(rows, 6, 10, tiny_config.block, seed=1)
    teacher = Teacher(tiny_target.weights.embedding, ids)
    Trainer(tiny_target, model, teacher, feed, Recipe(steps=25, adam_lr=5e-3)).run(lambda numbers: None)
    return model.eval().requires_grad_(False), rows


def test_the_walk_is_what_an_engine_does(tiny_target, trained):
    """Emitted tokens of every step equal those of a request decoded step by step."""
    from drafter_training import evaluate, measure

    model, rows = trained
    block, limit = model.config.block, 24
    counts = []
    for row in range(6):
        first = int(rows.first[row])
        drafts, logits = evaluate.drafts_everywhere(tiny_target, model, rows, np.array([row]), limit)
        tokens = rows.tokens[row].astype(np.int64)
        steps = measure.walk(drafts[0], logits[0, :, :, 0], tokens, first, int(rows.last[row]), row)
        expected = engine_steps(tiny_target, model, tokens[:first].tolist(), limit, block)
        assert steps.emitted.tolist() == expected[: len(steps.emitted)]
        assert len(expected) - len(steps.emitted) <= 1
        counts += expected
    assert max(counts) > 1


def test_a_stop_token_ends_the_last_step_without_bonus():
    """Drafts behind the stop token have no fate; accepting it emits nothing more."""
    from drafter_training.measure import walk

    tokens = np.array([9, 9, 5, 6, 7, 2, 0, 0])
    drafts = np.array([[6, 7, 2], [1, 1, 1], [1, 1, 1], [0, 0, 0]])
    steps = walk(drafts, np.zeros((4, 3)), tokens, 2, 5, 0)
    assert steps.accepted.tolist() == [3] and steps.emitted.tolist() == [3] and steps.horizon.tolist() == [3]
    drafts[0] = [6, 1, 2]
    steps = walk(drafts, np.zeros((4, 3)), tokens, 2, 5, 0)
    assert steps.accepted.tolist() == [1, 0] and steps.emitted.tolist() == [2, 1]
    assert steps.horizon.tolist() == [3, 1]


def test_area_under_the_curve_by_hand():
    """Pairs counted one by one, ties half."""
    from drafter_training.measure import auc

    scores, labels = np.array([0.9, 0.4, 0.4, 0.1]), np.array([True, True, False, False])
    assert auc(scores, labels) == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    random = np.random.default_rng(1)
    scores, labels = random.integers(0, 9, 200) / 9, random.random(200) < 0.4
    pairs = scores[labels][:, None] - scores[~labels]
    assert auc(scores, labels) == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean())
    assert np.isnan(auc(scores, np.ones(200, bool)))


def test_calibration_error_by_hand():
    """Two bins: 0.8 predicted and half right, 0.1 predicted and never right."""
    from drafter_training.measure import calibration_error

    predicted, labels = np.array([0.8, 0.8, 0.1, 0.1]), np.array([True, False, False, False])
    assert calibration_error(predicted, labels) == pytest.approx((2 * 0.3 + 2 * 0.1) / 4)


def test_temperatures_are_recovered():
    """Confidences twice too sharp are mended, position by position, and the error falls below 2 %."""
    from drafter_training import measure

    random = np.random.default_rng(4)
    honest = random.normal(1.0, 1.5, (20000, 3))
    bits = random.random((20000, 3)) < 1 / (1 + np.exp(-honest))
    accepted = np.where(bits.all(1), 3, bits.argmin(1))
    steps = measure.Steps(accepted, accepted + 1, np.full(20000, 3), 2 * honest, np.arange(20000))
    temperatures = measure.fit_temperatures(steps)
    assert temperatures == pytest.approx(2, rel=0.15)
    numbers = measure.report(steps, temperatures)
    assert max(numbers["ece"]) < 0.02 < min(numbers["ece_raw"])
