"""The adapter: what it hands over, what it refuses, and that refusals come before the call."""

import dataclasses

import pytest
import torch

from adaverify_contracts import CapabilityError, GraphError, LayoutError, Limits
from adaverify_metadata import VarlenRowBuilder, relative_errors
from adaverify_sm100_varlen.deep_gemm import adapter as module
from adaverify_sm100_varlen.deep_gemm.adapter import PagedMqaLogits
from adaverify_sm100_varlen.deep_gemm.versions import (
    CONTRACTS,
    HEAD,
    KNOWN_VERSIONS,
    NEWER,
    PAIRED,
    PINNED,
    known_version,
)
from adaverify_sm100_varlen.pages import UNIT_SCALE

MINUS = float("-inf")
VERSIONS = {"head": "2.6.1", "paired": PINNED, "newer": "2.8.2"}
# These tests run on CPU tensors: where a GPU is, kernels are compiled, and a compiled one refuses them.
BACKEND = "torch" if torch.cuda.is_available() else "triton"
SIZES = {"heads": 64, "head_dim": 128, "page_size": 64, "device": "cpu", "backend": BACKEND}
REQUESTS = [(3, 70), (2, 9)]


@pytest.fixture
def library(kit):
    return kit.library(PINNED)


@pytest.fixture
def logits(library):
    return PagedMqaLogits(library, **SIZES)


@pytest.fixture
def checked(library):
    return PagedMqaLogits(library, **SIZES, checked=True)


def change(call, **values):
    return dataclasses.replace(call, **values)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_values_are_the_reference_and_everything_else_is_minus_infinity(kit, contract):
    logits = PagedMqaLogits(kit.library(VERSIONS[contract.name]), **SIZES)
    call = kit.call(contract, [(2, 1), (1, 0), (5, 70), (3, 130)], padding=2, width=130)
    got = logits(call).float()
    want = kit.reference(contract, call)
    assert got.shape == want.shape == (13, 130)
    assert torch.equal(got == MINUS, want == MINUS)
    assert relative_errors(got, want).max() < (8e-3 if contract is NEWER else 1e-6)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)
def test_both_calls_pass_the_same_indices_by_keyword(kit, contract):
    """In one of them alone they hang the kernel (vllm #55270)."""
    library = kit.library(VERSIONS[contract.name])
    logits = PagedMqaLogits(library, **SIZES)
    call = kit.call(contract, REQUESTS)
    schedule = logits.schedule(call.row_lens.clamp(min=1), call.request_indices)
    logits(change(call, schedule=schedule))
    assert [name for name, _, _ in library.calls] == ["metadata", "logits"]
    for _, _, keywords in library.calls:
        assert list(keywords) == ["indices"]
        assert keywords["indices"] is call.request_indices


def test_warm_up_passes_indices_too(library, logits):
    logits.warm_up()
    ((name, arguments, keywords),) = library.calls
    assert name == "logits" and len(arguments) == 7
    assert keywords["indices"].tolist() == [0]


def test_the_call_is_seven_positional_arguments_with_q_in_a_tuple(kit, library, logits):
    """A bare q breaks captures; the eighth argument means different things in different versions."""
    call = kit.call(PAIRED, REQUESTS)
    logits(call)
    ((_, (pair, *rest), _),) = library.calls
    assert pair[0] is call.q and pair[1] is None
    assert len(rest) == 6
    assert rest[-1] == call.max_context_len and rest[2].dim() == 2


def test_the_newer_builds_get_a_constant_query_scale_of_one(kit):
    """Four exponents of 2^0; made once, so that a call allocates none."""
    library = kit.library("2.8.2")
    logits = PagedMqaLogits(library, **SIZES)
    for _ in range(2):
        logits(kit.call(NEWER, REQUESTS))
    scales = [arguments[0][1] for _, arguments, _ in library.calls]
    assert scales[0].shape == (6, 1, 64) and scales[0].dtype == torch.int32
    assert bool((scales[0] == UNIT_SCALE).all())
    assert scales[0].data_ptr() == scales[1].data_ptr()


@pytest.mark.parametrize(("requests", "padding", "width"), [([], 0, 64), (REQUESTS, 1, 0), ([], 0, 0)])
def test_no_rows_or_no_width_is_an_empty_result_without_a_call(
    kit, library, logits, requests, padding, width
):
    """The library's behaviour is undefined there (deepgemm section 9e)."""
    call = kit.call(PAIRED, requests, padding=padding, width=width)
    assert logits(call).shape == (len(call.q), width)
    assert library.calls == []


