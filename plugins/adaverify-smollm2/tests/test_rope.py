"""Rotary encoding."""

from __future__ import annotations

import pytest
import torch

from adaverify_smollm2.rope import rotary_table, rotate


def test_worked_example():
    """Two pairs, base 100: frequencies 1 and 0.1; position 2 turns them by 2 and 0.2 radians."""
    turns = rotary_table(3, 4, 100.0, torch.device("cpu"))
    heads = torch.tensor([[[1.0, 0.0, 0.0, 1.0]]])
    turned = rotate(heads, turns[torch.tensor([2])])
    angles = torch.tensor([2.0, 0.2])
    wanted = torch.tensor([angles[0].cos(), angles[0].sin(), -angles[1].sin(), angles[1].cos()])
    torch.testing.assert_close(turned.flatten(), wanted)


def test_position_zero_changes_nothing():
    """Exactly, in both dtypes."""
    turns = rotary_table(1, 64, 1e5, torch.device("cpu"))
    for dtype in (torch.float32, torch.bfloat16):
        heads = torch.randn(5, 3, 64).to(dtype)
        assert torch.equal(rotate(heads, turns[torch.zeros(5, dtype=torch.long)]), heads)


def test_products_depend_on_distance_only():
    """A query at 8000 sees a key at 7990 as one at 20 sees a key at 10: the table is exact far out."""
    turns = rotary_table(8192, 64, 1e5, torch.device("cpu"))
    query, key = torch.randn(1, 1, 64), torch.randn(1, 1, 64)

    def product(at_query: int, at_key: int) -> torch.Tensor:
        return (rotate(query, turns[[at_query]]) * rotate(key, turns[[at_key]])).sum()

    torch.testing.assert_close(product(20, 10), product(8000, 7990), rtol=0, atol=2e-5)


def test_gradients_pass_through_the_turn():
    """A drafter is trained through it; some views of another dtype end a gradient without a word."""
    turns = rotary_table(8, 8, 10000.0, torch.device("cpu"))[[5]]
    heads = torch.randn(1, 1, 8, requires_grad=True)
    rotate(heads, turns)[0, 0, 0].backward()
    assert heads.grad is not None
    assert heads.grad[0, 0, :2].norm().item() == pytest.approx(1.0)
    assert not heads.grad[0, 0, 2:].any()
