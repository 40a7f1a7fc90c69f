"""Every width comes from one ceiling division, drafts included."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adaverify_contracts import Limits, LimitsError, ceil_div


def _limits(**changed):
    fields = {"max_requests": 4, "draft_tokens": 7, "max_model_len": 4096, "page_size": 64, **changed}
    return Limits(**fields)


def test_table_width_of_120001_tokens_on_pages_of_64_is_1876():
    """1875 columns against 1876: vllm #48404, lil-vllm #166."""
    assert _limits(max_model_len=120001, page_size=64, draft_tokens=0).table_width == 1876


@pytest.mark.parametrize(("drafts", "columns"), [(0, 16), (1, 17), (7, 17), (256, 17), (257, 18)])
def test_table_width_covers_the_drafts_of_the_longest_sequence(drafts, columns):
    """4096 plus K on pages of 256: 16 columns against 17, nano-vllm #190."""
    assert _limits(max_model_len=4096, page_size=256, draft_tokens=drafts).table_width == columns


@pytest.mark.parametrize(
    ("model_len", "ratio", "columns"),
    [(1, 4, 1), (3, 4, 1), (256, 4, 1), (259, 4, 1), (260, 4, 2), (1000, 1, 16)],
)
def test_table_width_follows_the_compressed_length(model_len, ratio, columns):
    sizes = _limits(max_model_len=model_len, compress_ratio=ratio, draft_tokens=0, page_size=64)
    assert sizes.table_width == columns


@given(
    model_len=st.integers(1, 10**6),
    drafts=st.integers(0, 20),
    page=st.integers(1, 512),
    ratio=st.integers(1, 16),
)
def test_table_width_is_the_least_that_holds_the_longest_row(model_len, drafts, page, ratio):
    sizes = _limits(max_model_len=model_len, draft_tokens=drafts, page_size=page, compress_ratio=ratio)
    longest = (model_len + drafts) // ratio
    assert sizes.table_width * page >= longest
    assert sizes.table_width == 1 or (sizes.table_width - 1) * page < longest


def test_context_parallelism_does_not_change_the_width():
    widths = {
        _limits(
            context_parallel_size=4, context_parallel_rank=rank, context_parallel_interleave=2
        ).table_width
        for rank in range(4)
    }
    assert widths == {_limits().table_width}


def test_derived_sizes():
    sizes = _limits()
    assert (sizes.max_query_len, sizes.max_tokens, sizes.max_kv_len) == (8, 32, 4103)
    assert (_limits(draft_tokens=0).max_query_len, _limits(max_requests=1).max_tokens) == (1, 8)


@pytest.mark.parametrize(
    ("field", "lowest"),
    [
        ("max_requests", 1),
        ("draft_tokens", 0),
        ("max_model_len", 1),
        ("page_size", 1),
        ("compress_ratio", 1),
        ("context_parallel_size", 1),
        ("context_parallel_rank", 0),
        ("context_parallel_interleave", 1),
    ],
)
def test_each_field_has_its_lowest_value_and_must_be_an_int(field, lowest):
    assert getattr(_limits(**{field: lowest}), field) == lowest
    for bad in (lowest - 1, float(lowest), str(lowest), True, None):
        with pytest.raises(LimitsError, match=rf"Limits\.{field}") as caught:
            _limits(**{field: bad})
        assert caught.value.arrived == bad
        assert caught.value.allowed == f"an int >= {lowest}"


@pytest.mark.parametrize(("size", "rank"), [(1, 1), (2, 2), (4, 7)])
def test_a_rank_outside_its_group_is_refused(size, rank):
    with pytest.raises(LimitsError, match="not a rank") as caught:
        _limits(context_parallel_size=size, context_parallel_rank=rank)
    assert caught.value.allowed == f"0 .. {size - 1}"


def test_lengths_that_do_not_fit_an_int32_are_refused():
    assert _limits(max_model_len=2**31 - 8, draft_tokens=7).max_kv_len == 2**31 - 1
    with pytest.raises(LimitsError, match="int32"):
        _limits(max_model_len=2**31 - 7, draft_tokens=7)


def test_limits_are_frozen_and_hashable():
    sizes = _limits()
    with pytest.raises(dataclasses.FrozenInstanceError):
        sizes.page_size = 32
    assert {sizes: 1}[_limits()] == 1


@given(value=st.integers(0, 10**12), divisor=st.integers(1, 10**6))
def test_ceil_div_is_exact(value, divisor):
    result = ceil_div(value, divisor)
    assert (result - 1) * divisor < value <= result * divisor


@pytest.mark.parametrize(
    ("requests", "drafts", "fits"),
    [(2**31 - 1, 0, True), (2**31, 0, False), (2**29, 3, False), (2**29 - 1, 3, True), (10**9, 3, False)],
)
def test_a_step_has_no_more_tokens_than_int32_boundaries_count(requests, drafts, fits):
    """The exact end, one more, and a billion requests: query_start_loc would wrap."""
    sizes = {"max_requests": requests, "draft_tokens": drafts, "max_model_len": 64, "page_size": 16}
    if fits:
        assert Limits(**sizes).max_tokens <= 2**31 - 1
        return
    with pytest.raises(LimitsError, match="int32 boundaries") as caught:
        Limits(**sizes)
    assert caught.value.arrived == requests * (drafts + 1)


@pytest.mark.parametrize("field", [item.name for item in dataclasses.fields(Limits)])
@pytest.mark.parametrize("value", [2**31, 10**30, None, "4", 4.0, True, [4]])
def test_every_field_is_an_int_that_kernels_can_read(field, value):
    """A page of 10**30 tokens was accepted, and ended in an allocation of its size."""
    sizes = {"max_requests": 4, "draft_tokens": 3, "max_model_len": 64, "page_size": 16, field: value}
    with pytest.raises(LimitsError) as caught:
        Limits(**sizes)
    assert caught.value.allowed
    assert caught.value.remedy
