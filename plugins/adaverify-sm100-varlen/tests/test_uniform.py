"""Uniform batches in the chip's rows."""

from dataclasses import fields, replace

import pytest
import torch

from adaverify_capability import assume
from adaverify_contracts import LayoutError, Limits
from adaverify_sm100_varlen import hooks

LIMITS = Limits(max_requests=4, draft_tokens=7, max_model_len=300, page_size=64)


@pytest.fixture
def builders():
    """Return (uniform, ragged) builders of the plugin."""
    ragged, uniform = hooks.adaverify_register_decode_strategies()
    capability = assume("sm100", ["triton"])
    return [item.allocate(LIMITS, torch.device("cpu"), capability) for item in (uniform, ragged)]


@pytest.mark.parametrize("length", [1, 3, 8])
def test_rows_are_those_of_varlen(kit, builders, length):
    """Schedule and indices included, so that one adapter reads both."""
    batch = kit.batch([length] * 3, [5, 200, 90], 3 * length + 2, LIMITS)
    got, want = builders[0].build(replace(batch, uniform_query_len=length)), builders[1].build(batch)
    assert (got.strategy, got.tokens_per_row) == ("uniform-varlen", 1)
    for field in fields(want):
        value = getattr(want, field.name)
        if isinstance(value, torch.Tensor):
            assert torch.equal(getattr(got, field.name), value), field.name


@pytest.mark.parametrize(("query", "uniform"), [([3, 1], None), ([9, 9], 9)])
def test_a_ragged_or_too_long_batch_is_refused(kit, builders, query, uniform):
    wider = Limits(max_requests=4, draft_tokens=8, max_model_len=299, page_size=64)
    batch = replace(kit.batch(query, [5, 9], sum(query), wider), uniform_query_len=uniform)
    with pytest.raises(LayoutError, match="'uniform-varlen' cannot build this batch"):
        builders[0].build(batch)
