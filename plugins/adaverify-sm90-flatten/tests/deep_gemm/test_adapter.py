"""The adapter: what it hands over, what it refuses, and that refusals come before the call."""

import dataclasses

import pytest
import torch

from adaverify_contracts import CapabilityError, GraphError, LayoutError
from adaverify_metadata.paged_logits import paged_mqa_logits_reference, relative_errors
from adaverify_sm90_flatten.deep_gemm import adapter as module
from adaverify_sm90_flatten.deep_gemm.adapter import PagedMqaLogits
from adaverify_sm90_flatten.deep_gemm.versions import COMMON, KNOWN_VERSIONS, PINNED, known_version

MINUS = float("-inf")
# These tests run on CPU tensors: where a GPU is, kernels are compiled, and a compiled one refuses them.
BACKEND = "torch" if torch.cuda.is_available() else "triton"


@pytest.fixture
def library(kit):
    return kit.library()


@pytest.fixture
def checked(library):
    options = {"heads": 64, "head_dim": 128, "page_size": 64, "backend": BACKEND}
    return PagedMqaLogits(library, **options, device="cpu", checked=True)


@pytest.fixture
def logits(library):
    return PagedMqaLogits(library, heads=64, head_dim=128, page_size=64, device="cpu", backend=BACKEND)


def change(call, **values):
    return dataclasses.replace(call, **values)


@pytest.mark.parametrize("tokens", [1, 2])
def test_values_are_the_reference_and_everything_else_is_minus_infinity(kit, logits, tokens):
    call = kit.call([0, 1, 70, 130, 0], tokens=tokens, width=130)
    got = logits(call)
    arguments = (call.q, call.kv, call.weights, call.row_lens, call.block_table, call.max_context_len)
    want = paged_mqa_logits_reference(*arguments)
    assert got.shape == want.shape == (5 * tokens, 130)
    assert torch.equal(got == MINUS, want == MINUS)
    assert relative_errors(got, want).max() == 0


def test_the_call_is_seven_positional_arguments_with_q_in_a_tuple(kit, library, logits):
    """A bare q breaks captures; the eighth argument means different things in different versions."""
    call = kit.call([5, 9])
    logits(call)
    ((pair, *rest),) = library.calls
    assert pair[0] is call.q and pair[1] is None
    assert len(rest) == 6
    assert rest[-1] == call.max_context_len and rest[2].dim() == 2


@pytest.mark.parametrize(("rows", "width"), [(0, 64), (3, 0), (0, 0)])
def test_no_rows_or_no_width_is_an_empty_result_without_a_call(kit, library, logits, rows, width):
    """The library's behaviour is undefined there (deepgemm section 9e)."""
    call = kit.call([0] * rows, width=width)
    assert logits(call).shape == (rows, width)
    assert library.calls == []


@pytest.mark.parametrize("tokens", [3, 8, 5])
def test_tokens_a_row_are_refused_by_name(kit, library, logits, tokens):
    """vllm #43457: an assertion deep inside; eight fails even earlier, with a driver error."""
    with pytest.raises(LayoutError, match="allowed: 1, 2, 4") as caught:
        logits(kit.call([9, 9], tokens=tokens))
    assert caught.value.arrived == tokens
    assert library.calls == []


@pytest.mark.parametrize(
    ("sizes", "word"),
    [
        ({"heads": 16}, "heads 16"),
        ({"heads": 128}, "heads 128"),
        ({"head_dim": 64}, "head_dim 64"),
        ({"page_size": 32}, "page size 32"),
        ({"page_size": 2}, "page size 2"),
        ({"page_size": 256}, "page size 256"),
    ],
)
def test_sizes_that_were_not_executed_are_refused_when_the_adapter_is_made(library, sizes, word):
    """vllm #53635: page sizes that failed deep inside."""
    with pytest.raises(LayoutError, match=word):
        PagedMqaLogits(library, **{"heads": 64, "head_dim": 128, "page_size": 64, "device": "cpu"} | sizes)


def transposed(tensor):
    """Return equal values, stored the other way round."""
    plain = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
    return plain.transpose(-1, -2).contiguous().transpose(-1, -2).view(tensor.dtype)


def odd_address(tensor):
    return torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape)


def one_page_twice(tensor):
    return tensor.as_strided((2, 64, 1, 132), (0, 132, 132, 1))


@pytest.mark.parametrize(
    ("field", "spoil", "word"),
    [
        ("q", lambda x: x.float(), "wrong dtype"),
        ("q", lambda x: x.float().to(torch.float8_e5m2), "wrong dtype"),
        ("q", lambda x: x[:, 0], "wrong shape"),
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
        ("schedule", lambda x: x[:-1], "wrong shape"),
        ("schedule", lambda x: x.long(), "wrong dtype"),
        ("max_context_len", lambda x: 10**6, "max_context_len"),
        ("max_context_len", lambda x: -1, "max_context_len"),
        ("weights", lambda x: x.to("meta"), "another device"),
        ("q", lambda x: x.to("meta"), "not on the adapter's device"),
    ],
)
def test_layouts_are_refused_before_the_call(kit, library, logits, field, spoil, word):
    """The library checks no devices and reports the rest as an assertion with a file and a line."""
    call = kit.call([70, 9], width=128)
    with pytest.raises(LayoutError, match=word) as caught:
        logits(change(call, **{field: spoil(getattr(call, field))}))
    assert caught.value.allowed and caught.value.remedy
    assert library.calls == []


