"""The paired-units schedule: tables worked by hand (deepgemm section 8.3)."""

from __future__ import annotations

import pytest
import torch

from adaverify_contracts import LayoutError, Limits
from adaverify_metadata import PairedUnitsSchedule, schedule_paired_units
from adaverify_metadata.ops.paired_units.reference import pair_starts

INDICES = torch.tensor([0, 0, 0, 1, 2, 2], dtype=torch.int32)
LENS = torch.tensor([598, 599, 600, 0, 1000, 1001], dtype=torch.int32)


def test_rows_pair_up_greedily():
    """Units open at rows 0, 2, 3, 4."""
    assert pair_starts(INDICES).nonzero().flatten().tolist() == [0, 2, 3, 4]


def test_the_worked_tables():
    """n = 3, 3, 0, 4, then with max(len, 1)."""
    assert schedule_paired_units(LENS, 4, INDICES).tolist() == [[0, 0], [0, 2], [2, 1], [4, 1], [6, 0]]
    clamped = schedule_paired_units(LENS.clamp(min=1), 4, INDICES)
    assert clamped.tolist() == [[0, 0], [0, 2], [2, 2], [4, 1], [6, 0]]


def test_the_builder_needs_indices(kit):
    """It is a rule over runs, so lengths alone do not say what a unit is."""
    limits = Limits(max_requests=6, draft_tokens=0, max_model_len=1024, page_size=64)
    builder = PairedUnitsSchedule(limits, kit.device, 4)
    lens, indices = LENS[:, None].to(kit.device), INDICES.to(kit.device)
    assert builder.build(lens, indices).tolist() == [[0, 0], [0, 2], [2, 1], [4, 1], [6, 0]]
    with pytest.raises(LayoutError, match="need request indices"):
        builder.build(lens)
