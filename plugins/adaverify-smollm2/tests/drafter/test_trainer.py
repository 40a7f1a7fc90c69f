"""Training at tiny size: the loss falls, an interruption changes nothing, an extension begins early."""

from __future__ import annotations

import numpy as np
import pytest
import torch


@pytest.fixture
def tiny_target(tiny_target):
    """The tiny target with a sharper law; its own gives no token more than a twentieth: nothing to learn."""
    tiny_target.weights.last_norm.mul_(8)
    return tiny_target


@pytest.fixture
def sequences(tiny_target):
    """Greedy and sampled text of the tiny target."""
    from drafter_training.generate import Writer
    from drafter_training.sequences import Sequences

    prompts = torch.randint(3, 260, (24, 32), generator=torch.Generator().manual_seed(8))
    lengths = torch.full((24,), 4)
    out = Writer(tiny_target, 24, 32, 8).write(prompts, lengths, torch.ones(8), seed=1)
    greedy = np.arange(24) < 16
    return Sequences.cut(out.numpy(), lengths.numpy(), greedy, np.arange(24), np.array([0, 2])).long_enough()


@pytest.fixture
def make_trainer(tiny_target, tiny_config, sequences):
    """A trainer over them, from scratch each time."""
    from drafter_training.initial import initial_drafter
    from drafter_training.loss import Teacher
    from drafter_training.sequences import Feed
    from drafter_training.trainer import Recipe, Trainer

    def make(steps: int = 12, **recipe: object) -> Trainer:
        ids = torch.arange(tiny_config.draft_vocabulary)
        model = initial_drafter(tiny_target, tiny_config, ids, seed=1)
        feed = Feed(sequences, 4, 6, tiny_config.block, seed=1)
        teacher = Teacher(tiny_target.weights.embedding, ids)
        return Trainer(tiny_target, model, teacher, feed, Recipe(steps=steps, log_every=1, **recipe))

    return make


def test_the_loss_falls(make_trainer):
    """Sixty steps on a few sequences: the drafter learns them, the confidence too."""
    lines = []
    make_trainer(60, adam_lr=5e-3).run(lines.append)
    first, last = (np.mean([line["drafting"] for line in part]) for part in (lines[:3], lines[-3:]))
    assert last < 0.8 * first
    assert np.mean([line["confidence"] for line in lines[-3:]]) < np.mean(
        [line["confidence"] for line in lines[:3]]
    )


def test_a_run_that_was_interrupted_ends_like_one_that_was_not(make_trainer, tmp_path):
    """Weights after 5 + 7 steps equal those after 12, bit for bit."""
    whole = make_trainer()
    whole.run(lambda numbers: None)
    broken = make_trainer()
    broken.run(lambda numbers: None, tmp_path / "checkpoint.pt", until=5)
    resumed = make_trainer()
    resumed.restore(tmp_path / "checkpoint.pt")
    assert resumed.step == 5
    resumed.run(lambda numbers: None)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name]), name


def test_a_longer_run_starts_from_before_the_rate_fell(make_trainer, tmp_path):
    """The stable state is the one at half of the budget, at the full rate."""
    from drafter_training.optimiser import rate

    trainer = make_trainer(12)
    trainer.run(lambda numbers: None, tmp_path / "checkpoint.pt", tmp_path / "stable.pt")
    longer = make_trainer(24)
    longer.restore(tmp_path / "stable.pt")
    assert longer.step == 6
    assert rate(longer.done) == 1.0
    whole = make_trainer(24)
    whole.run(lambda numbers: None)
    # The first six steps differ in the length of the rise only, which is over within one step here.
    assert [rate(step / 12) for step in range(1, 6)] == [rate(step / 24) for step in range(1, 6)]
    longer.run(lambda numbers: None)
    assert longer.step == 24


def test_the_rate_ends_at_zero_whatever_the_budget():
    """Rise, plateau, straight fall."""
    from drafter_training.optimiser import rate

    assert rate(0.0) == 0.01
    assert rate(0.01) == pytest.approx(0.5)
    assert rate(0.3) == 1.0
    assert rate(0.75) == pytest.approx(0.5)
    assert rate(1.0) == 0.0 == rate(1.2)


def test_batches_depend_on_seed_and_step_alone(sequences):
    """A feed that starts late gives what one that was there all along gives, and every row once an epoch."""
    from drafter_training.sequences import Feed

    device = torch.device("cpu")
    early = Feed(sequences, 5, 3, 4, seed=2)
    batches = [early.batch(step, device) for step in range(7)]
    late = Feed(sequences, 5, 3, 4, seed=2).batch(6, device)
    assert torch.equal(batches[6].tokens, late.tokens) and torch.equal(batches[6].at, late.at)
    rows = np.concatenate([early._pick(step) for step in range(len(sequences.first))])[: len(sequences.first)]
    assert sorted(rows) == list(range(len(sequences.first)))


def test_anchors_lie_where_a_draft_can_begin(sequences):
    """The newest token was written by the target, one more follows it, and labels end at the stop token."""
    from drafter_training.sequences import Feed

    feed = Feed(sequences, len(sequences.first), 40, 4, seed=3)
    batch, rows = feed.batch(0, torch.device("cpu")), feed._pick(0)
    first, last = sequences.first[rows][:, None], sequences.last[rows][:, None]
    at = batch.at.numpy()
    assert (at >= first).all() and (at < last).all()
    assert batch.valid[..., 0].all()
    assert (batch.valid.sum(-1).numpy() == np.minimum(last - at, 4)).all()


def test_orthogonalised_matrices_keep_their_singular_vectors():
    """Singular values near one, direction kept, tall and wide."""
    from drafter_training.optimiser import orthogonalised

    stack = torch.randn(2, 24, 10, generator=torch.Generator().manual_seed(1))
    for matrices in (stack, stack.mT.contiguous()):
        out = orthogonalised(matrices)
        values = torch.linalg.svdvals(out)
        assert values.min() > 0.5 and values.max() < 1.3
        u, _, v = torch.linalg.svd(matrices, full_matrices=False)
        turned = u.mT @ out @ v.mT
        off = turned - torch.diag_embed(turned.diagonal(dim1=1, dim2=2))
        assert off.abs().max() < 1e-3