@pytest.mark.parametrize(
    ("version", "sizes", "word"),
    [
        (PINNED, {"heads": 8}, "heads 8"),
        (PINNED, {"heads": 128}, "heads 128"),
        ("2.8.2", {"heads": 30}, "heads 30"),
        ("2.8.2", {"head_dim": 32}, "head_dim 32"),
        (PINNED, {"head_dim": 256}, "head_dim 256"),
        (PINNED, {"page_size": 128}, "page size 128"),
        (PINNED, {"page_size": 2}, "page size 2"),
        ("2.6.1", {"page_size": 256}, "page size 256"),
    ],
)
def test_sizes_that_the_build_does_not_take_are_refused_when_the_adapter_is_made(kit, version, sizes, word):
    """vllm #53635: page sizes that failed deep inside."""
    with pytest.raises(LayoutError, match=word):
        PagedMqaLogits(kit.library(version), **SIZES | sizes)


def transposed(tensor):
    """Return equal values, stored the other way round."""
    plain = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
    return plain.transpose(-1, -2).contiguous().transpose(-1, -2).view(tensor.dtype)


def odd_address(tensor):
    return torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape)


def one_page_twice(tensor):
    return tensor.as_strided(tensor.shape, (0, 132, 132, 1))


@pytest.mark.parametrize(
    ("field", "spoil", "word"),
    [
        ("q", lambda x: x.float(), "wrong dtype"),
        ("q", lambda x: x.float().to(torch.float8_e5m2), "wrong dtype"),
        ("q", lambda x: x[:, 0], "wrong shape"),
        ("q", lambda x: x.view(torch.uint8).repeat(1, 2, 1, 1).view(x.dtype), "wrong shape"),
        ("q", transposed, "not contiguous"),
        ("kv", lambda x: x.view(torch.int8), "wrong dtype"),
        ("kv", lambda x: x[:, :, 0], "wrong shape"),
        ("kv", lambda x: x[:, :32], "wrong shape"),
        ("kv", odd_address, "lie wrongly"),
        ("kv", one_page_twice, "lie wrongly"),
        ("weights", lambda x: x.bfloat16(), "wrong dtype"),
        ("weights", lambda x: x[:1], "wrong shape"),
        ("weights", transposed, "not contiguous"),
        ("row_lens", lambda x: x.long(), "wrong dtype"),
        ("row_lens", lambda x: x.flatten(), "wrong shape"),
        ("block_table", lambda x: x.long(), "wrong dtype"),
        ("block_table", lambda x: x[:1], "wrong shape"),
        ("block_table", lambda x: x.repeat(1, 2)[:, ::2], "not dense"),
        ("request_indices", lambda x: x.long(), "wrong dtype"),
        ("request_indices", lambda x: x[:-1], "wrong shape"),
        ("request_indices", lambda x: x[:, None], "wrong shape"),
        ("request_indices", lambda x: x.repeat(2)[::2], "not contiguous"),
        ("request_indices", odd_address, "lie wrongly"),
        ("schedule", lambda x: x[:-1], "wrong shape"),
        ("schedule", lambda x: x.long(), "wrong dtype"),
        ("max_context_len", lambda x: 10**6, "max_context_len"),
        ("max_context_len", lambda x: -1, "max_context_len"),
        ("weights", lambda x: x.to("meta"), "another device"),
        ("q", lambda x: x.to("meta"), "q does not fit this adapter"),
    ],
)
def test_layouts_are_refused_before_the_call(kit, library, logits, field, spoil, word):
    """The library checks no devices and reports the rest as an assertion with a file and a line."""
    call = kit.call(PAIRED, REQUESTS, width=128)
    with pytest.raises(LayoutError, match=word) as caught:
        logits(change(call, **{field: spoil(getattr(call, field))}))
    assert caught.value.allowed and caught.value.remedy
    assert library.calls == []


def test_weights_of_another_builds_dtype_are_refused(kit):
    """float32 in one build, bfloat16 in the next; misread, not refused, by the library."""
    logits = PagedMqaLogits(kit.library("2.8.2"), **SIZES)
    call = kit.call(NEWER, REQUESTS)
    with pytest.raises(LayoutError, match=r"weights has the wrong dtype.*bfloat16"):
        logits(change(call, weights=call.weights.float()))


def test_a_slice_of_wide_lengths_is_refused(kit, logits):
    """vllm #40987: context_lens = wide[:, :k]."""
    call = kit.call(PAIRED, REQUESTS)
    with pytest.raises(LayoutError, match="row_lens is not contiguous"):
        logits(change(call, row_lens=call.row_lens.repeat(1, 2)[:, :1]))


def test_pages_may_lie_apart_and_the_table_may_have_a_wider_row_stride(kit, logits):
    call = kit.call(PAIRED, REQUESTS, width=128, apart=48)
    assert not call.kv.is_contiguous()
    padded = torch.full((6, 7), 10**9, dtype=torch.int32)
    padded[:, :2] = call.block_table
    got = logits(change(call, block_table=padded[:, :2]))
    assert torch.equal(got, logits(kit.call(PAIRED, REQUESTS, width=128)))


