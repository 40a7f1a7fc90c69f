"""Launch every metadata and assignment kernel once a shape, for a run under compute-sanitizer.

Usage: python sanitized_kernels.py [--plant]

Allocations must not be joined by torch's cache, or a store past one tensor lands in the next and nobody sees
it: run it with ``PYTORCH_NO_CUDA_MEMORY_CACHING=1``. With ``--plant`` a kernel that stores one element too
far is launched as well.
"""

from __future__ import annotations

import random
import sys

import torch
import triton
import triton.language as tl

from adaverify_contracts import DecodeBatch, Limits
from adaverify_metadata import (
    FlattenRowBuilder,
    HeadHeavySchedule,
    PairedRowBuilder,
    TailHeavySchedule,
    UniformRowBuilder,
    VarlenRowBuilder,
)
from adaverify_metadata.ops.mask_logits.launch import mask_logits
from adaverify_sm90_flatten.ops.gather_slots.launch import gather_slots
from adaverify_verification.assignment import Assigner

DEVICE = "cuda"
# Widths of the table that are no power of two: the last lanes of every block are masked.
LIMITS = Limits(max_requests=64, draft_tokens=7, max_model_len=3001, page_size=64)
BUILDERS = {
    "uniform": UniformRowBuilder,
    "flatten": FlattenRowBuilder,
    "paired": PairedRowBuilder,
    "varlen": VarlenRowBuilder,
}


@triton.jit
def _store_past_the_end(target, SIZE: tl.constexpr):
    tl.store(target + SIZE + tl.arange(0, 1), 1)


def batch_of(query: list[int], padded: int, uniform: int | None) -> DecodeBatch:
    """Return a batch with random KV lengths; requests of length 0 are padding."""
    draw = random.Random(padded)
    lens = [draw.randint(length, LIMITS.max_kv_len) if length else 0 for length in query]
    requests = len(query)
    return DecodeBatch(
        query_start_loc=torch.tensor([0, *query]).cumsum(0).int().to(DEVICE),
        seq_lens=torch.tensor(lens, dtype=torch.int32).to(DEVICE),
        block_table=torch.zeros(requests, LIMITS.table_width, dtype=torch.int32, device=DEVICE),
        num_requests=sum(length > 0 for length in query) if uniform else requests,
        num_tokens=sum(query),
        padded_tokens=padded,
        max_query_len=LIMITS.max_query_len,
        uniform_query_len=uniform,
    )


def rows() -> None:
    """Rows, schedules, gathered queries and masks: one request, ragged, nothing but padding, the largest."""
    draw = random.Random(0)
    shapes: list[tuple[list[int], int, int | None]] = [
        ([1], 1, 1),
        ([8] * 3 + [0], 32, 8),
        ([8] * 64, 512, 8),
        ([0, 0], 7, None),
        ([draw.randint(0, 8) for _ in range(3)], 24, None),
        ([draw.randint(0, 8) for _ in range(64)], 512, None),
    ]
    for query, padded, uniform in shapes:
        batch = batch_of(query, padded, uniform)
        for name, kind in BUILDERS.items():
            if name == "uniform" and uniform is None:
                continue
            rule = HeadHeavySchedule if name == "varlen" else TailHeavySchedule
            schedule = rule(LIMITS, DEVICE, 132, backend="triton")
            built = kind(name, LIMITS, DEVICE, backend="triton", schedule=schedule).build(batch)
            if name == "varlen":
                continue
            values = torch.zeros(padded, 32, 128, device=DEVICE).to(torch.float8_e4m3fn)
            gather_slots(values, torch.zeros(padded, 32, device=DEVICE), built)
            slots = built.row_lens.numel()
            mask_logits(torch.zeros(slots, LIMITS.max_kv_len, device=DEVICE), built.row_lens)


def assignments() -> None:
    """Budgets of nothing, of one and of more than there is, with NaN among the confidences."""
    for requests in (1, 3, 16, 64, 256, 512):
        limits = Limits(requests, 7, 1024, 64)
        assigner = Assigner(limits, DEVICE, backend="triton")
        made = torch.Generator(DEVICE).manual_seed(requests)
        confidences = torch.rand(requests, 7, generator=made, device=DEVICE)
        confidences[0, 0] = float("nan")
        scheduled = torch.randint(-1, 8, (requests,), generator=made, device=DEVICE, dtype=torch.int32)
        kv = torch.full((requests,), 100, dtype=torch.int32, device=DEVICE)
        for budget in (0, 1, requests * 4, requests * 9):
            given = torch.tensor([budget], dtype=torch.int32, device=DEVICE)
            assigner.assign(confidences, scheduled, kv, given, limits.max_tokens)


def main() -> None:
    """Launch all of it and wait."""
    rows()
    assignments()
    if "--plant" in sys.argv:
        _store_past_the_end[(1,)](torch.zeros(128, dtype=torch.int32, device=DEVICE), 128)
    torch.cuda.synchronize()
    sys.stdout.write("launched\n")


if __name__ == "__main__":
    main()
