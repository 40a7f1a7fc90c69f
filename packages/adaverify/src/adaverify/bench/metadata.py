"""Decode rows in one launch, beside the chain of torch calls that anybody would write first."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Literal

import torch

from adaverify.bench.rows import OURS, PARTS, require_equal, time_columns, time_rows
from adaverify_contracts import (
    BenchmarkCell,
    BenchmarkColumn,
    BenchmarkOptions,
    BenchmarkResult,
    DecodeBatch,
    DecodeRows,
    Limits,
)
from adaverify_metadata import (
    FlattenRowBuilder,
    PairedRowBuilder,
    RowBuilder,
    UniformRowBuilder,
    VarlenRowBuilder,
    flatten_rows,
    paired_rows,
    uniform_rows,
    varlen_rows,
)

K = 7
PAGE = 64
# One token less than 2048 pages hold, K drafts included: the table is 2048 wide.
MODEL_LEN = 2048 * PAGE - K
LONGEST = 16384
REQUESTS = (16, 64, 256)
POISON = -77777
CHECKED_SEEDS = (1, 2, 3)

Reference = Callable[[DecodeBatch, Limits], DecodeRows]
BUILDERS: dict[str, tuple[type[RowBuilder], Reference]] = {
    "flatten": (FlattenRowBuilder, flatten_rows),
    "paired": (PairedRowBuilder, paired_rows),
    "varlen": (VarlenRowBuilder, varlen_rows),
    "uniform": (UniformRowBuilder, uniform_rows),
}


def run(options: BenchmarkOptions) -> BenchmarkResult:
    """Check every builder against its reference, then time it beside the torch chain."""
    sizes = options.requests or REQUESTS
    limits = Limits(max(sizes), K, MODEL_LEN, PAGE)
    backend: Literal["torch", "triton"] = "torch" if options.device.startswith("cpu") else "triton"
    cases = [(strategy, requests) for strategy in BUILDERS for requests in sizes]
    made = []
    for done, (strategy, requests) in enumerate(cases):
        options.progress(done, 2 * len(cases), f"checking {strategy} rows of {requests} requests")
        builder = BUILDERS[strategy][0](strategy, limits, options.device, backend=backend)
        batch = make_batch(limits, options.device, strategy, requests)
        check(options, builder, batch, limits)
        made.append((builder, batch))
    rows: list[tuple[BenchmarkCell, ...]] = []
    for done, ((strategy, requests), (builder, batch)) in enumerate(zip(cases, made, strict=True)):
        options.progress(len(cases) + done, 2 * len(cases), f"{strategy} rows of {requests} requests")
        width = builder.build(batch).tokens_per_row
        times = options.timer.time(
            {
                OURS: partial(builder.build, batch),
                "torch chain": partial(obvious, batch, width),
            }
        )
        rows += time_rows((strategy, requests, batch.padded_tokens), times, *PARTS)
    one = torch.zeros(1, dtype=torch.int32, device=options.device)
    floor = options.timer.time({"add 1": lambda: one.add_(1)})["add 1"]
    return BenchmarkResult(
        columns=(
            BenchmarkColumn("strategy"),
            BenchmarkColumn("requests"),
            BenchmarkColumn("tokens"),
            *time_columns(*PARTS),
        ),
        rows=tuple(rows),
        checks=(
            (
                f"{len(cases)} builders, captured where there are graphs, equal the reference exactly over "
                f"poisoned buffers for {len(CHECKED_SEEDS)} sets of lengths each"
            ),
            "the torch chain gives the same row lengths, owners and pages",
        ),
        data=f"K {K}, page {PAGE}, table {limits.table_width} wide, query lengths uniform in 1..{K + 1} (all "
        f"{K + 1} for uniform), KV lengths uniform in {K + 1}..{LONGEST}",
        cache="warm: every call reads the same inputs",
        facts={
            "backend": backend,
            "floor_us": {
                part: None if getattr(floor, part) is None else round(getattr(floor, part).median, 3)
                for part in PARTS
            },
        },
    )


def make_batch(limits: Limits, device: str, strategy: str, requests: int) -> DecodeBatch:
    """Make a batch whose lengths ``refill`` rewrites; its token count is that of seed 0."""
    tokens = sum(query_lens(requests, strategy, 0))
    pages = torch.Generator().manual_seed(requests)
    shape = (requests, limits.table_width)
    batch = DecodeBatch(
        query_start_loc=torch.zeros(requests + 1, dtype=torch.int32, device=device),
        seq_lens=torch.zeros(requests, dtype=torch.int32, device=device),
        block_table=torch.randint(0, 2**20, shape, generator=pages, dtype=torch.int32).to(device),
        num_requests=requests,
        num_tokens=tokens,
        padded_tokens=tokens,
        max_query_len=K + 1,
        uniform_query_len=K + 1 if strategy == "uniform" else None,
    )
    refill(batch, strategy, 0)
    return batch


def query_lens(requests: int, strategy: str, seed: int) -> list[int]:
    """Draw query lengths uniform in 1 .. K + 1; every seed is another order of the same ones."""
    if strategy == "uniform":
        return [K + 1] * requests
    lens = [random.Random(99 * requests + number).randint(1, K + 1) for number in range(requests)]
    random.Random(seed).shuffle(lens)
    return lens


def refill(batch: DecodeBatch, strategy: str, seed: int) -> None:
    """Write other device lengths of the same padded shape."""
    draw = random.Random(seed)
    start = torch.tensor([0, *query_lens(batch.requests, strategy, seed)]).cumsum(0)
    lens = [draw.randint(K + 1, LONGEST) for _ in range(batch.requests)]
    batch.query_start_loc.copy_(start.int())
    batch.seq_lens.copy_(torch.tensor(lens, dtype=torch.int32))


def obvious(batch: DecodeBatch, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return row lengths, schedule lengths, tables and owners: repeated per token, tables gathered whole.

    ``width`` is 1 (one token a row), 2 (paired) or the common query length (one row a request).
    """
    lens = batch.query_start_loc.diff()
    device = lens.device
    requests = torch.arange(batch.requests, device=device, dtype=torch.int32)
    slots = torch.arange(width, device=device)
    if width == 1:
        rows = torch.arange(batch.padded_tokens, device=device)
        owner = torch.repeat_interleave(requests, lens, output_size=batch.padded_tokens)
        from_end = (batch.query_start_loc[1:][owner] - 1 - rows)[:, None]
    elif width == 2:
        taken = (lens + 1) // 2
        count = min(batch.padded_tokens, (batch.padded_tokens + batch.requests) // 2)
        rows = torch.arange(count, device=device)
        repeats = torch.cat([taken, (count - taken.sum()).view(1)])
        ids = torch.cat([requests, requests[-1:]])
        owner = torch.repeat_interleave(ids, repeats, output_size=count)
        from_end = 2 * (taken.cumsum(0)[owner] - 1 - rows)[:, None] + 1 - slots
    else:
        owner = requests
        from_end = (width - 1 - slots).expand(batch.requests, width)
    held = (from_end >= 0) & (from_end < lens[owner][:, None])
    row_lens = torch.where(held, (batch.seq_lens[owner][:, None] - from_end).clamp(min=0), 0).int()
    return row_lens, row_lens.clamp(min=1), batch.block_table[owner], owner


def check(options: BenchmarkOptions, builder: RowBuilder, batch: DecodeBatch, limits: Limits) -> None:
    """Require exact rows from one captured build replayed with other lengths, and from the torch chain.

    Raises:
        WrongValueError: names strategy and field.
    """
    strategy = builder.strategy
    reference = BUILDERS[strategy][1]
    build = options.timer.captured(lambda: builder.build(batch))
    for seed in CHECKED_SEEDS:
        refill(batch, strategy, seed)
        for name, tensor in builder.buffers.items():
            tensor.fill_(0 if name == "block_table" else POISON)
        rows, expected = build(), reference(batch, limits)
        for name in ("row_lens", "schedule_lens", "row_request", "row_token", "token_slot"):
            require_equal(f"{strategy} rows: {name}", getattr(rows, name), getattr(expected, name))
        pages = (expected.row_lens[:, -1:] + PAGE - 1) // PAGE
        needed = torch.arange(limits.table_width, device=pages.device) < pages
        require_equal(
            f"{strategy} rows: block_table", rows.block_table * needed, expected.block_table * needed
        )
        lens, schedule, table, owner = obvious(batch, rows.tokens_per_row)
        real = expected.row_request < batch.requests
        require_equal(f"torch chain for {strategy}: row_lens", lens, expected.row_lens)
        require_equal(f"torch chain for {strategy}: schedule_lens", schedule, expected.schedule_lens)
        require_equal(
            f"torch chain for {strategy}: row_request", owner[real].int(), expected.row_request[real]
        )
        require_equal(
            f"torch chain for {strategy}: block_table", table * needed, expected.block_table * needed
        )
