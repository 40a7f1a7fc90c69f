"""Paged MQA logits with two query tokens a row, beside one token a row: rows, schedule, logits and mask."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import torch

from adaverify_contracts import (
    BenchmarkCell,
    BenchmarkColumn,
    BenchmarkOptions,
    BenchmarkResult,
    DecodeBatch,
    DecodeRows,
    Limits,
    WrongValueError,
    ceil_div,
)
from adaverify_metadata import (
    FlattenRowBuilder,
    PairedRowBuilder,
    RowBuilder,
    TailHeavySchedule,
    pack_pages,
    paged_mqa_logits_reference,
    relative_errors,
)
from adaverify_sm90_flatten.deep_gemm.adapter import PagedMqaLogits, import_library
from adaverify_sm90_flatten.ops.gather_slots.launch import gather_slots

HEADS, DIM, PAGE, K = 64, 128, 64, 7
REQUESTS = (64,)
CONTEXTS = (2048, 8192, 32768)
# Query lengths uniform from here to K + 1: means of 4.5, 6 and 8.
SHORTEST = (1, 4, 8)
# 1.3e-4 was measured against float32 (deepgemm section 10); a misread tensor is off by far more.
TOLERANCE = 1e-3
SAMPLE = 24

BUILDERS: dict[str, type[RowBuilder]] = {"flatten": FlattenRowBuilder, "paired": PairedRowBuilder}


class Case:
    """One shape, both ways.

    Args:
        options: device and timer.
        library: the imported DeepGEMM.
        requests: decode requests.
        shortest: shortest query length.
        context: KV length of every request.
        pool: packed KV pages, at least as many as the requests need.
    """

    def __init__(
        self,
        options: BenchmarkOptions,
        library: Any,
        requests: int,
        shortest: int,
        context: int,
        pool: torch.Tensor,
    ) -> None:
        device = options.device
        draw = random.Random(requests)
        query = [draw.randint(shortest, K + 1) for _ in range(requests)]
        # Executed at the next multiple of K + 1, as a captured tier would: padding included.
        self.real, self.tokens = sum(query), ceil_div(sum(query), K + 1) * (K + 1)
        self.what = f"{requests} requests of {shortest}..{K + 1} tokens at context {context}"
        self._timer = options.timer
        self._limits = Limits(requests, K, context - K, PAGE)
        self._width = self._limits.max_kv_len
        size = requests * self._limits.table_width
        made = torch.Generator(device=device).manual_seed(requests)
        order = torch.randperm(size, generator=made, device=device, dtype=torch.int32)
        self._pool = pool[:size]
        self._batch = DecodeBatch(
            query_start_loc=torch.tensor([0, *query]).cumsum(0).int().to(device),
            seq_lens=torch.full((requests,), context, dtype=torch.int32, device=device),
            block_table=order.view(requests, -1),
            num_requests=requests,
            num_tokens=self.real,
            padded_tokens=self.tokens,
            max_query_len=K + 1,
        )
        values = torch.randn(self.tokens, HEADS, DIM, generator=made, device=device)
        self._query = values.to(torch.float8_e4m3fn)
        self._weights = torch.rand(self.tokens, HEADS, generator=made, device=device) + 0.1
        self._library = library
        self._logits = PagedMqaLogits(library, heads=HEADS, head_dim=DIM, page_size=PAGE, device=device)
        self._logits.warm_up([1, 2])
        slots = self._logits.slots(1)
        self._builders = {
            name: kind(
                name,
                self._limits,
                device,
                backend="triton",
                schedule=TailHeavySchedule(self._limits, device, slots, backend="triton"),
            )
            for name, kind in BUILDERS.items()
        }

    def step(self, name: str) -> Callable[[], tuple[DecodeRows, torch.Tensor]]:
        """Return the whole step of one strategy; paired gathers queries and weights into pairs first."""

        def run_it() -> tuple[DecodeRows, torch.Tensor]:
            rows = self._builders[name].build(self._batch)
            query, weights = gather_slots(self._query, self._weights, rows)
            return rows, self._logits.rows(query, self._pool, weights, rows, self._width)

        return run_it

    def kernel(self, name: str) -> Callable[[], object]:
        """Return the library's kernel alone, on the rows of one strategy."""
        rows = self._builders[name].build(self._batch)
        query, weights = gather_slots(self._query, self._weights, rows)
        call = self._library.fp8_fp4_paged_mqa_logits
        arguments = (self._pool, weights, rows.row_lens, rows.block_table, rows.schedule, self._width)
        return lambda: call((query, None), *arguments)

    def check(self) -> None:
        """Compare captured results: flattened with the float32 reference, paired with flattened.

        Raises:
            WrongValueError: a mask differs, or an error is beyond the tolerance.
        """
        found = {}
        for name in self._builders:
            rows, scores = self._timer.captured(self.step(name))()
            found[name] = scores[rows.token_slot][: self.real].clone()
        flat = self._builders["flatten"].build(self._batch)
        picked = torch.randperm(self.real, generator=torch.Generator().manual_seed(1))[:SAMPLE]
        picked = picked.to(flat.row_lens.device)
        want = paged_mqa_logits_reference(
            self._query.view(torch.uint8)[picked].view(self._query.dtype)[:, None],
            self._pool,
            self._weights[picked],
            flat.row_lens[picked],
            flat.block_table[picked],
            self._width,
        )
        self._require("flatten against the reference", found["flatten"][picked], want)
        self._require("paired against flatten", found["paired"], found["flatten"])

    def _require(self, what: str, got: torch.Tensor, want: torch.Tensor) -> None:
        masked = torch.equal(got == float("-inf"), want == float("-inf"))
        error = float(relative_errors(got, want).max()) if masked else float("inf")
        if not error < TOLERANCE:
            raise WrongValueError(
                f"logits of {self.what}: {what}",
                arrived=error if masked else "another mask",
                allowed=f"a relative error below {TOLERANCE}",
                remedy="see `adaverify doctor` for the kernel deep-gemm; no time was taken",
            )


