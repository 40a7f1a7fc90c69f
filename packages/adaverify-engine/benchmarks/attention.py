"""Time the engine's attention a layer: decode rows over paged KV, by requests x query tokens.

Geometry of a 135M model (9 heads over 3 KV heads of 64), context 384. Values are checked against the
slot-by-slot reference before any time is printed. Run: python attention.py [threads] [dtype].
"""

from __future__ import annotations

import platform
import sys
from statistics import median
from time import perf_counter

import torch

from adaverify_contracts import DecodeBatch, Limits, ModelGeometry
from adaverify_engine.attention import DecodeAttention, StepAttention, attend_rows
from adaverify_engine.cache import PagedCache
from adaverify_metadata import FlattenRowBuilder

LAYERS, CONTEXT, REQUESTS = 30, 384, 16
GEOMETRY = ModelGeometry("bench", LAYERS, 576, 9, 3, 64, 49152, 2048, ())
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}


def make_step(requests, lengths, dtype, *, scatter):
    """Return (attention over all layers' inputs, query, key, value, rows, cache) of one ragged step."""
    limits = Limits(max_requests=REQUESTS, draft_tokens=7, max_model_len=1024, page_size=16)
    width = limits.table_width
    table = 1 + torch.arange(REQUESTS * width, dtype=torch.int32).view(REQUESTS, width)
    if scatter:
        table = 1 + torch.randperm(REQUESTS * width).to(torch.int32).view(REQUESTS, width)
    cache = PagedCache(GEOMETRY, 1 + REQUESTS * width, 16, dtype, torch.device("cpu"))
    cache.data.normal_()
    queries = torch.tensor(lengths, dtype=torch.int32)
    start = torch.cat((torch.zeros(1, dtype=torch.int32), queries.cumsum(0).to(torch.int32)))
    lens = CONTEXT - 16 + torch.randint(0, 16, (requests,), dtype=torch.int32) + queries
    tokens = int(start[-1])
    rows = FlattenRowBuilder("flatten", limits, torch.device("cpu"), backend="torch").build(
        DecodeBatch(start, lens, table[:requests], requests, tokens, tokens, max(lengths))
    )
    owner = torch.repeat_interleave(torch.arange(requests), queries)
    at = rows.row_lens[:, 0].long() - 1
    slots = table[owner, at // 16].long() * 16 + at % 16

    def plan():
        decode = DecodeAttention(
            rows, start, queries=max(lengths), max_kv_len=int(lens.max()), group=3, cache=cache
        )
        return StepAttention(cache, slots, decode, tokens, (), 3)

    query = torch.randn(tokens, 9, 64).to(dtype)
    key, value = (torch.randn(tokens, 3, 64).to(dtype) for _ in range(2))
    return plan, query, key, value, rows, cache


def check(plan, query, key, value, rows, cache):
    """Refuse to time anything that is not right."""
    out = plan()(1, query, key, value).float()
    keys, values = cache.layer(1)
    expected = attend_rows(query, keys, values, rows, 16)
    torch.testing.assert_close(out, expected, rtol=TOLERANCE[query.dtype], atol=TOLERANCE[query.dtype])


@torch.inference_mode()
def main() -> None:
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    dtype = getattr(torch, sys.argv[2]) if len(sys.argv) > 2 else torch.bfloat16
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    print(
        f"{platform.processor() or platform.machine()}, {threads} threads, {dtype}, torch {torch.__version__}"
    )
    cases = {
        "1 x 1": [1],
        "1 x 8": [8],
        "4 x 8": [8] * 4,
        "16 x 1": [1] * 16,
        "16 x 8": [8] * 16,
        "16 ragged, 40 tokens": [8, 1, 1, 4, 1, 1, 6, 1, 1, 5, 1, 1, 3, 1, 1, 4],
    }
    for scatter in (False, True):
        for name, lengths in cases.items():
            plan, *inputs = make_step(len(lengths), lengths, dtype, scatter=scatter)
            check(plan, *inputs)
            query, key, value = inputs[:3]
            runs, plans = [], []
            for _ in range(12):
                begin = perf_counter()
                attend = plan()
                plans.append(perf_counter() - begin)
                begin = perf_counter()
                for layer in range(LAYERS):
                    attend(layer, query, key, value)
                runs.append((perf_counter() - begin) / LAYERS)
            print(
                f"{name:22} {'scattered' if scatter else 'runs':9} layer {median(runs) * 1e3:6.3f} ms "
                f"(best {min(runs) * 1e3:.3f}), plan {median(plans) * 1e3:.3f} ms a step"
            )


if __name__ == "__main__":
    main()
