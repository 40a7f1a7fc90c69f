"""On a GPU: values of the compiled kernel for the mix of a real step, and what a launch costs the host."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adaverify_engine.attention import PagedChunks, PromptAttentionChoice
from adaverify_engine.executor import Executor
from adaverify_engine.ops.paged_prefill import paged_prefill, paged_prefill_reference, plan_tiles, shape_of
from adaverify_engine.scheduler import PrefillChunk

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
# Ten prompts of about 150 tokens, the end of a long one, and one token behind a cached prefix.
STEP = [(0, length) for length in (150, 143, 161, 1, 17, 149, 155, 128, 170, 152)] + [(512, 300), (63, 1)]
SHAPES = [(9, 3, 64), (8, 8, 32), (16, 1, 128), (4, 4, 256)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.parametrize("page", [16, 64, 24])
def test_values_equal_each_chunk_alone(prefill, heads, kv_heads, dim, page, dtype):
    """A real step over scattered pages, with NaN wherever nobody may look, against ``ChunkAttention``."""
    case = prefill.case(STEP, heads=heads, kv_heads=kv_heads, dim=dim, page=page, dtype=dtype)
    bound = prefill.tolerance[dtype]
    torch.testing.assert_close(case.run(), case.one_by_one(), rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_values_equal_the_reference(prefill, dtype):
    """Token by token in float32."""
    case = prefill.case([(0, 40), (30, 25), (0, 1)], heads=9, kv_heads=3, dim=64, dtype=dtype)
    bound = prefill.tolerance[dtype]
    torch.testing.assert_close(case.run().float(), case.reference(), rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_chunking_and_neighbours_change_no_bit(prefill, dtype):
    """One prompt whole, alone, and in three chunks."""
    case = prefill.case([(0, 300), (3, 40)], heads=9, kv_heads=3, dim=64, dtype=dtype)
    whole, pages, query = case.run(), case.pieces[0][0], case.query[:300]
    assert torch.equal(case.run([case.pieces[0]], query), whole[:300])
    cut = [(pages, 0, 33), (pages, 33, 1), (pages, 34, 266)]
    assert torch.equal(case.run(cut, query), whole[:300])


def test_steps_of_other_sizes_compile_nothing_anew(prefill):
    """Token counts, chunks and table widths are values to the kernel."""
    from adaverify_engine.ops.paged_prefill.kernel import paged_prefill_kernel

    shape = {"heads": 9, "kv_heads": 3, "dim": 64, "dtype": torch.bfloat16}
    prefill.case([(0, 5)], **shape).run()
    before = [len(cache[0]) for cache in paged_prefill_kernel.device_caches.values()]
    for places in ([(0, 1)], [(0, 16)], [(0, 17), (200, 33)], STEP):
        prefill.case(places, **shape).run()
    assert [len(cache[0]) for cache in paged_prefill_kernel.device_caches.values()] == before


def test_planning_and_launching_wait_for_nothing(prefill, refusing_waits):
    """Torch raises on any sync."""
    case = prefill.case(STEP, heads=9, kv_heads=3, dim=64, dtype=torch.bfloat16)
    cache, geometry = case.cache()
    choice = PromptAttentionChoice(geometry, cache)
    assert (choice.name, choice.reason) == ("paged", "")
    PagedChunks(plan_tiles(case.pieces, choice.tile, case.page, cache.data.device), cache)(0, case.query)
    with refusing_waits():
        (chunks,) = choice.plan(case.pieces)
        out = chunks(0, case.query)
    torch.testing.assert_close(out, case.one_by_one(), rtol=2e-2, atol=2e-2)


def test_a_pass_over_prompts_waits_for_nothing(prefill, tiny, refusing_waits):
    """Host arrays are copied without a wait: what comes behind the model is enqueued while it runs."""
    executor = Executor(tiny.Decoder().to(prefill.device), tiny.options(device="cuda", page_size=16))
    prompts = tiny.prompts(3)
    requests = [
        SimpleNamespace(slot=slot, prompt=prompt, prompt_len=len(prompt))
        for slot, prompt in enumerate(prompts)
    ]
    chunks = tuple(PrefillChunk(request, 0, request.prompt_len) for request in requests)
    work = SimpleNamespace(chunks=chunks)
    width = executor.options.limits.table_width
    table = 1 + np.arange(len(prompts) * width, dtype=np.int32).reshape(len(prompts), width)
    executor.forward(work, None, None, table, 1)
    with refusing_waits():
        passed = executor.forward(work, None, None, table, 1)
    expected = torch.cat([tiny.logits(tiny.Decoder(), prompt)[-1:] for prompt in prompts])
    torch.testing.assert_close(passed.logits.cpu(), expected, rtol=1e-3, atol=1e-3)


def test_a_pool_past_2_31_elements(prefill):
    """The last pages of a 10 GiB pool: offsets in 32 bits would read others (DeepGEMM #425)."""
    if torch.cuda.mem_get_info()[0] < 14 * 2**30:
        pytest.skip("needs 14 GiB of free device memory")
    pages = (2**31 + 2**28) // (16 * 64) + 1
    case = prefill.case([(0, 30)], heads=1, kv_heads=1, dim=64, dtype=torch.bfloat16)
    pool = torch.empty((2, pages * 16, 1, 64), dtype=torch.bfloat16, device="cuda")
    pool[:, -32:] = torch.randn(2, 32, 1, 64, device="cuda", dtype=torch.bfloat16)
    row = case.pieces[0][0]
    row[:2] = pages - 2, pages - 1
    keys, values = pool
    tiles = plan_tiles(case.pieces, shape_of(1, 64, torch.bfloat16).tokens, 16, prefill.device)
    out = torch.full(case.query.shape, float("nan"), dtype=torch.bfloat16, device="cuda")
    paged_prefill(case.query, keys, values, tiles, out, page_size=16)
    expected = paged_prefill_reference(case.query, keys, values, case.pieces, 16)
    torch.testing.assert_close(out.float(), expected, rtol=2e-2, atol=2e-2)