def test_a_slice_of_wide_lengths_is_refused(kit, logits):
    """vllm #40987: context_lens = wide[:, :k]."""
    call = kit.call([9, 9], tokens=2)
    lens = torch.cat([call.row_lens, call.row_lens], dim=1)[:, :2]
    with pytest.raises(LayoutError, match="row_lens is not contiguous"):
        logits(change(call, row_lens=lens))


def test_pages_may_lie_apart_and_the_table_may_have_a_wider_row_stride(kit, logits):
    call = kit.call([70, 9], width=128, apart=48)
    assert not call.kv.is_contiguous()
    padded = torch.full((2, 7), 10**9, dtype=torch.int32)
    padded[:, :2] = call.block_table
    got = logits(change(call, block_table=padded[:, :2]))
    dense = kit.call([70, 9], width=128)
    assert torch.equal(got, logits(dense))


def test_too_many_rows_are_refused(kit, logits):
    """Builds failed above limits that nobody had written down (sglang #25484)."""
    call = kit.call([1])
    many = COMMON.max_rows + 1
    call = change(
        call,
        q=torch.zeros(many, 1, 64, 128, dtype=torch.uint8).view(torch.float8_e4m3fn),
        weights=torch.zeros(many, 64),
        row_lens=torch.ones(many, 1, dtype=torch.int32),
        block_table=torch.zeros(many, 1, dtype=torch.int32),
    )
    with pytest.raises(LayoutError, match="too many rows"):
        logits(call)


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("row_lens", [[-1], [9]], "misreads"),
        ("row_lens", [[200], [9]], "misreads"),
        ("block_table", [[0, 99], [0, 0]], "not there"),
        ("block_table", [[-1, 0], [0, 0]], "not there"),
    ],
)
def test_checked_mode_refuses_values(kit, library, checked, field, value, word):
    """vllm #56771: a bounds check in checked mode; -1 would be read as 4294967295."""
    call = kit.call([70, 9], width=128)
    checked(call)
    with pytest.raises(LayoutError, match=word):
        checked(change(call, **{field: torch.tensor(value, dtype=torch.int32)}))
    assert len(library.calls) == 1


def test_checked_mode_refuses_decreasing_lengths(kit, checked):
    call = kit.call([70, 9], tokens=2, width=128)
    with pytest.raises(LayoutError, match="misreads"):
        checked(change(call, row_lens=call.row_lens.flip(1).contiguous()))


def test_slots_come_from_one_question_and_halve_for_four(library, logits):
    """set_num_sms after the adapter was made must not tear schedule and call apart (deepgemm 9h)."""
    library.processors = 8
    assert (logits.slots(1), logits.slots(2), logits.slots(4)) == (132, 132, 66)
    assert logits.schedule(torch.ones(3, 1, dtype=torch.int32)).shape == (133, 2)


def test_a_library_of_another_generation_is_refused(library):
    """2.1.1 has the old call only, with one-dimensional lengths."""

    class Old:
        __version__ = "2.1.1.post3"
        get_num_sms = library.get_num_sms
        get_paged_mqa_logits_metadata = library.get_paged_mqa_logits_metadata

    with pytest.raises(CapabilityError, match="fp8_fp4_paged_mqa_logits"):
        PagedMqaLogits(Old(), heads=64, head_dim=128, page_size=64, device="cpu", backend=BACKEND)


def test_an_unlisted_version_gets_what_all_builds_share(kit, library):
    library.__version__ = "9.9"
    logits = PagedMqaLogits(library, heads=64, head_dim=128, page_size=64, device="cpu", backend=BACKEND)
    assert logits.known.contract is COMMON and not logits.known.verified
    with pytest.raises(LayoutError, match="allowed: 1, 2;"):
        logits(kit.call([9], tokens=4))


def test_the_version_table(library):
    """Only what we executed is verified."""
    assert [line.version for line in KNOWN_VERSIONS.values() if line.verified] == [PINNED]
    assert known_version(PINNED).contract.tokens_per_row == (1, 2, 4)
    assert known_version("0").distribution == "unknown"


def test_warm_up_compiles_every_allowed_number_of_tokens(library, logits):
    logits.warm_up()
    assert [call[0][0].shape[1] for call in library.calls] == [1, 2, 4]


def test_a_first_call_inside_a_capture_is_refused(kit, library, logits, monkeypatch):
    """It would compile there (deepgemm 9n)."""
    monkeypatch.setattr(PagedMqaLogits, "_capturing", lambda self: True)
    logits.warm_up([2])
    with pytest.raises(GraphError, match=r"warmed: \[2\]"):
        logits(kit.call([9]))
    assert logits(kit.call([9], tokens=2)).shape == (2, 9)


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
