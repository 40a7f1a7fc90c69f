"""Check, then time, paged MQA logits with one and with two query tokens a row; print one JSON document.

Needs a Hopper GPU, DeepGEMM and, on PYTHONPATH, the src folders of adaverify-contracts, -metadata and this
plugin: ``python benchmarks/logits.py [--rounds N] [--repeats N] [--commit HASH]``.

For 1, 16 and 64 requests, query lengths uniform in 1..8 (``ragged``) and all 8 (``full``), every KV length
2048, 8192 or 32768; H = 64, D = 128, page 64, pages permuted. Each case is captured both ways; the flattened
result is compared with the float32 reference on a sample of tokens and the paired one with the flattened one
on all tokens. Only then it is timed, by events around graph replays with the queue kept full, variants
interleaved round by round. Warm cache: the pool of the longest context is larger than the cache anyway.

- ``flatten_us``, ``paired_us``: rows, schedule, logits and mask in one graph; paired includes the gather of
  queries and weights into pairs, which flattened rows do not need. The cells of ``RowCostTable``.
- ``flatten_logits_us``, ``paired_logits_us``: the library's kernel alone.
- ``noise_us``: half the larger interquartile range of the first two.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable

import torch

from adaverify_contracts import DecodeBatch, DecodeRows, Limits
from adaverify_metadata import FlattenRowBuilder, PairedRowBuilder, TailHeavySchedule
from adaverify_metadata.paged_logits import (
    pack_pages,
    paged_mqa_logits_reference,
    relative_errors,
)
from adaverify_sm90_flatten.deep_gemm.adapter import PagedMqaLogits, import_library
from adaverify_sm90_flatten.ops.gather_slots.launch import gather_slots

HEADS, DIM, PAGE, K = 64, 128, 64, 7
REQUESTS = (1, 16, 64)
CONTEXTS = (2048, 8192, 32768)
TOLERANCE = 1e-3
SAMPLE = 24


class Case:
    """One shape, both ways."""

    def __init__(self, library, requests: int, kind: str, context: int, pool: torch.Tensor) -> None:
        draw = random.Random(requests)
        query = [K + 1 if kind == "full" else draw.randint(1, K + 1) for _ in range(requests)]
        self.requests, self.kind, self.context, self.tokens = requests, kind, context, sum(query)
        self.limits = Limits(requests, K, context - K, PAGE)
        self.width = self.limits.max_kv_len
        size = requests * self.limits.table_width
        made = torch.Generator(device="cuda").manual_seed(requests)
        order = torch.randperm(size, generator=made, device="cuda", dtype=torch.int32)
        self.pool = pool[:size]
        self.batch = DecodeBatch(
            query_start_loc=torch.tensor([0, *query]).cumsum(0).int().cuda(),
            seq_lens=torch.full((requests,), context, dtype=torch.int32, device="cuda"),
            block_table=order.view(requests, -1),
            num_requests=requests,
            num_tokens=self.tokens,
            padded_tokens=self.tokens,
            max_query_len=K + 1,
        )
        values = torch.randn(self.tokens, HEADS, DIM, generator=made, device="cuda")
        self.query = values.to(torch.float8_e4m3fn)
        self.weights = torch.rand(self.tokens, HEADS, generator=made, device="cuda") + 0.1
        self.library = library
        self.logits = PagedMqaLogits(library, heads=HEADS, head_dim=DIM, page_size=PAGE, device="cuda")
        self.logits.warm_up([1, 2])
        self.builders = {
            name: made_by(
                name,
                self.limits,
                "cuda",
                backend="triton",
                schedule=TailHeavySchedule(self.limits, "cuda", self.logits.slots(1), backend="triton"),
            )
            for name, made_by in (("flatten", FlattenRowBuilder), ("paired", PairedRowBuilder))
        }

    def inputs(self, rows: DecodeRows) -> tuple[torch.Tensor, torch.Tensor]:
        return gather_slots(self.query, self.weights, rows)

    def step(self, name: str) -> tuple[DecodeRows, torch.Tensor]:
        rows = self.builders[name].build(self.batch)
        query, weights = self.inputs(rows)
        return rows, self.logits.rows(query, self.pool, weights, rows, self.width)

    def kernel_alone(self, name: str) -> Callable[[], object]:
        rows = self.builders[name].build(self.batch)
        query, weights = self.inputs(rows)
        call = self.library.fp8_fp4_paged_mqa_logits
        arguments = (self.pool, weights, rows.row_lens, rows.block_table, rows.schedule, self.width)
        return lambda: call((query, None), *arguments)

    def check(self) -> dict[str, float]:
        """Compare captured results, or stop."""
        found = {}
        for name in self.builders:
            held: dict[str, tuple[DecodeRows, torch.Tensor]] = {}
            graph = capture(lambda n=name, h=held: h.update(out=self.step(n)))
            graph.replay()
            rows, scores = held["out"]
            found[name] = scores[rows.token_slot]
        flat, _ = self.step("flatten")
        picked = torch.randperm(self.tokens, generator=torch.Generator().manual_seed(1))[:SAMPLE].cuda()
        want = paged_mqa_logits_reference(
            self.query.view(torch.uint8)[picked].view(self.query.dtype)[:, None],
            self.pool,
            self.weights[picked],
            flat.row_lens[picked],
            flat.block_table[picked],
            self.width,
        )
        errors = {
            "flatten against reference": worst(found["flatten"][picked], want),
            "paired against flatten": worst(found["paired"], found["flatten"]),
        }
        if max(errors.values()) >= TOLERANCE:
            raise SystemExit(f"{self.requests} {self.kind} {self.context}: {errors}, allowed {TOLERANCE}")
        return errors


def worst(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return the worst relative error of any row, infinite when the masks differ."""
    if not torch.equal(got == float("-inf"), want == float("-inf")):
        return float("inf")
    return float(relative_errors(got, want).max())


