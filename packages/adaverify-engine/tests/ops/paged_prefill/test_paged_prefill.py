"""Paged prefill attention: any mix of chunks against the token-by-token reference.

The pool is NaN wherever no chunk may look, and the output is NaN before each launch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import CapabilityError, EngineError, LayoutError
from adaverify_engine import Sampling
from adaverify_engine.attention import ChunkAttention, PagedChunks, PromptAttentionChoice, StepAttention
from adaverify_engine.attention import paged as paged_module
from adaverify_engine.ops import launchable
from adaverify_engine.ops.paged_prefill import check_geometry, paged_prefill, plan_tiles, shape_of

pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")
# First chunks around the page and tile sizes, and later ones of longer prompts.
MIX = [(0, 1), (0, 15), (7, 16), (0, 17), (100, 1), (23, 100)]


def check(prefill, case):
    """Compare with the reference and with what each chunk gives alone."""
    out, bound = case.run(), prefill.tolerance[case.query.dtype]
    torch.testing.assert_close(out.float(), case.reference(), rtol=bound, atol=bound)
    torch.testing.assert_close(out, case.one_by_one(), rtol=bound, atol=bound)


@pytest.mark.parametrize("page", [16, 64, 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_mix_of_chunks_equals_the_reference(prefill, dtype, page):
    """Lengths of 1, 15, 16, 17 and 100 from the start and behind it; a page size need be no power of two."""
    check(prefill, prefill.case(MIX, heads=6, kv_heads=2, page=page, dtype=dtype))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(3, 3, 32), (4, 1, 16), (8, 1, 16), (9, 3, 64), (80, 1, 16), (2, 1, 256)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_head_shapes(prefill, heads, kv_heads, dim, dtype):
    """Groups that fill a tile, that do not, and one that is larger than a tile; wide heads."""
    check(
        prefill,
        prefill.case([(0, 30), (5, 17)], heads=heads, kv_heads=kv_heads, dim=dim, dtype=dtype),
    )


PLACES = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 70)), min_size=1, max_size=5)


@settings(max_examples=25, deadline=None)
@given(places=PLACES, page=st.sampled_from([4, 16, 40]), group=st.integers(1, 7), seed=st.integers(0, 9))
def test_any_chunks_equal_the_reference(places, page, group, seed, prefill):
    """Any starts, lengths and groups: no page that a chunk does not own is read."""
    case = prefill.case(places, heads=2 * group, kv_heads=2, page=page, seed=seed)
    torch.testing.assert_close(case.run(), case.one_by_one(), rtol=2e-5, atol=2e-5)


@given(places=PLACES, size=st.integers(1, 64), page=st.integers(1, 64))
def test_tiles_hold_every_token_once(places, size, page):
    """Each token at its own position and in its own chunk, in tiles no larger than a program."""
    width = -(-max(start + length for start, length in places) // page) + 2
    pieces = [
        (np.arange(width, dtype=np.int32) + 1000 * row, start, length)
        for row, (start, length) in enumerate(places)
    ]
    made = plan_tiles(pieces, size, page, torch.device("cpu"))
    found = []
    for first, count, position, row in made.tiles.tolist():
        assert 0 < count <= size
        found += [(first + at, position + at, row) for at in range(count)]
    expected = [
        (position, row)
        for row, (start, length) in enumerate(places)
        for position in range(start, start + length)
    ]
    assert found == [(token, *place) for token, place in enumerate(expected)]
    assert made.tokens == len(expected)
    for row, (start, length) in enumerate(places):
        used = -(-(start + length) // page)
        assert made.table[row, :used].tolist() == [1000 * row + at for at in range(used)]


def test_chunking_and_neighbours_change_no_bit(prefill):
    """A prompt in one chunk, in three, and beside others: blocks begin at position 0 in each (section 8)."""
    case = prefill.case([(0, 100), (3, 40)], heads=6, kv_heads=2)
    whole, pages = case.run(), case.pieces[0][0]
    assert torch.equal(case.run([case.pieces[0]], case.query[:100]), whole[:100])
    cut = [(pages, 0, 33), (pages, 33, 1), (pages, 34, 66)]
    assert torch.equal(case.run(cut, case.query[:100]), whole[:100])


def test_a_step_holds_decode_rows_before_the_chunks(prefill):
    """The step stores keys and values first; decode rows come first and chunks follow, in one result."""
    case = prefill.case([(0, 20), (16, 9)], heads=6, kv_heads=2)
    cache, _ = case.cache()
    keys, values = cache.layer(0)
    tokens, rows = len(case.query), 4
    slots = torch.cat(
        [torch.arange(rows)]
        + [
            torch.from_numpy(pages.astype(np.int64))[at // case.page] * case.page + at % case.page
            for pages, start, length in case.pieces
            for at in [torch.arange(start, start + length)]
        ]
    ).to(prefill.device)
    key, value = keys[slots].clone(), values[slots].clone()
    keys[slots[rows:]] = 7.0
    values[slots[rows:]] = 7.0
    query = torch.cat((case.query.new_zeros(rows, 6, 16), case.query))
    chunks = (
        PagedChunks(
            plan_tiles(case.pieces, shape_of(3, 16, cache.dtype).tokens, case.page, cache.data.device), cache
        ),
    )
    step = StepAttention(cache, slots, lambda layer, decode: decode + 1.0, rows, chunks, 3)
    out = step(0, query, key, value)
    assert out.shape == (rows + tokens, 6, 16)
    assert torch.equal(out[:rows], torch.ones_like(out[:rows]))
    torch.testing.assert_close(out[rows:], case.reference(), rtol=2e-5, atol=2e-5)
    with pytest.raises(EngineError, match="contract"):
        step(0, query[:-1], key, value)


def test_a_cpu_attends_chunk_by_chunk_and_counts_no_fallback(prefill):
    """Keys are read there where they lie; what is ordinary is no fallback."""
    if prefill.device.type != "cpu":
        pytest.skip("this machine's device is an accelerator")
    case = prefill.case([(0, 3), (0, 2)])
    cache, geometry = case.cache()
    choice = PromptAttentionChoice(geometry, cache)
    assert [type(one) for one in choice.plan(case.pieces)] == [ChunkAttention] * 2
    assert (choice.name, choice.take_fallbacks(), choice.plan(())) == ("torch", (), ())
    assert "CPU" in choice.reason


def test_a_fallback_on_an_accelerator_is_named_and_counted(prefill, monkeypatch):
    """Heads that the kernel does not serve attend one by one; a step of them is counted once."""
    case = prefill.case([(0, 3), (0, 2)], dim=8)
    cache, geometry = case.cache()
    seen = []

    def asked(device, check):
        seen.append(device)
        return paged_module.kernel_obstacle(torch.device("cuda"), check)

    monkeypatch.setattr("adaverify_engine.attention.prompts.kernel_obstacle", asked)
    choice = PromptAttentionChoice(geometry, cache)
    assert seen == [cache.data.device]
    assert "head size" in choice.reason
    choice._is_fallback = True
    for _ in range(2):
        assert [type(one) for one in choice.plan(case.pieces)] == [ChunkAttention] * 2
    assert choice.take_fallbacks() == ("prompts-one-by-one", "prompts-one-by-one")
    assert choice.take_fallbacks() == ()


@pytest.mark.parametrize("mode", ["none", "fixed"])
def test_an_engine_that_uses_the_kernel_emits_the_oracles_tokens(make_engine, tiny, monkeypatch, mode):
    """Prompts in several chunks, beside decodes, as an accelerator reads them."""
    engine, prompts = make_engine(mode, prefill_chunk=40), tiny.prompts(5)
    monkeypatch.setattr(engine.executor.prompts, "name", "paged")
    planned, plan = [], engine.executor.prompts.plan

    def counted(pieces):
        planned.append(len(pieces))
        return plan(pieces)

    monkeypatch.setattr(engine.executor.prompts, "plan", counted)
    ids = [engine.add(prompt, Sampling(max_tokens=5 + 2 * at)) for at, prompt in enumerate(prompts)]
    done = engine.run()
    for at, (request, prompt) in enumerate(zip(ids, prompts, strict=True)):
        assert list(done[request].tokens) == tiny.greedy(tiny.Decoder(), prompt, 5 + 2 * at)
    assert max(planned) > 1


@pytest.mark.parametrize(
    ("dim", "heads", "kv_heads", "what"),
    [(80, 9, 3, "head size"), (8, 9, 3, "head size"), (64, 9, 2, "evenly")],
)
def test_what_the_kernel_does_not_serve_is_refused(dim, heads, kv_heads, what):
    """Blocks of heads are powers of two."""
    with pytest.raises(CapabilityError, match=what):
        check_geometry(dim, heads, kv_heads)


def test_tensors_that_do_not_fit_are_refused(prefill):
    """Wrong dtype, layout, token count, device of the tiles, and tiles larger than a program."""
    case = prefill.case([(0, 30)], heads=6, kv_heads=2)
    for changed in (
        replace(case, query=case.query.half(), keys=case.keys.half(), values=case.values.half()),
        replace(case, query=case.query.transpose(1, 2)),
        replace(case, keys=case.keys.bfloat16()),
        replace(case, query=case.query[:-1]),
        replace(case, keys=case.keys[:-1]),
    ):
        with pytest.raises(LayoutError):
            changed.run()
    out = torch.empty(case.query.shape, device=prefill.device)
    size = shape_of(3, 16, torch.float32).tokens
    large = plan_tiles(case.pieces, size + 1, case.page, prefill.device)
    with pytest.raises(LayoutError, match="shape_of"):
        paged_prefill(case.query, case.keys, case.values, large, out, page_size=case.page)
    elsewhere = plan_tiles(case.pieces, size, case.page, torch.device("meta"))
    with pytest.raises(LayoutError, match="tiles"):
        paged_prefill(case.query, case.keys, case.values, elsewhere, out, page_size=case.page)


def test_a_compiled_kernel_refuses_a_cpu():
    """Outside the interpreter a CPU tensor would be handed over as a raw pointer."""

    def compiled():
        """Stand for a kernel that no interpreter wraps."""

    with pytest.raises(CapabilityError, match="cannot run on a CPU"):
        launchable.require_launchable(compiled, torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("group", [1, 3, 8, 80])
@pytest.mark.parametrize("dim", [16, 64, 128, 256])
def test_a_tile_holds_whole_tokens(group, dim, dtype):
    """A power of two of lines for all heads of at least one token."""
    shape = shape_of(group, dim, dtype)
    assert shape.tokens >= 1
    assert 16 <= shape.lines >= shape.tokens * group
    assert shape.lines & (shape.lines - 1) == 0
