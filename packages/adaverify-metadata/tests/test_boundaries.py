"""Boundaries that break their contract: believed on the decode path, refused in checked mode."""

import pytest
import torch

from adaverify_contracts import DecodeBatch, LayoutError, Limits
from adaverify_metadata import FlattenRowBuilder, PairedRowBuilder, VarlenRowBuilder

LIMITS = Limits(max_requests=4, draft_tokens=3, max_model_len=64, page_size=16)
BROKEN = {
    "starts elsewhere": [1, 4, 5, 9, 9],
    "falls": [0, 4, 3, 8, 8],
    "another total": [0, 3, 4, 7, 7],
    "a query longer than K + 1": [0, 5, 6, 8, 8],
    "far out": [0, 3, 10**9, 8, 8],
}


def batch_of(boundaries):
    tensor = torch.tensor(boundaries, dtype=torch.int32)
    lens = torch.tensor([10, 7, 12, 0], dtype=torch.int32)
    return DecodeBatch(tensor, lens, torch.zeros((4, LIMITS.table_width), dtype=torch.int32), 3, 8, 10, 4)


@pytest.mark.parametrize("kind", [FlattenRowBuilder, PairedRowBuilder, VarlenRowBuilder])
@pytest.mark.parametrize("boundaries", BROKEN.values(), ids=BROKEN)
def test_broken_boundaries_are_refused_in_checked_mode(kind, boundaries):
    """Rows of the wrong requests come out otherwise, without a word."""
    builder = kind("reference", LIMITS, "cpu", backend="torch", checked=True)
    with pytest.raises(LayoutError) as caught:
        builder.build(batch_of(boundaries))
    assert caught.value.remedy


def test_sound_boundaries_are_built():
    """The example of the documentation."""
    builder = FlattenRowBuilder("reference", LIMITS, "cpu", backend="torch", checked=True)
    rows = builder.build(batch_of([0, 3, 4, 8, 8]))
    assert rows.row_lens[:, 0].tolist() == [8, 9, 10, 7, 9, 10, 11, 12, 0, 0]


@pytest.mark.parametrize("batch", [None, "4", 3, [0, 1]])
def test_what_is_no_batch_is_refused(batch):
    """``build(None)`` was an AttributeError."""
    with pytest.raises(LayoutError, match="no batch"):
        FlattenRowBuilder("reference", LIMITS, "cpu", backend="torch").build(batch)
