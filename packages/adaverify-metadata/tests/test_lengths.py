"""Compression and localisation against their definitions."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from adaverify_contracts import Limits
from adaverify_metadata import compress_lens, localize_lens
from adaverify_metadata.reference import local_lens


@given(st.integers(1, 5), st.integers(1, 7))
def test_local_lengths_count_the_positions_of_a_rank(size, interleave):
    """Position p lives on rank (p // interleave) % size; the ranks together hold everything."""
    lens = torch.arange(-2, 60)
    counts = [localize_lens(lens, size, rank, interleave) for rank in range(size)]
    for rank, count in enumerate(counts):
        want = [sum((p // interleave) % size == rank for p in range(max(0, n))) for n in range(-2, 60)]
        assert count.tolist() == want
    assert torch.equal(sum(counts), lens.clamp(min=0))


def test_compression_rounds_down_and_clamps():
    """Lengths -1, 0, 3, 4, 7, 8 at ratio 4."""
    assert compress_lens(torch.tensor([-1, 0, 3, 4, 7, 8]), 4).tolist() == [0, 0, 0, 1, 1, 2]


def test_compression_comes_before_localisation():
    """18 tokens at ratio 4 are 4 entries; rank 0 of 2 holds entries 0 and 2."""
    limits = Limits(1, 0, 32, 4, compress_ratio=4, context_parallel_size=2)
    assert local_lens(torch.tensor([18]), limits).tolist() == [2]


def test_the_largest_length_does_not_overflow():
    """2^31 - 1 tokens in int32."""
    lens = torch.tensor([2**31 - 1], dtype=torch.int32)
    assert compress_lens(lens, 1).tolist() == [2**31 - 1]
    assert localize_lens(lens, 2, 0).tolist() == [2**30]
