"""Acceptance keeps the target's law, whoever drafted and however much was trimmed (maths section 5)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from adaverify_engine.acceptance import (
    Sequences,
    accept_equal,
    accept_sampled,
    inverse_cdf,
    judge,
    target_law,
    top_two,
)
from adaverify_engine.acceptance.blocks import BLOCK

SAMPLES = 40_000


def chi_square_fits(counts, law) -> bool:
    """Return whether counts fit the law at about one false alarm in a million (Wilson-Hilferty)."""
    counts, law = np.asarray(counts, dtype=float).ravel(), np.asarray(law, dtype=float).ravel()
    if counts[law == 0].sum():
        return False
    counts, expected = counts[law > 0], law[law > 0] * counts.sum()
    statistic, freedom = ((counts - expected) ** 2 / expected).sum(), len(expected) - 1
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return z < 4.75


@pytest.mark.parametrize("width", [1, 2, BLOCK, BLOCK + 1, 1000])
def test_top_two_equals_topk(width):
    """Token, best and gap equal a plain search; equal logits give the smallest id and gap 0."""
    logits = torch.randn(40, width, generator=torch.Generator().manual_seed(width))
    logits[0] = 1.0
    token, best, gap = top_two(logits)
    assert token[0] == 0
    values = logits.topk(min(2, width)).values
    assert torch.equal(best, values[:, 0])
    assert torch.equal(logits.gather(1, token[:, None])[:, 0], best)
    expected = values[:, 0] - values[:, 1] if width > 1 else torch.full((40,), float("inf"))
    assert torch.equal(gap, expected)


@pytest.mark.parametrize("width", [1, 5, BLOCK, 700])
def test_inverse_cdf_equals_a_plain_search(width):
    """The block search finds what a float64 cumulated sum finds, and never a token of weight 0."""
    random = torch.Generator().manual_seed(7)
    weights = torch.rand(300, width, generator=random)
    weights[weights < 0.3] = 0.0
    weights[:, width // 2] += 0.1
    noise = torch.rand(300, generator=random, dtype=torch.float64)
    noise[0], noise[1] = 0.0, 1.0 - 2**-53
    token = inverse_cdf(weights, noise)
    total = weights.double().cumsum(1)
    expected = (total <= (noise * total[:, -1])[:, None]).sum(1)
    assert (weights.gather(1, token[:, None]) > 0).all()
    agree = token == expected
    assert agree.float().mean() > 0.99
    assert agree[0]


def test_target_law_by_hand():
    """Temperature, nucleus (the token that reaches the mass is kept) and greedy rows."""
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]] * 4))
    law = target_law(logits, torch.tensor([1.0, 1.0, 0.5, 0.0]), torch.tensor([1.0, 0.7, 1.0, 0.5]))
    expected = torch.tensor(
        [[0.5, 0.3, 0.2], [0.625, 0.375, 0.0], [0.25 / 0.38, 0.09 / 0.38, 0.04 / 0.38], [1.0, 0.0, 0.0]]
    )
    torch.testing.assert_close(law, expected)


def test_nucleus_wider_than_the_sorted_prefix():
    """A flat law needs the whole sort and keeps just enough tokens."""
    law = target_law(torch.zeros(1, 2000), torch.ones(1), torch.tensor([0.9]))
    assert int((law > 0).sum()) in (1800, 1801)


@pytest.mark.parametrize("width", [40, 2000])
def test_a_nucleus_keeps_the_smallest_ids_of_equal_tokens(width):
    """Logits from bfloat16 tie often; which ones topk returns first differs by device and by size."""
    logits = torch.zeros(1, width)
    logits[0, 7] = 3.0
    law = target_law(logits, torch.ones(1), torch.tensor([0.9]))[0]
    kept = torch.nonzero(law).flatten()
    assert kept.tolist() == list(range(len(kept)))
    assert 7 < len(kept) < width
    whole = torch.softmax(logits[0].double(), 0)
    assert float(whole[: len(kept)].sum()) == pytest.approx(0.9, abs=1.5 * float(whole[0]))


def test_undrafted_and_trimmed_positions_match_nothing():
    """-1 is masked, never an index, and a position past the admitted counts for nothing (vllm #50939)."""
    drawn = torch.tensor([[4, 5, 6], [4, 5, 6], [7, 5, 6], [4, 9, 6]])
    drafts = torch.tensor([[4, 5], [4, 5], [4, 5], [-1, -1]])
    assert accept_equal(drawn, drafts, torch.tensor([2, 1, 2, 0])).tolist() == [2, 1, 0, 0]


def toy(seed):
    """Return target and draft laws over 3 tokens, one array a position, given the tokens before."""
    random = np.random.default_rng(seed)
    target = [random.dirichlet(np.ones(3), size=3**depth) for depth in range(3)]
    draft = [random.dirichlet(np.ones(3), size=3**depth) for depth in range(2)]
    return target, draft


def joint_law(target):
    """Return the target's law of two tokens, [3, 3]."""
    return target[0][0][:, None] * target[1]


def emitted_pairs(first, second, lengths, target, rng):
    """Complete sequences of one token by an honest draw, so that all have two."""
    short = lengths == 1
    rest = target[1][first[short]]
    second = second.copy()
    second[short] = (rest.cumsum(1) < rng.random(short.sum())[:, None]).sum(1)
    return np.bincount(first * 3 + second, minlength=9)


@pytest.mark.parametrize("admit", ["all", "none", "one", "by-first-token"])
@pytest.mark.parametrize("kind", ["deterministic", "probabilities"])
@pytest.mark.parametrize("seed", [0, 1])
def test_emitted_tokens_follow_the_target(kind, admit, seed):
    """Chi-square of emitted pairs: both kinds of drafter, trimmed in every way that reads the prefix only."""
    target, draft = toy(seed)
    rng = np.random.default_rng(seed + 10)
    n = SAMPLES
    if kind == "deterministic":
        guess = draft[0][0].argmax()
        drafts = np.stack([np.full(n, guess), np.full(n, draft[1][guess].argmax())], axis=1)
    else:
        one = rng.choice(3, size=n, p=draft[0][0])
        two = (draft[1][one].cumsum(1) < rng.random(n)[:, None]).sum(1)
        drafts = np.stack([one, two], axis=1)
    admitted = {
        "all": np.full(n, 2),
        "none": np.zeros(n, dtype=int),
        "one": np.ones(n, dtype=int),
        "by-first-token": 1 + (drafts[:, 0] == 0),
    }[admit]
    # Logits rows: position 1, position 2 after draft 1, position 3 after both.
    law = np.stack(
        [
            np.broadcast_to(target[0][0], (n, 3)),
            target[1][drafts[:, 0]],
            target[2][drafts[:, 0] * 3 + drafts[:, 1]],
        ],
        axis=1,
    )
    width = np.arange(3) <= admitted[:, None]
    draft_law = None
    if kind == "probabilities":
        draft_law = torch.from_numpy(
            np.stack([np.broadcast_to(draft[0][0], (n, 3)), draft[1][drafts[:, 0]]], axis=1)
        ).float()
    verdict = judge(
        torch.from_numpy(np.log(law[width])).float(),
        Sequences(
            start=torch.from_numpy(np.concatenate(([0], np.cumsum(admitted + 1)[:-1]))),
            admitted=torch.from_numpy(admitted),
            drafts=torch.from_numpy(drafts),
            draft_law=draft_law,
            temperature=torch.ones(n),
            top_p=torch.ones(n),
            noise=torch.from_numpy(rng.random((n, 3, 2))),
        ),
        sampled=True,
    )
    accepted, tokens = verdict.accepted.numpy(), verdict.tokens.numpy()
    assert (accepted <= admitted).all()
    counts = emitted_pairs(tokens[:, 0], tokens[:, 1], np.minimum(accepted + 1, 2), target, rng)
    assert chi_square_fits(counts, joint_law(target))
    if admit == "all":
        expected = np.minimum(target[0][0], draft[0][0]).sum()
        if kind == "deterministic":
            expected = target[0][0][drafts[0, 0]]
        assert abs((accepted >= 1).mean() - expected) < 5 * 0.5 / math.sqrt(n)


def test_chi_square_notices_a_wrong_law():
    """The check itself fails on the residual drawn where the target's own law belongs (maths 5.6)."""
    target, draft = toy(0)
    rng = np.random.default_rng(0)
    law = torch.from_numpy(np.broadcast_to(target[0][0], (SAMPLES, 3)).copy())
    residual = (law - torch.from_numpy(draft[0][0])).clamp(min=0)
    wrong = inverse_cdf(residual.float(), torch.from_numpy(rng.random(SAMPLES)))
    right = inverse_cdf(law.float(), torch.from_numpy(rng.random(SAMPLES)))
    assert not chi_square_fits(np.bincount(wrong.numpy(), minlength=3), target[0][0])
    assert chi_square_fits(np.bincount(right.numpy(), minlength=3), target[0][0])


def test_bonus_after_a_trimmed_prefix_is_not_a_residual():
    """After an accepted trimmed prefix the next token has the target's law, though drafts were left."""
    n = SAMPLES
    rng = np.random.default_rng(3)
    p, q = np.array([0.2, 0.3, 0.5]), np.array([0.6, 0.3, 0.1])
    law = torch.from_numpy(np.broadcast_to(p, (n, 3, 3)).copy()).float()
    accepted, final = accept_sampled(
        law,
        torch.from_numpy(np.broadcast_to(q, (n, 2, 3)).copy()).float(),
        torch.from_numpy(rng.choice(3, size=(n, 2), p=q)),
        torch.zeros(n, dtype=torch.int64),
        torch.from_numpy(rng.random((n, 3, 2))),
    )
    assert int(accepted.max()) == 0
    assert chi_square_fits(np.bincount(final.numpy(), minlength=3), p)


def test_greedy_rows_beside_a_drafter_that_draws():
    """A greedy request accepts its argmax only, with probability drafts in the same batch."""
    logits = torch.log(torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.7, 0.2, 0.1], [0.1, 0.8, 0.1]]))
    verdict = judge(
        logits,
        Sequences(
            start=torch.tensor([0, 2]),
            admitted=torch.tensor([1, 1]),
            drafts=torch.tensor([[0], [1]]),
            draft_law=torch.full((2, 1, 3), 1 / 3),
            temperature=torch.zeros(2),
            top_p=torch.ones(2),
            noise=torch.rand(2, 2, 2, dtype=torch.float64),
        ),
        sampled=True,
    )
    assert verdict.accepted.tolist() == [1, 0]
    assert verdict.tokens[0].tolist() == [0, 1]
    assert verdict.tokens[1, 0] == 0
