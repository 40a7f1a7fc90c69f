"""Paged decode attention: every strategy's rows against the slot-by-slot reference.

The pool is NaN wherever no row may look, the output and the scratch are NaN before each launch.
"""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from adaverify_contracts import CapabilityError, DescriptorError, LayoutError
from adaverify_engine.attention import (
    ContextRows,
    DecodeAttention,
    DecodeAttentionChoice,
    PagedDecodeAttention,
)
from adaverify_engine.attention import paged as paged_module
from adaverify_engine.ops.paged_decode import (
    PagedDecodeScratch,
    check_geometry,
    launch,
    paged_decode,
    paged_decode_reference,
)

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")
SPLIT = 32


def check(decode, case, out):
    """Compare with the reference; padding tokens must be exactly 0."""
    expected = paged_decode_reference(case.query, case.keys, case.values, case.rows, case.page)
    bound = decode.tolerance[case.query.dtype]
    torch.testing.assert_close(out.float(), expected, rtol=bound, atol=bound)
    assert not out[case.batch.num_tokens :].any()


@pytest.mark.parametrize("strategy", ["flatten", "paired", "varlen"])
def test_ragged_rows_equal_the_reference(decode, strategy):
    """Requests of 3, 1, 0 and 4 tokens over one to three splits, two KV heads, padding."""
    case = decode.case(strategy, [3, 1, 0, 4], [70, 33, 0, 17], padding=2, heads=6, kv_heads=2)
    check(decode, case, case.run(decode.config(split=SPLIT, block=16)))


@pytest.mark.parametrize("queries", [1, 7])
def test_rows_that_all_see_the_whole_context_equal_the_reference(decode, queries):
    """What a block of drafts looks at: every query of a request sees its whole length, 0 for padding."""
    lens = [70, 0, 17, 33]
    case = decode.case("flatten", [1, 1, 1, 1], lens, heads=6, kv_heads=2)
    context = ContextRows(4, queries, decode.device)
    rows, start = context.over(
        torch.tensor(lens, dtype=torch.int32, device=decode.device), case.rows.block_table
    )
    assert start.tolist() == [queries * row for row in range(5)]
    query = torch.randn(4 * queries, 6, 16, device=decode.device)
    out = torch.full_like(query, float("nan"))
    scratch = PagedDecodeScratch(
        4 * queries, 6, 16, case.limits.max_kv_len, decode.device, decode.config(split=SPLIT, block=16)
    )
    paged_decode(
        query,
        case.keys,
        case.values,
        rows,
        out,
        page_size=case.page,
        max_kv_len=case.limits.max_kv_len,
        scratch=scratch,
    )
    expected = paged_decode_reference(query, case.keys, case.values, rows, case.page)
    torch.testing.assert_close(out, expected, rtol=2e-5, atol=2e-5)
    assert not out[queries : 2 * queries].any()


def test_bfloat16_rows_equal_the_reference(decode):
    """Sums stay float32; weights and results round once each."""
    case = decode.case("paired", [3, 4], [70, 17], padding=1, dtype=torch.bfloat16)
    check(decode, case, case.run(decode.config(split=SPLIT, block=32)))


def test_all_strategies_give_the_same_bits(decode):
    """A token's arithmetic has one shape, whichever slots of whichever rows hold the tokens."""
    found = []
    for strategy in decode.strategies:
        case = decode.case(strategy, [2, 2], [40, 9])
        found.append(case.run(decode.config(split=SPLIT, block=16)))
    check(decode, case, found[0])
    assert all(torch.equal(out, found[0]) for out in found[1:])


def test_batch_mates_and_padding_change_no_bit(decode):
    """A request alone, and among others in a batch padded to more tokens (design section 8: one decision)."""
    config = decode.config(split=SPLIT, block=16)
    case = decode.case("flatten", [3, 1, 2], [70, 33, 17], padding=4)
    together = case.run(config)
    batch = case.batch
    alone = type(batch)(
        batch.query_start_loc[:2], batch.seq_lens[:1], batch.block_table[:1], 1, 3, 3, 3, None
    )
    rows = decode.builder("flatten", case.limits).build(alone)
    assert torch.equal(case.run(config, query=case.query[:3], rows=rows), together[:3])


