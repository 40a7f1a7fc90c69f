"""Check, then time, paged decode attention on a CUDA device; print one JSON document.

Geometry of a 135M model (9 heads over 3 KV heads of 64), bfloat16, page 16, scattered pages, K = 7. For
T = 8, 64, 512, 2048 query tokens (T / 8 requests of 8, KV lengths uniform in the last 16 below the context)
at contexts 512 and 2048, the kernel on the rows of three strategies and the gathered torch path are compared
with the slot-by-slot reference on the first request and with each other on all, and only then timed.

``*_us``: device time of one layer: a captured graph of one call a layer over 30 layers' pools, the queue kept
full, divided by 30; median, variants interleaved by round. ``gathered_us`` is null where its gathered pages
do not fit in memory.

    python benchmarks/paged_decode.py [--split N ...] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from itertools import pairwise

import torch

from adaverify_contracts import DecodeBatch, Limits, ModelGeometry
from adaverify_engine.attention import DecodeAttention, PagedDecodeAttention
from adaverify_engine.cache import PagedCache
from adaverify_engine.ops.paged_decode import PagedDecodeScratch, paged_decode_reference
from adaverify_engine.ops.paged_decode.launch import PagedDecodeConfig
from adaverify_metadata import FlattenRowBuilder, PairedRowBuilder, UniformRowBuilder

LAYERS, PAGE, QUERY = 30, 16, 8
GEOMETRY = ModelGeometry("bench", LAYERS, 576, 9, 3, 64, 49152, 8192, ())
TOKENS, CONTEXTS = (8, 64, 512, 2048), (512, 2048)
BUILDERS = {"flatten": FlattenRowBuilder, "paired": PairedRowBuilder, "uniform": UniformRowBuilder}
TOLERANCE = 2e-2
DEVICE = torch.device("cuda")


def make_step(tokens: int, context: int):
    """Return (cache, rows by strategy, batch, query [T, 9, 64]) of one uniform step."""
    requests = tokens // QUERY
    limits = Limits(requests, QUERY - 1, context - QUERY + 1, PAGE)
    width = limits.table_width
    table = 1 + torch.randperm(requests * width).to(torch.int32).view(requests, width)
    cache = PagedCache(GEOMETRY, 1 + requests * width, PAGE, torch.bfloat16, DEVICE)
    cache.data.normal_()
    batch = DecodeBatch(
        query_start_loc=torch.arange(0, tokens + 1, QUERY, dtype=torch.int32, device=DEVICE),
        seq_lens=torch.randint(context - 15, context + 1, (requests,), dtype=torch.int32, device=DEVICE),
        block_table=table.to(DEVICE),
        num_requests=requests,
        num_tokens=tokens,
        padded_tokens=tokens,
        max_query_len=QUERY,
        uniform_query_len=QUERY,
    )
    rows = {name: made(name, limits, DEVICE, backend="torch").build(batch) for name, made in BUILDERS.items()}
    query = torch.randn(tokens, 9, 64, device=DEVICE).to(torch.bfloat16)
    return cache, rows, batch, query


def check(name: str, out: torch.Tensor, expected: torch.Tensor) -> None:
    """Refuse to time what is not right."""
    worst = float((out.float() - expected.float()).abs().max())
    if not worst <= TOLERANCE:
        raise SystemExit(f"{name}: differs by {worst}, allowed {TOLERANCE}")


def first_request(cache, batch, query: torch.Tensor) -> torch.Tensor:
    """Return the reference's output of the first request's tokens in the last layer."""
    alone = DecodeBatch(
        batch.query_start_loc[:2], batch.seq_lens[:1], batch.block_table[:1], 1, QUERY, QUERY, QUERY
    )
    limits = Limits(1, QUERY - 1, batch.block_table.shape[1] * PAGE - QUERY + 1, PAGE)
    rows = FlattenRowBuilder("flatten", limits, DEVICE, backend="torch").build(alone)
    return paged_decode_reference(query[:QUERY], *cache.layer(LAYERS - 1), rows, PAGE)


def capture(attend, query: torch.Tensor) -> torch.cuda.CUDAGraph:
    """Capture one call for each layer."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        attend(0, query)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in range(LAYERS):
            attend(layer, query)
    return graph


def layer_us(graph: torch.cuda.CUDAGraph, repeats: int) -> list[float]:
    """Time replays with the queue kept full: the events see the device only."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    graph.replay()
    torch.cuda._sleep(4_000_000)
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    return [1000 * a.elapsed_time(b) / LAYERS for a, b in pairwise(events)]


def variants(cache, rows, batch, context: int, splits: list[int]):
    """Return the attention callables by name."""
    found = {}
    for split in splits:
        scratch = PagedDecodeScratch(
            batch.padded_tokens, 9, 64, context, DEVICE, PagedDecodeConfig(split=split)
        )
        for name, built in rows.items():
            found[f"{name}_{split}"] = PagedDecodeAttention(
                built, max_kv_len=context, cache=cache, scratch=scratch
            )
    # Two gathered copies of keys or values, and room for the attention itself.
    needed = 6 * batch.requests * context * 3 * 64 * 2
    if needed < torch.cuda.mem_get_info()[0]:
        found["gathered"] = DecodeAttention(
            rows["flatten"], batch.query_start_loc, queries=QUERY, max_kv_len=context, group=3, cache=cache
        )
    return found


def measure(tokens: int, context: int, splits: list[int], rounds: int) -> dict:
    """Check and time one shape."""
    cache, rows, batch, query = make_step(tokens, context)
    works = variants(cache, rows, batch, context, splits)
    outs = {name: work(LAYERS - 1, query) for name, work in works.items()}
    everything = outs[f"uniform_{splits[0]}"]
    expected = first_request(cache, batch, query)
    for name, out in outs.items():
        where = f"{name}, {tokens} tokens, context {context}"
        check(f"{where}, first request", out[:QUERY], expected)
        check(where, out, everything)
    graphs = {name: capture(work, query) for name, work in works.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            times[name] += layer_us(graph, 10)
    line = {"tokens": tokens, "context": context, "equal": True, "gathered_us": None}
    line |= {f"{name}_us": round(statistics.median(found), 2) for name, found in times.items()}
    line["kv_mib_a_layer"] = round(int(batch.seq_lens.sum()) * 2 * 3 * 64 * 2 / 2**20, 2)
    return line


@torch.inference_mode()
def main() -> int:
    """Run every shape."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--split", type=int, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("paged_decode: needs a CUDA device\n")
        return 2
    torch.manual_seed(0)
    report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "shapes": []}
    for context in CONTEXTS:
        for tokens in TOKENS:
            line = measure(tokens, context, options.split or [256], options.rounds)
            report["shapes"].append(line)
            sys.stderr.write(json.dumps(line) + "\n")
            torch.cuda.empty_cache()
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