def capture(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Capture one call after a warm-up."""
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(2):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def times_us(graph: torch.cuda.CUDAGraph, repeats: int) -> list[float]:
    """Time replays with the queue kept full: the events see the device only."""
    pairs = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)
    ]
    torch.cuda._sleep(2_000_000)
    for begin, end in pairs:
        begin.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return [1000 * begin.elapsed_time(end) for begin, end in pairs]


def measure(case: Case, rounds: int, repeats: int) -> dict[str, float]:
    """Return medians of interleaved rounds, and the noise."""
    works: dict[str, Callable[[], object]] = {}
    for name in case.builders:
        works[name] = lambda n=name: case.step(n)
        works[f"{name}_logits"] = case.kernel_alone(name)
    graphs = {name: capture(work) for name, work in works.items()}
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            found[name] += times_us(graph, repeats)
    report = {f"{name}_us": round(statistics.median(values), 2) for name, values in found.items()}
    spreads = []
    for name in case.builders:
        low, _, high = statistics.quantiles(found[name], n=4)
        spreads.append((high - low) / 2)
    return report | {"noise_us": round(max(spreads), 2)}


def main(arguments: list[str] | None = None) -> int:
    """Check and measure every case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        sys.stderr.write("logits: needs a device of compute capability 9.0\n")
        return 2
    library = import_library()
    import triton

    pages = max(REQUESTS) * Limits(1, K, max(CONTEXTS) - K, PAGE).table_width
    pool = pack_pages(
        torch.randn(pages, PAGE, DIM, generator=torch.Generator("cuda").manual_seed(0), device="cuda")
    )
    cells = []
    for context in CONTEXTS:
        for requests in REQUESTS:
            for kind in ("ragged", "full"):
                case = Case(library, requests, kind, context, pool)
                errors = case.check()
                cell = {
                    "requests": requests,
                    "kind": kind,
                    "tokens": case.tokens,
                    "context": context,
                    "rows": {name: case.builders[name].build(case.batch).rows for name in case.builders},
                    "errors": errors,
                }
                cells.append(cell | measure(case, options.rounds, options.repeats))
                sys.stderr.write(json.dumps(cells[-1]) + "\n")
    report = {
        "fingerprint": {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "deep_gemm": library.__version__,
            "heads": HEADS,
            "head_dim": DIM,
            "page_size": PAGE,
        },
        "commit": options.commit,
        "rounds": options.rounds,
        "repeats": options.repeats,
        "cells": cells,
    }
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