def test_too_many_rows_are_refused(kit, library):
    """Builds failed above limits that nobody had written down (sglang #25484)."""
    few = PagedMqaLogits(library, **SIZES, max_rows=5)
    with pytest.raises(LayoutError, match="at most 5 rows"):
        few(kit.call(PAIRED, REQUESTS))
    assert few(kit.call(PAIRED, REQUESTS, padding=0)).shape[0] == 5
    assert PagedMqaLogits(library, **SIZES, max_rows=10**6)._max_rows == PAIRED.max_rows


@pytest.mark.parametrize(
    ("field", "at", "value", "word"),
    [
        ("row_lens", (0, 0), -1, "misreads"),
        ("row_lens", (2, 0), 200, "misreads"),
        ("row_lens", (1, 0), 3, "misreads"),
        ("block_table", (slice(3), 1), 99, "not there"),
        ("block_table", (5, 0), -1, None),
        ("block_table", (1, 0), 0, "name different pages"),
        ("request_indices", (3,), 0, "misreads"),
    ],
)
def test_checked_mode_refuses_values(kit, library, checked, field, at, value, word):
    """vllm #56771: a bounds check in checked mode; -1 would be read as 4294967295.

    Decreasing lengths in a run, two requests under one id (deepgemm 9g) and pages that are not there too; a
    padding row reads no page.
    """
    call = kit.call(PAIRED, REQUESTS, width=128)
    spoilt = getattr(call, field).clone()
    spoilt[at] = value
    if word is None:
        checked(change(call, **{field: spoilt}))
        return
    with pytest.raises(LayoutError, match=word):
        checked(change(call, **{field: spoilt}))
    assert library.calls == []


def test_checked_mode_looks_at_pages_of_the_first_row_up_to_the_end_of_the_run(kit, checked):
    """The kernel reads the first row's table up to the last row's length, whatever the first row needs."""
    call = kit.call(PAIRED, [(3, 65)], padding=0, width=128)
    assert call.row_lens.flatten().tolist() == [63, 64, 65]
    later = call.block_table.clone()
    later[1:, 1] = 2**30
    checked(change(call, block_table=later))
    first = call.block_table.clone()
    first[0, 1] = 2**30
    with pytest.raises(LayoutError, match="not there"):
        checked(change(call, block_table=first))


def test_slots_come_from_one_question(library, logits):
    """set_num_sms after the adapter was made must not tear schedule and call apart (deepgemm 9h)."""
    library._processors = 8
    assert logits.slots == 148
    ids = torch.zeros(3, dtype=torch.int32)
    assert logits.schedule(torch.ones(3, 1, dtype=torch.int32), ids).shape == (149, 2)


def test_a_library_of_another_generation_is_refused(library):
    """2.1.1 has the old call only, with one-dimensional lengths."""

    class Old:
        __version__ = "2.1.1.post3"
        get_num_sms = library.get_num_sms
        get_paged_mqa_logits_metadata = library.get_paged_mqa_logits_metadata

    with pytest.raises(CapabilityError, match="fp8_fp4_paged_mqa_logits"):
        PagedMqaLogits(Old(), **SIZES)


def test_an_unlisted_version_is_refused(library):
    """Its split, rule and dtypes are not known, and a wrong one runs away or is misread."""
    library.__version__ = "9.9"
    with pytest.raises(CapabilityError, match="this build is not listed") as caught:
        PagedMqaLogits(library, **SIZES)
    assert PINNED in caught.value.allowed


def test_the_version_table():
    """Nothing is verified: nobody here has executed a build on this architecture."""
    assert [line.version for line in KNOWN_VERSIONS.values() if line.verified] == []
    assert known_version(PINNED).contract is PAIRED
    assert known_version("2.6.1+8caa1e5").contract is HEAD
    assert known_version("0") is None


def test_a_first_call_inside_a_capture_is_refused(kit, library, logits, monkeypatch):
    """It would compile there (deepgemm 9n)."""
    monkeypatch.setattr(PagedMqaLogits, "_capturing", lambda self: True)
    call = kit.call(PAIRED, REQUESTS)
    with pytest.raises(GraphError, match="call warm_up before the capture"):
        logits(call)
    assert library.calls == []
    logits.warm_up()
    assert logits(call).shape == (6, 70)


def test_rows_without_indices_or_schedule_are_refused(kit, library, logits):
    limits = Limits(max_requests=2, draft_tokens=3, max_model_len=100, page_size=64)
    rows = VarlenRowBuilder("varlen", limits, "cpu", backend="torch").build(
        kit.batch([3, 2], [20, 9], 6, limits)
    )
    call = kit.call(PAIRED, REQUESTS)
    with pytest.raises(LayoutError, match="carry no schedule or no request indices"):
        logits.rows(call.q, call.kv, call.weights, rows, 100)
    assert library.calls == []


def test_a_missing_library_is_a_typed_error_with_the_cause(monkeypatch):
    """DeepGEMM raises an AssertionError without text where no CUDA toolkit is found."""
    import sys

    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name == "deep_gemm":
                raise AssertionError

    monkeypatch.delitem(sys.modules, "deep_gemm", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    with pytest.raises(CapabilityError, match="AssertionError: no message"):
        module.import_library()