@pytest.mark.parametrize("page", [16, 64])
def test_lengths_around_page_and_split_boundaries(decode, page):
    """1, page - 1, page, page + 1, split - 1, split, split + 1, and the longest."""
    lens = sorted({1, 15, 16, 17, 63, 64, 65, 80})
    case = decode.case("flatten", [1] * len(lens), lens, page=page, longest=80)
    check(decode, case, case.run(decode.config(split=64, block=16)))


@pytest.mark.parametrize(
    ("strategy", "queries", "lens", "padding"),
    [
        ("uniform", [2, 0, 2], [20, 0, 3], 4),
        ("paired", [3, 1], [20, 1], 2),
        ("flatten", [], [], 2),
    ],
)
def test_one_split_is_one_launch_and_zeroes_padding(decode, strategy, queries, lens, padding):
    """More tokens than rows, padding in front of an odd row, and no request at all."""
    case = decode.case(strategy, queries, lens, padding=padding, longest=28)
    assert case.scratch(None).splits == 1
    assert case.scratch(None).partial.numel() == 0
    check(decode, case, case.run(decode.config(split=32, block=16)))


def test_no_tokens_and_no_rows(decode):
    """Nothing is launched over nothing; tokens without a single row are padding."""
    empty = decode.case("flatten", [], [])
    assert empty.run(decode.config(split=SPLIT, block=16)).shape == (0, 3, 16)
    for longest in (28, 90):
        bare = decode.case("uniform", [1], [1], padding=2, longest=longest)
        none = {name: getattr(bare.rows, name)[:0] for name in ("row_lens", "schedule_lens", "row_token")}
        rows = type(bare.rows)(
            "uniform", 1, **none, block_table=bare.rows.block_table[:0],
            row_request=bare.rows.row_request[:0], token_slot=torch.zeros_like(bare.rows.token_slot),
        )  # fmt: skip
        assert not bare.run(decode.config(split=SPLIT, block=16), rows=rows).any()


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "queries"),
    [(2, 2, 32, [1]), (16, 1, 16, [5]), (4, 1, 128, [2])],
)
def test_head_shapes(decode, heads, kv_heads, dim, queries):
    """Group 1, group 16 over several tiles of lines, a wide head."""
    case = decode.case("uniform", queries, [37], heads=heads, kv_heads=kv_heads, dim=dim, longest=40)
    check(decode, case, case.run(decode.config(split=SPLIT, block=16)))


@pytest.mark.parametrize("look_back", [64, 4])
def test_a_request_longer_than_a_tile(decode, look_back, monkeypatch):
    """Nine rows in tiles of four; with the look-back shorter than the request no token is lost."""
    monkeypatch.setattr(launch, "LOOK_BACK", look_back)
    case = decode.case("flatten", [2, 9], [5, 20], longest=24)
    check(decode, case, case.run(decode.config(split=SPLIT, block=16, lines=16)))


def test_a_slot_that_sees_nothing_gives_zero(decode):
    """A KV length below the query length clamps rows at 0, and 0 / 0 is not NaN."""
    case = decode.case("flatten", [3], [2], longest=64)
    out = case.run(decode.config(split=SPLIT, block=16))
    assert int(case.rows.row_lens[0, 0]) == 0
    check(decode, case, out)
    assert not out[0].any()


@pytest.mark.parametrize(
    ("page", "dim", "heads", "kv_heads", "what"),
    [
        (48, 64, 9, 3, "page size"),
        (16, 80, 9, 3, "head size"),
        (16, 8, 9, 3, "head size"),
        (16, 64, 9, 2, "evenly"),
    ],
)
def test_what_the_kernel_does_not_serve_is_refused(page, dim, heads, kv_heads, what):
    """Masks and shifts that assume powers of two would read other pages."""
    with pytest.raises(CapabilityError, match=what):
        check_geometry(page, dim, heads, kv_heads)


