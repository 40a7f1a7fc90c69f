"""Token inputs come from device boundaries; padding is rewritten every step."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

from adaverify_contracts import DraftBatch, Limits
from adaverify_engine.inputs import StepBuffers, prefill_tokens
from adaverify_engine.scheduler import PrefillChunk

LIMITS = Limits(max_requests=4, draft_tokens=2, max_model_len=20, page_size=4)


def request(slot, prompt):
    return SimpleNamespace(slot=slot, prompt=prompt, prompt_len=len(prompt))


def lens(*values):
    return np.array(values, dtype=np.int64)


def batch(rows):
    tokens = torch.tensor(rows)
    return DraftBatch(tokens, np.array([(row >= 0).sum() for row in tokens]), torch.zeros(tokens.shape))


def table():
    return np.arange(1, 1 + 4 * LIMITS.table_width, dtype=np.int32).reshape(4, -1)


def assignment(request, offset):
    return SimpleNamespace(
        token_request=torch.tensor(request, dtype=torch.int32),
        token_offset=torch.tensor(offset, dtype=torch.int32),
    )


def test_tokens_positions_and_slots_by_hand():
    """The certain token sits at the KV length, drafts after it; padding goes to the null page."""
    buffers = StepBuffers(LIMITS, torch.device("cpu"))
    buffers.load(lens(8, 9), lens(5, 3), batch([[11, 12], [13, -1]]), table()[[1, 3]])
    inputs = buffers.decode_tokens(
        assignment([0, 0, 0, 1, 1, -1], [0, 1, 2, 0, 1, -1]), buffers.kv_lens, buffers.block_table
    )
    assert inputs.ids.tolist() == [8, 11, 12, 9, 13, 0]
    assert inputs.positions.tolist() == [5, 6, 7, 3, 4, 0]
    page = table()
    expected = [
        page[1, 1] * 4 + 1,
        page[1, 1] * 4 + 2,
        page[1, 1] * 4 + 3,
        page[3, 0] * 4 + 3,
        page[3, 1] * 4,
        0,
    ]
    assert inputs.slots.tolist() == expected


def test_padding_requests_hold_nothing_of_the_last_batch():
    """After a batch of four, a batch of one leaves null pages, length 0 and -1 behind it (vllm #47066)."""
    buffers = StepBuffers(LIMITS, torch.device("cpu"))
    buffers.load(lens(1, 2, 3, 4), lens(9, 9, 9, 9), batch([[5, 6]] * 4), table())
    buffers.load(lens(1), lens(9), batch([[5, 6]]), table()[:1])
    assert buffers.scheduled.tolist() == [2, -1, -1, -1]
    assert buffers.kv_lens.tolist() == [9, 0, 0, 0]
    assert buffers.block_table[1:].abs().sum() == 0
    assert buffers.block_table[0].tolist() == table()[0].tolist()


def test_an_undrafted_position_is_never_an_index():
    """A -1 that reaches the gather is masked to a valid id (vllm #50939)."""
    buffers = StepBuffers(LIMITS, torch.device("cpu"))
    buffers.load(lens(3), lens(1), batch([[-1, -1]]), table()[:1])
    tokens = buffers.decode_tokens(assignment([0, 0], [0, 1]), buffers.kv_lens, buffers.block_table)
    assert tokens.ids.tolist() == [3, 0]


def test_prefill_chunks_are_laid_out_one_after_the_other():
    """Ids, positions and slots of two chunks, across a page boundary."""
    chunks = (
        PrefillChunk(request(2, list(range(50, 60))), 3, 3),
        PrefillChunk(request(0, [40, 41]), 0, 2),
    )
    inputs = prefill_tokens(chunks, table(), 4, torch.device("cpu"))
    page = table()
    assert inputs.ids.tolist() == [53, 54, 55, 40, 41]
    assert inputs.positions.tolist() == [3, 4, 5, 0, 1]
    assert inputs.slots.tolist() == [
        page[2, 0] * 4 + 3, page[2, 1] * 4, page[2, 1] * 4 + 1, page[0, 0] * 4, page[0, 0] * 4 + 1
    ]  # fmt: skip
    assert [chunk.final for chunk in chunks] == [False, True]
