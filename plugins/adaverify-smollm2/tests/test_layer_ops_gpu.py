"""The compiled launches of a layer against torch on a card, and a model that uses them."""

from __future__ import annotations

import pytest
import torch

from adaverify_contracts import ModelOptions
from adaverify_smollm2 import load_model_file
from adaverify_smollm2.layer_ops import FusedOps, PlainOps
from adaverify_smollm2.rope import rotary_table

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
EPS = 1e-5
DTYPES = (torch.float32, torch.bfloat16)
# Of values computed in float32: other orders and exponentials there, one rounding in bfloat16.
RTOL = {torch.float32: 3e-6, torch.bfloat16: 2**-8}


def both(dim):
    turns = rotary_table(8192, dim, 1e5, torch.device("cuda"))
    return PlainOps(turns, EPS), FusedOps(turns, EPS)


def close(found, exact):
    torch.testing.assert_close(found.float(), exact, rtol=RTOL[found.dtype], atol=3e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("tokens", "turned", "left", "dim"), [(1, 12, 3, 64), (515, 12, 3, 64), (33, 5, 0, 80)]
)
def test_heads_turn_where_they_lie(tokens, turned, left, dim, dtype):
    plain, fused = both(dim)
    mixed = torch.randn(tokens, turned + left, dim, device="cuda", dtype=dtype)
    values = mixed[:, turned:].clone()
    positions = torch.randint(0, 8192, (tokens,), device="cuda")
    exact = plain.turn(mixed.float(), plain.located(positions), turned)
    close(fused.turn(mixed, positions, turned), exact)
    assert torch.equal(mixed[:, turned:], values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "width"), [(1, 576), (515, 576), (4096, 576), (3, 4096), (5, 100)])
def test_a_join_is_the_sum_and_its_norm(tokens, width, dtype):
    plain, fused = both(64)
    hidden, added = (torch.randn(tokens, width, device="cuda", dtype=dtype) for _ in range(2))
    weight = torch.randn(width, device="cuda", dtype=dtype)
    joined, normed = fused.join(hidden * 30, added, weight)
    assert torch.equal(joined, hidden * 30 + added)
    close(normed, plain.norm(joined.float(), weight.float()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "inner"), [(1, 1536), (515, 1536), (4096, 1536), (7, 513)])
def test_a_gate_is_silu_times_up(tokens, inner, dtype):
    plain, fused = both(64)
    gate_up = torch.randn(tokens, 2 * inner, device="cuda", dtype=dtype) * 4
    close(fused.gate(gate_up), plain.gate(gate_up.float()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_on_a_card_uses_them_and_gives_what_torch_gives_there(tiny_path, dense_attend, dtype):
    model = load_model_file(tiny_path, ModelOptions(device="cuda", dtype=dtype), name="tiny").model
    assert model.layer_ops_kind == "fused"
    tokens, positions = torch.tensor([1, 7, 260, 19, 2], device="cuda"), torch.arange(5, device="cuda")
    found = model.forward(tokens, positions, dense_attend())
    model._ops = PlainOps(model._ops._turns, EPS)
    expected = model.forward(tokens, positions, dense_attend())
    limit = 1e-5 if dtype == "float32" else 0.02
    assert ((found - expected).float().norm() / expected.float().norm()).item() < limit


def test_a_row_does_not_depend_on_the_others():
    """Bit for bit: the modes verify different rows together."""
    _, fused = both(64)
    hidden, added = (torch.randn(7, 576, device="cuda") for _ in range(2))
    weight = torch.randn(576, device="cuda")
    joined, normed = fused.join(hidden, added, weight)
    gated = fused.gate(hidden)
    for row in range(7):
        one = slice(row, row + 1)
        alone = fused.join(hidden[one], added[one], weight)
        assert torch.equal(alone[0], joined[one])
        assert torch.equal(alone[1], normed[one])
        assert torch.equal(fused.gate(hidden[one]), gated[one])