def test_tensors_that_do_not_fit_are_refused(decode):
    """Wrong dtype, layout, token count, scratch."""
    case = decode.case("flatten", [2], [5], longest=40)
    config = decode.config(split=SPLIT, block=16)
    for changes in (
        {"query": case.query.half(), "keys": case.keys.half(), "values": case.values.half()},
        {"query": case.query.transpose(1, 2)},
        {"keys": case.keys.bfloat16()},
        {"query": case.query[:1]},
    ):
        with pytest.raises(LayoutError):
            case.run(config, **changes)
    for longest in (0, 4096):
        with pytest.raises(LayoutError, match="scratch"):
            paged_decode(
                case.query, case.keys, case.values, case.rows, torch.empty_like(case.query),
                page_size=16, max_kv_len=longest, scratch=case.scratch(config),
            )  # fmt: skip
    for wrong in ({"split": 48}, {"lines": 8}, {"block": 512}):
        with pytest.raises(DescriptorError):
            decode.config(**wrong)


def test_a_compiled_kernel_refuses_a_cpu(decode, monkeypatch):
    """Outside the interpreter a CPU tensor would be handed over as a raw pointer."""
    monkeypatch.setattr(launch, "is_interpreted", lambda kernel: False)
    with pytest.raises(CapabilityError, match="DecodeAttention"):
        launch._kernels(torch.device("cpu"))


def test_the_attention_equals_the_torch_path(decode):
    """Two callables with one meaning over one cache."""
    case = decode.case("paired", [3, 1, 2], [38, 9, 17], heads=6, kv_heads=2, longest=40)
    cache, _ = decode.cached(case)
    both = DecodeAttention(
        case.rows, case.batch.query_start_loc, queries=3, max_kv_len=42, group=3, cache=cache
    )
    scratch = case.scratch(decode.config(split=SPLIT, block=16))
    attention = PagedDecodeAttention(case.rows, max_kv_len=42, cache=cache, scratch=scratch)
    torch.testing.assert_close(attention(0, case.query), both(0, case.query), rtol=2e-5, atol=2e-5)


def test_a_cpu_takes_the_torch_path_and_counts_no_fallback(decode):
    """What is ordinary is no fallback."""
    if decode.device.type != "cpu":
        pytest.skip("this machine's device is an accelerator")
    case = decode.case("flatten", [2], [9])
    cache, geometry = decode.cached(case)
    choice = DecodeAttentionChoice(geometry, case.limits, cache)
    made = choice.plan(case.rows, case.batch.query_start_loc, queries=2, max_kv_len=9)
    assert isinstance(made, DecodeAttention)
    assert (choice.name, choice.take_fallbacks()) == ("torch", ())
    assert "CPU" in choice.reason


def test_a_fallback_on_an_accelerator_is_named_and_counted(decode, monkeypatch):
    """Without Triton pages are gathered, each step says so, and the reason is kept."""
    case = decode.case("flatten", [2], [9])
    cache, geometry = decode.cached(case)
    monkeypatch.setattr(paged_module, "find_spec", lambda name: None)
    accelerator = torch.device("cuda")
    assert paged_module._obstacle(geometry, cache, accelerator) == "Triton is not installed"
    assert "mps" in paged_module._obstacle(geometry, cache, torch.device("mps"))
    monkeypatch.undo()
    assert paged_module._obstacle(geometry, cache, accelerator) == ""
    odd = SimpleNamespace(page_size=48)
    assert "page size" in paged_module._obstacle(geometry, odd, accelerator)

    choice = DecodeAttentionChoice(geometry, case.limits, cache)
    choice._scratch, choice._is_fallback = None, True
    for _ in range(2):
        choice.plan(case.rows, case.batch.query_start_loc, queries=2, max_kv_len=9)
    assert choice.take_fallbacks() == ("attention-gathered", "attention-gathered")
    assert choice.take_fallbacks() == ()


def test_the_engine_imports_without_triton():
    """Triton is an optional dependency."""
    code = "import sys; sys.modules['triton'] = None; import adaverify_engine; print('imported')"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "imported\n", done.stderr
