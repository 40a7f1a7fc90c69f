"""Tune the row kernels' launch parameters, and time the schedule kernels, on a CUDA device; print JSON.

Rows beside a torch baseline are measured by ``adaverify bench metadata``. Needs torch, triton and pluggy, and
on PYTHONPATH the src folders of adaverify-contracts and -metadata:

    python benchmarks/metadata_rows.py [--strategy NAME ...] [--schedules] [--sweep] [--rounds N]

K = 7, page 64, table 2048 wide, query lengths uniform in 1..8, KV lengths uniform in 8..16384 (``served``) or
all 131072 (``full``). Every kernel is captured in a graph, replayed with other lengths over poisoned buffers
and compared with the torch reference before it is timed:

- ``single_us``: events around the replay of a graph of one build, the queue kept full before it; median.
- ``chain_us``: a graph of 32 builds, divided by 32; median. Of the launch only the graph's own gap is left.
- ``host_us``: host time of ``build`` on an idle queue; ``replay_host_us``: that of a graph replay; medians.

``floor`` is the same measurement of a kernel that adds 1 to one element. Variants are interleaved round by
round, so that a clock change hits all of them.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from dataclasses import asdict, fields

import torch

from adaverify_contracts import DecodeBatch, DecodeRows, Limits
from adaverify_metadata import (
    FlattenRowBuilder,
    HeadHeavySchedule,
    LaunchConfig,
    PairedRowBuilder,
    PairedUnitsSchedule,
    TailHeavySchedule,
    UniformRowBuilder,
    VarlenRowBuilder,
)

BUILDERS = {
    "flatten": FlattenRowBuilder,
    "paired": PairedRowBuilder,
    "varlen": VarlenRowBuilder,
    "uniform": UniformRowBuilder,
}
SCHEDULES = {
    "tail_heavy": TailHeavySchedule,
    "head_heavy": HeadHeavySchedule,
    "paired_units": PairedUnitsSchedule,
}
LIMITS = Limits(max_requests=256, draft_tokens=7, max_model_len=131065, page_size=64)
DEVICE = "cuda"
REQUESTS = (16, 64, 256)
CHAIN = 32
SWEEP = [
    LaunchConfig(rows_per_program=rows, table_columns=columns, num_warps=warps)
    for rows in (1, 2)
    for columns in (512, 1024, 2048)
    for warps in (1, 2, 4, 8)
]


def make_batch(requests: int, strategy: str, regime: str) -> DecodeBatch:
    """Make a batch whose tensors ``refill`` rewrites; the token count is fixed by the first lengths."""
    query = query_lens(requests, strategy, 0)
    tokens = sum(query)
    table = torch.randint(0, 2**20, (requests, LIMITS.table_width), dtype=torch.int32, device=DEVICE)
    batch = DecodeBatch(
        query_start_loc=torch.zeros(requests + 1, dtype=torch.int32, device=DEVICE),
        seq_lens=torch.zeros(requests, dtype=torch.int32, device=DEVICE),
        block_table=table,
        num_requests=requests,
        num_tokens=tokens,
        padded_tokens=tokens,
        max_query_len=LIMITS.max_query_len,
        uniform_query_len=8 if strategy == "uniform" else None,
    )
    refill(batch, strategy, regime, 0)
    return batch


def query_lens(requests: int, strategy: str, seed: int) -> list[int]:
    """Draw query lengths uniform in 1..8 (8 for the uniform strategy); the same total for every seed."""
    if strategy == "uniform":
        return [8] * requests
    lens = [random.Random(99 * requests + r).randint(1, 8) for r in range(requests)]
    random.Random(seed).shuffle(lens)
    return lens


def refill(batch: DecodeBatch, strategy: str, regime: str, seed: int) -> None:
    """Write other device lengths of the same padded shape."""
    draw = random.Random(seed)
    full = LIMITS.max_kv_len
    seq = [draw.randint(8, 16384) if regime == "served" else full for _ in range(batch.requests)]
    start = torch.tensor([0, *query_lens(batch.requests, strategy, seed)]).cumsum(0)
    batch.query_start_loc.copy_(start.int())
    batch.seq_lens.copy_(torch.tensor(seq, dtype=torch.int32))


def same(left: DecodeRows, right: DecodeRows) -> None:
    """Raise unless two sets of rows are equal bit for bit."""
    for field in fields(DecodeRows):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if isinstance(a, torch.Tensor) and not torch.equal(a, b):
            wrong = (a != b).nonzero()
            message = f"{left.strategy}.{field.name}: {len(wrong)} wrong, first at {wrong[0].tolist()}"
            raise SystemExit(message)


def capture(work, times: int = 1) -> torch.cuda.CUDAGraph:
    """Capture ``times`` calls of ``work`` in one graph, after a warm-up."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            work()
    return graph


def gpu_us(graph: torch.cuda.CUDAGraph, repeats: int) -> list[float]:
    """Time replays with the queue kept full: the events see the device only."""
    pairs = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)
    ]
    torch.cuda._sleep(4_000_000)
    for begin, end in pairs:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return [1000 * begin.elapsed_time(end) for begin, end in pairs]


