"""Packed products: right values, and in float32 the same bits for a row in any company."""

from __future__ import annotations

import pytest
import torch

from adaverify_smollm2.projection import DenseProjection, PackedProjection, make_projection, packing_refusal

CPU = torch.device("cpu")
# The four products of a SmolLM2 layer, [out, in].
SHAPES = [(960, 576), (576, 576), (3072, 576), (576, 1536)]
# Largest error over the row's norm: one rounding of the output in bfloat16, sums of 1536 terms in float32.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8}


def packable(dtype):
    reason = packing_refusal(CPU, dtype)
    return pytest.mark.skipif(reason is not None, reason=str(reason))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(torch.float32, marks=packable(torch.float32)),
        pytest.param(torch.bfloat16, marks=packable(torch.bfloat16)),
    ],
)
def test_packed_and_dense_match_float64(shape, dtype):
    """Both forms against an exact product of the same rounded inputs."""
    generator = torch.Generator().manual_seed(1)
    weight = (torch.randn(shape, generator=generator) * shape[1] ** -0.5).to(dtype)
    for count in (1, 3, 8, 33):
        rows = torch.randn(count, shape[1], generator=generator).to(dtype)
        exact = rows.double() @ weight.double().t()
        for packed in (False, True):
            product = make_projection(weight, packed=packed)(rows)
            assert product.dtype == dtype
            error = (product.double() - exact).norm(dim=-1) / exact.norm(dim=-1)
            assert error.max() < TOLERANCE[dtype]


@packable(torch.float32)
@pytest.mark.parametrize("shape", SHAPES)
def test_float32_rows_do_not_depend_on_their_company(shape):
    """Bit for bit, for every count that decode steps have: else greedy output would vary with the plan."""
    generator = torch.Generator().manual_seed(2)
    project = PackedProjection(torch.randn(shape, generator=generator))
    rows = torch.randn(72, shape[1], generator=generator)
    together = project(rows)
    for count in (*range(1, 18), 31, 32, 33, 64, 65):
        start = 72 - count
        assert torch.equal(project(rows[start:].contiguous()), together[start:]), count


@pytest.mark.parametrize("kind", [DenseProjection, PackedProjection])
def test_no_rows_give_no_rows(kind):
    """An empty step is ordinary."""
    assert kind(torch.ones(32, 16))(torch.ones(0, 16)).shape == (0, 32)


def test_refusal_names_the_device():
    """Packing is a CPU matter; elsewhere the answer is a reason, not an exception."""
    assert "cuda" in (packing_refusal(torch.device("cuda"), torch.float32) or "")


def test_refusal_when_values_are_wrong(monkeypatch):
    """An operator that runs but lies is refused: it was executed, not merely found."""
    monkeypatch.setattr(PackedProjection, "__call__", lambda self, rows: torch.zeros(rows.shape[0], 24))
    assert packing_refusal(CPU, torch.float32) == "oneDNN's packed product gave wrong values"
