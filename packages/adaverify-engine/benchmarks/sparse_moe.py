"""Check, then time, the decode step of the sparse mixture-of-experts decoder on a CUDA device; print JSON.

The rows and scores are those of the installed strategies that offer scores. Two layers of the same sizes are
compared with plain torch first. For each number of query tokens T, T / 8 requests of 8 (one of T below 8) at
the context: device time of one replay of the captured step, rows included, queue kept full, median of rounds
in which strategies take turns. ``kernels`` is where the time of one replay goes, by kernel, in microseconds.

    python benchmarks/sparse_moe.py [--context N] [--tokens N ...] [--layers N] [--rounds N]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections import Counter
from types import SimpleNamespace

import torch

from adaverify_capability import probe
from adaverify_contracts import DecodeBatch, Limits
from adaverify_engine.sparse_moe import SparseMoe, SparseMoeSizes
from adaverify_runtime import PluginSettings, load_plugins
from adaverify_verification import Assignment

QUERY, PAGE, DEVICE = 8, 64, torch.device("cuda")
TOLERANCE, SHARE = 0.1, 0.9


def ints(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def make_step(model, strategy, capability, tokens, context):
    """Return a function that builds rows and decodes ``tokens`` query tokens at ``context``."""
    requests = max(1, tokens // QUERY)
    each = tokens // requests
    table = model.caches.block_table[:requests]
    lens = ints([context - each] * requests)
    bounds = Assignment(
        admitted=ints([each - 1] * requests),
        query_start_loc=ints(range(0, tokens + 1, each)),
        seq_lens=ints([context] * requests),
        token_request=ints([token // each for token in range(tokens)]),
        token_offset=ints([token % each for token in range(tokens)]),
    )
    builder = strategy.allocate(model.limits, DEVICE, capability)
    batch = DecodeBatch(bounds.query_start_loc, bounds.seq_lens, table, requests, tokens, tokens, QUERY)

    def step(run=model.decode):
        return run(SimpleNamespace(assignment=bounds, rows=builder.build(batch)), lens, table)

    return step


def capture(step):
    """Return the graph of one step after one eager run."""
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def seconds(graph, repeat: int) -> float:
    """Return seconds of one replay by events, the queue kept full before them."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    first.record()
    for _ in range(repeat):
        graph.replay()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3 / repeat


def kernels(graph) -> dict[str, list[float]]:
    """Return microseconds and launches of each kernel of one replay, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    graph.replay()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        graph.replay()
        torch.cuda.synchronize()
    spent, launches = Counter(), Counter()
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            spent[event.name[:80]] += event.device_time
            launches[event.name[:80]] += 1
    return {name: [round(time, 1), launches[name]] for name, time in spent.most_common(30)}


def check(sizes, limits, strategy, capability, logits) -> float:
    """Return the share of tokens whose hidden states agree with plain torch; stop below what is allowed."""
    few = dataclasses.replace(sizes, layers=2)
    hidden = []
    for backend in ("triton", "torch"):
        model = SparseMoe(few, limits, DEVICE, backend=backend, logits=logits)
        model.open(0)
        step = make_step(
            model, strategy, capability, min(64, limits.max_tokens), limits.max_model_len - QUERY
        )
        hidden.append(step(model.hidden).float())
    off = (hidden[0] - hidden[1]).norm(dim=1) / hidden[1].norm(dim=1)
    share = float((off < TOLERANCE).float().mean())
    if not share >= SHARE:
        sys.exit(f"only {share:.3f} of the tokens agree with plain torch; no time was taken")
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    )
    parser.add_argument("--layers", type=int, default=SparseMoeSizes().layers)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    sizes = dataclasses.replace(SparseMoeSizes(), layers=asked.layers)
    requests = max(1, max(asked.tokens) // QUERY)
    limits = Limits(requests, QUERY - 1, asked.context + 1024, PAGE, compress_ratio=sizes.compress_ratio)
    plugins = load_plugins(PluginSettings())
    capability = probe("cuda", [entry.descriptor for entry in plugins.probes()])
    strategies = {
        entry.descriptor.name: entry.descriptor
        for entry in plugins.decode_strategies()
        if entry.descriptor.logits and entry.descriptor.device_lengths
        and not entry.descriptor.requirements.unmet(capability)
    }  # fmt: skip
    if not strategies:
        sys.exit("no installed strategy offers an indexer's scores on this device")
    first = next(iter(strategies.values()))
    logits = first.logits(sizes.index_heads, sizes.index_dim, PAGE, DEVICE)
    agreeing = check(sizes, limits, first, capability, logits)
    model = SparseMoe(sizes, limits, DEVICE, logits=logits)
    model.open(asked.context)
    rows = []
    for tokens in asked.tokens:
        graphs = {
            name: capture(make_step(model, one, capability, tokens, asked.context))
            for name, one in strategies.items()
        }
        times = {name: [] for name in graphs}
        for _ in range(asked.rounds):
            for name, graph in graphs.items():
                times[name].append(seconds(graph, 10))
        row = {"tokens": tokens} | {f"{n}_ms": round(1e3 * statistics.median(t), 3) for n, t in times.items()}
        row["spread_ms"] = round(1e3 * max(max(t) - min(t) for t in times.values()), 3)
        if tokens in (min(asked.tokens), 8, max(asked.tokens)):
            row["kernels"] = kernels(next(iter(graphs.values())))
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
        del graphs
    facts = {
        "device": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "context": asked.context,
    }
    facts |= {"sizes": sizes.as_dict(), "bytes": model.bytes, "agreeing_with_torch": agreeing}
    print(json.dumps(facts | {"rows": rows}))


if __name__ == "__main__":
    main()