def host_us(work, repeats: int = 60) -> float:
    """Time the host's part of a call on an idle queue."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        work()
        times.append((time.perf_counter_ns() - began) / 1000)
    return statistics.median(times)


def check(builder, batch: DecodeBatch, strategy: str, regime: str) -> None:
    """Capture, replay with other lengths from poison, compare with the reference each time."""
    reference = BUILDERS[strategy](strategy, LIMITS, DEVICE, backend="torch")
    held = {}
    graph = capture(lambda: held.update(rows=builder.build(batch)))
    for seed in (1, 2, 3, 0):
        refill(batch, strategy, regime, seed)
        for tensor in (*builder.buffers.values(), *reference.buffers.values()):
            tensor.fill_(-77777)
        graph.replay()
        same(held["rows"], reference.build(batch))


def measure(works: dict[str, object], rounds: int, repeats: int) -> dict[str, float]:
    """Time every named work, singly and chained, interleaved over rounds; medians of all repeats."""
    graphs = {}
    for name, work in works.items():
        graphs[f"{name}single_us"] = (capture(work), 1)
        graphs[f"{name}chain_us"] = (capture(work, CHAIN), CHAIN)
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, (graph, times) in graphs.items():
            found[name] += [value / times for value in gpu_us(graph, repeats // (1 if times == 1 else 4))]
    report = {name: round(statistics.median(values), 3) for name, values in found.items()}
    for name, work in works.items():
        report[f"{name}host_us"] = round(host_us(work), 2)
        report[f"{name}replay_host_us"] = round(host_us(graphs[f"{name}single_us"][0].replay), 2)
    return report


def sweep_report(strategy: str, rounds: int, repeats: int) -> list[dict]:
    """Measure every launch configuration of one strategy, each checked first."""
    lines = []
    for regime in ("served", "full"):
        for requests in REQUESTS:
            batch = make_batch(requests, strategy, regime)
            works, labels = {}, {}
            for number, config in enumerate(SWEEP):
                builder = BUILDERS[strategy](strategy, LIMITS, DEVICE, backend="triton", launch=config)
                check(builder, batch, strategy, regime)
                graph = capture(lambda b=builder, x=batch: b.build(x), CHAIN)
                works[number], labels[number] = (builder, graph), asdict(config)
            found: dict[int, list[float]] = {number: [] for number in works}
            for _ in range(rounds):
                for number, (_, graph) in works.items():
                    found[number] += [value / CHAIN for value in gpu_us(graph, max(4, repeats // 8))]
            medians = {number: statistics.median(values) for number, values in found.items()}
            order = sorted(medians, key=medians.__getitem__)
            best = [{"chain_us": round(medians[n], 3)} | labels[n] for n in order]
            default = next(n for n, label in labels.items() if label == asdict(LaunchConfig()))
            lines.append(
                {
                    "strategy": strategy,
                    "regime": regime,
                    "requests": requests,
                    "default_us": round(medians[default], 3),
                    "best": best[:6],
                    "worst": best[-1],
                }
            )
            sys.stderr.write(json.dumps(lines[-1]) + "\n")
    return lines


def schedule_report(rounds: int, repeats: int) -> list[dict]:
    """Check and measure the schedule kernels on the rows of each size."""
    lines = []
    slots = torch.cuda.get_device_properties(0).multi_processor_count
    for requests in REQUESTS:
        batch = make_batch(requests, "varlen", "served")
        rows = VarlenRowBuilder("varlen", LIMITS, DEVICE, backend="torch").build(batch)
        for name, made in SCHEDULES.items():
            kernel, reference = (made(LIMITS, DEVICE, slots, backend=b) for b in ("triton", "torch"))
            kernel.schedule.fill_(-77777)
            arguments = (rows.schedule_lens, rows.request_indices)
            if not torch.equal(kernel.build(*arguments), reference.build(*arguments)):
                raise SystemExit(f"{name}: the kernel differs from the reference")
            works = {"": lambda k=kernel, a=arguments: k.build(*a)}
            line = {"schedule": name, "requests": requests, "rows": rows.rows, "slots": slots, "equal": True}
            lines.append(line | measure(works, rounds, repeats))
            sys.stderr.write(json.dumps(lines[-1]) + "\n")
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Run the checks and measurements that were asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategy", action="append", choices=sorted(BUILDERS))
    parser.add_argument("--schedules", action="store_true", help="schedules only")
    parser.add_argument("--sweep", action="store_true", help="also try every launch configuration (flatten)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=80)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        sys.stderr.write("metadata_rows: needs a CUDA device\n")
        return 2
    import triton

    one = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    report: dict[str, object] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "clock_khz": torch.cuda.get_device_properties(0).clock_rate
        if hasattr(torch.cuda.get_device_properties(0), "clock_rate")
        else None,
        "data": "K 7, page 64, table 2048, query lengths 1..8; served KV 8..16384, full KV 131072; warm",
        "floor": measure({"one_element_": lambda: one.add_(1)}, options.rounds, options.repeats),
    }
    if options.schedules or not options.strategy:
        report["schedules"] = schedule_report(options.rounds, options.repeats)
    if options.sweep:
        report["sweep"] = [
            x
            for name in (options.strategy or ["flatten", "paired"])
            for x in sweep_report(name, 3, options.repeats)
        ]
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
