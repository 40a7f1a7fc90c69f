"""The closed-form gradients against autograd, and what the labels are."""

from __future__ import annotations

import pytest
import torch


def case(rows: int = 7, size: int = 11):
    generator = torch.Generator().manual_seed(6)
    logits = torch.randn(rows, size, generator=generator, dtype=torch.float32) * 2
    # A part of the target's mass lies outside the vocabulary.
    laws = (torch.randn(5, size + 2, generator=generator) * 2).softmax(-1)[:, :size].contiguous()
    row = torch.tensor([0, 1, 2, 3, 4, 1, 0])
    likeliest = laws[row].argmax(-1)
    likeliest[3] = -1
    weight = torch.rand(rows, generator=generator)
    weight[5] = 0
    return logits, laws, row, likeliest, weight


@pytest.mark.parametrize("shares", [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.1, 0.45, 0.45)])
def test_gradients_are_those_of_the_formulas(shares):
    """Each loss alone and all together, a row without weight and a row without a likeliest token included."""
    from drafter_training.loss import DraftLoss, LossWeights

    logits, laws, row, likeliest, weight = case()
    ours = logits.clone().requires_grad_()
    loss, drafted, log_peak, accepted = DraftLoss.apply(
        ours, laws, row, likeliest, weight, LossWeights(*shares)
    )
    (3 * loss).backward()
    plain = logits.clone().requires_grad_()
    q, p = plain.softmax(-1), laws[row]
    known = likeliest >= 0
    entropy = -(p * plain.log_softmax(-1)).sum(-1)
    distance = 1 - torch.minimum(p, q).sum(-1)
    miss = 1 - q.gather(1, likeliest.clamp(min=0).unsqueeze(1)).squeeze(1) * known
    expected = ((shares[0] * entropy + shares[1] * distance + shares[2] * miss) * weight).sum()
    (3 * expected).backward()
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(ours.grad, plain.grad, atol=1e-6, rtol=1e-5)
    assert torch.equal(drafted, logits.argmax(-1))
    torch.testing.assert_close(log_peak, logits.log_softmax(-1).amax(-1))
    assert torch.equal(accepted, p.gather(1, drafted.unsqueeze(1)).squeeze(1))


def test_the_distance_is_the_total_variation_to_the_whole_law():
    """Mass outside the vocabulary counts as distance, as it does when a draft is verified."""
    from drafter_training.loss import DraftLoss, LossWeights

    whole = torch.tensor([[0.5, 0.3, 0.2]])
    logits = torch.tensor([[0.4, 0.6]]).log()
    loss, *_ = DraftLoss.apply(
        logits, whole[:, :2], torch.tensor([0]), torch.tensor([0]), torch.ones(1), LossWeights(0, 1, 0)
    )
    variation = 0.5 * (whole[0] - torch.tensor([0.4, 0.6, 0.0])).abs().sum()
    torch.testing.assert_close(loss, variation)


def test_one_less_the_variation_of_a_point_mass_is_the_label():
    """For a greedy draft 1 - TV is p(x) at temperature 1, and a hit or miss for a greedy target."""
    law = torch.tensor([0.2, 0.7, 0.1])
    for x in range(3):
        point = torch.zeros(3)
        point[x] = 1
        assert 1 - 0.5 * (law - point).abs().sum() == pytest.approx(float(law[x]))
        likeliest = torch.tensor([0.0, 1.0, 0.0])
        assert 1 - 0.5 * (likeliest - point).abs().sum() == float(x == 1)


def test_the_teacher_gives_the_softmax_over_everything():
    """Laws are restricted, not renormalised; a likeliest token outside is marked."""
    from drafter_training.loss import Teacher

    generator = torch.Generator().manual_seed(9)
    head = torch.randn(13, 6, generator=generator)
    hidden = torch.randn(40, 6, generator=generator)
    ids = torch.tensor([4, 0, 9, 12])
    laws, likeliest = Teacher(head, ids).laws(hidden)
    whole = (hidden @ head.t()).softmax(-1)
    torch.testing.assert_close(laws, whole[:, ids])
    best = whole.argmax(-1)
    expected = torch.tensor([ids.tolist().index(int(b)) if int(b) in ids else -1 for b in best])
    assert torch.equal(likeliest, expected)
    assert (likeliest == -1).any() and (likeliest >= 0).any()
