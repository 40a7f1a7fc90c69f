"""Waits for a device that are refused, on a device."""

from __future__ import annotations

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_wait_raises_inside_and_not_behind(refusing_waits):
    """Work is queued all the same, and a block that raised leaves nothing behind."""
    values = torch.ones(4, device="cuda")
    with refusing_waits():
        doubled = values * 2
    assert doubled.tolist() == [2.0] * 4
    with pytest.raises(RuntimeError, match="synchronizing"), refusing_waits():
        values.tolist()
    assert values.tolist() == [1.0] * 4