def run(options: BenchmarkOptions) -> BenchmarkResult:
    """Check every shape both ways, then time the captured steps and the kernels alone."""
    import triton

    library = import_library()
    sizes = options.requests or REQUESTS
    pages = max(sizes) * Limits(1, K, max(CONTEXTS) - K, PAGE).table_width
    made = torch.Generator(options.device).manual_seed(0)
    pool = pack_pages(torch.randn(pages, PAGE, DIM, generator=made, device=options.device))
    shapes = [(r, shortest, context) for context in CONTEXTS for r in sizes for shortest in SHORTEST]
    cases = []
    for done, shape in enumerate(shapes):
        cases.append(Case(options, library, *shape, pool))
        options.progress(done, 2 * len(shapes), f"checking {cases[-1].what}")
        cases[-1].check()
    rows = []
    for done, (shape, case) in enumerate(zip(shapes, cases, strict=True)):
        options.progress(len(shapes) + done, 2 * len(shapes), case.what)
        rows.append(_measure(options, shape, case))
    return BenchmarkResult(
        columns=(
            BenchmarkColumn("requests"),
            BenchmarkColumn("shortest", "query tokens"),
            BenchmarkColumn("tokens", "query tokens, padding included"),
            BenchmarkColumn("context", "tokens"),
            BenchmarkColumn("flatten_us", "us"),
            BenchmarkColumn("paired_us", "us"),
            BenchmarkColumn("ratio", "flatten / paired"),
            BenchmarkColumn("kernel_ratio", "flatten / paired"),
            BenchmarkColumn("noise_us", "us"),
            BenchmarkColumn("flatten_kernel_us", "us", shown=False),
            BenchmarkColumn("paired_kernel_us", "us", shown=False),
        ),
        rows=tuple(rows),
        checks=(
            (
                f"captured flattened logits equal the float32 reference on {SAMPLE} tokens a shape, relative "
                f"error below {TOLERANCE}, masks exactly"
            ),
            "captured paired logits equal the flattened ones on all tokens, likewise",
        ),
        data=f"{HEADS} heads of {DIM}, page {PAGE}, pages permuted, every KV length the context, query "
        f"lengths uniform from the shortest to {K + 1}, padded to the next multiple of {K + 1}",
        cache="warm: every replay reads the same pages; at the longest context they outgrow the cache",
        notes=(
            (
                "a time is of one replay of rows, schedule, logits and mask; kernel ratio of the library's "
                "kernel alone"
            ),
            "noise is half the larger interquartile range of both",
        ),
        facts={
            "device": torch.cuda.get_device_name(options.device),
            "torch": str(torch.__version__),
            "triton": str(triton.__version__),
            "deep_gemm": str(library.__version__),
            "heads": HEADS,
            "head_dim": DIM,
            "page_size": PAGE,
            "row_costs": row_costs(rows),
        },
    )


def row_costs(rows: Iterable[tuple[BenchmarkCell, ...]]) -> list[dict[str, BenchmarkCell]]:
    """Return what a step cost with each strategy, in seconds, as the runtime's row-cost table has it.

    Where two kinds of batches were padded to one size, the one in which pairs fared worse counts.
    """
    worst: dict[tuple[int, int], tuple[float, float, float]] = {}
    for row in rows:
        tokens, context, flatten, paired = (
            int(row[2] or 0),
            int(row[3] or 0),
            float(row[4] or 0),
            float(row[5] or 0),
        )
        known = worst.get((tokens, context))
        if known is None or flatten / paired < known[0] / known[1]:
            worst[tokens, context] = (flatten, paired, float(row[8] or 0))
    return [
        {
            "strategy": name,
            "tokens": tokens,
            "context": context,
            "seconds": time / 1e6,
            "noise_seconds": noise / 1e6,
        }
        for (tokens, context), (flatten, paired, noise) in worst.items()
        for name, time in (("flatten", flatten), ("paired", paired))
    ]


def _measure(options: BenchmarkOptions, shape: tuple[int, int, int], case: Case) -> tuple[BenchmarkCell, ...]:
    works: dict[str, Callable[[], object]] = {name: case.step(name) for name in BUILDERS}
    works |= {f"{name} kernel": case.kernel(name) for name in BUILDERS}
    found = {}
    for name, times in options.timer.time(works).items():
        if times.graph_gpu is None:
            raise WrongValueError(
                "the timer took no time of a replay",
                arrived=options.device,
                allowed="a CUDA device",
                remedy="run it on a card",
            )
        found[name] = times.graph_gpu
    requests, shortest, context = shape
    medians = {name: round(one.median, 2) for name, one in found.items()}
    noise = max((found[name].high - found[name].low) / 2 for name in BUILDERS)
    return (
        requests,
        shortest,
        case.tokens,
        context,
        medians["flatten"],
        medians["paired"],
        round(found["flatten"].median / found["paired"].median, 3),
        round(found["flatten kernel"].median / found["paired kernel"].median, 3),
        round(noise, 2),
        medians["flatten kernel"],
        medians["paired kernel"],
    )
