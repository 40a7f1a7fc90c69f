"""Decode rows of the registered strategies, beside the chain of torch calls one would write first."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import fsum

import torch

from adaverify.bench.rows import OURS, PARTS, require_equal, time_columns, time_rows
from adaverify.session import discover
from adaverify_contracts import (
    BenchmarkCell,
    BenchmarkColumn,
    BenchmarkOptions,
    BenchmarkResult,
    DecodeBatch,
    DecodeRowBuilder,
    DecodeRows,
    DecodeStrategyDescriptor,
    Limits,
    NoStrategyError,
    Sample,
    Times,
)
from adaverify_metadata import flatten_rows, paired_rows, uniform_rows, varlen_rows
from adaverify_runtime import limit_reasons

K = 7
PAGE = 64
# One token less than 2048 pages hold, K drafts included: the table is 2048 wide.
MODEL_LEN = 2048 * PAGE - K
LONGEST = 16384
REQUESTS = (16, 64, 256)
POISON = -77777
CHECKED_SEEDS = (1, 2, 3)
CHAIN = "torch chain"
RAGGED, FULL = "ragged", "full"

Reference = Callable[[DecodeBatch, Limits], DecodeRows]


@dataclass(frozen=True, slots=True)
class Case:
    """One batch with the builders that can serve it.

    Attributes:
        kind: ``ragged`` or ``full``, every query K + 1 tokens; requests: its size.
        batch: with a common query length for strategies that need one; ragged: the same tensors without.
        builders: by strategy; widths: query tokens a row of each.
    """

    kind: str
    requests: int
    batch: DecodeBatch
    ragged: DecodeBatch
    builders: Mapping[str, tuple[DecodeRowBuilder, bool]]
    widths: dict[str, int]

    def batch_of(self, strategy: str) -> DecodeBatch:
        """Return the batch as this strategy is given it."""
        return self.ragged if self.builders[strategy][1] else self.batch


def run(options: BenchmarkOptions) -> BenchmarkResult:
    """Check the rows of every strategy that fits, then time them together on the same batches."""
    sizes = options.requests or REQUESTS
    limits = Limits(max(sizes), K, MODEL_LEN, PAGE)
    fitting, skipped = strategies(options, limits)
    cases = []
    for done, (kind, requests) in enumerate((kind, size) for kind in (RAGGED, FULL) for size in sizes):
        options.progress(done, 4 * len(sizes), f"checking {kind} batches of {requests} requests")
        cases.append(make_case(options, limits, fitting, kind, requests))
    own_uniform = max((one for one in fitting if not one.device_lengths), key=_rank, default=None)
    rows: list[tuple[BenchmarkCell, ...]] = []
    kept: dict[tuple[str, str], list[dict[str, Times]]] = {}
    for done, case in enumerate(cases):
        options.progress(2 * len(sizes) + done, 4 * len(sizes), f"{case.kind} {case.requests} requests")
        times = time_case(options, case)
        for strategy in case.builders:
            pair = {OURS: times[strategy], CHAIN: times[_chain(case.widths[strategy])]}
            base = None if own_uniform is None or case.kind != FULL else times[own_uniform.name]
            rows += _rows((strategy, case.kind, case.requests, case.batch.padded_tokens), pair, base)
            kept.setdefault((strategy, case.kind), []).append(
                pair if base is None else pair | {"uniform": base}
            )
    for (strategy, kind), found in kept.items():
        mean = {name: _mean([one[name] for one in found]) for name in found[0]}
        base = mean.pop("uniform", None)
        rows += _rows((strategy, kind, "mean", None), mean, base)
    one = torch.zeros(1, dtype=torch.int32, device=options.device)
    floor = options.timer.time({"add 1": lambda: one.add_(1)})["add 1"]
    return BenchmarkResult(
        columns=(
            BenchmarkColumn("strategy"),
            BenchmarkColumn("batch"),
            BenchmarkColumn("requests"),
            BenchmarkColumn("tokens"),
            *time_columns(*PARTS),
            *(BenchmarkColumn(f"{part}_uniform_ratio", "uniform / this") for part in PARTS),
        ),
        rows=tuple(rows),
        checks=(
            (
                f"{sum(len(case.builders) for case in cases)} builds, captured where there are graphs, equal "
                f"the reference exactly over poisoned buffers for {len(CHECKED_SEEDS)} sets of lengths each"
            ),
            "the torch chain gives the same row lengths, owners and pages",
            "work schedules, where there are any, are rewritten; the conformance kit compares values",
        ),
        data=f"K {K}, page {PAGE}, table {limits.table_width} wide, query lengths uniform in 1..{K + 1} "
        f"(ragged) or all {K + 1} (full), KV lengths uniform in {K + 1}..{LONGEST}",
        cache="warm: every call reads the same inputs",
        notes=_notes(None if own_uniform is None else own_uniform.name),
        facts={
            "strategies": [one.name for one in fitting],
            "skipped": skipped,
            "own_uniform": None if own_uniform is None else own_uniform.name,
            "schedules": sorted(
                {name for case in cases for name, (made, _) in case.builders.items() if _scheduled(made)}
            ),
            "floor_us": {
                part: None if getattr(floor, part) is None else round(getattr(floor, part).median, 3)
                for part in PARTS
            },
        },
    )


def strategies(
    options: BenchmarkOptions, limits: Limits
) -> tuple[tuple[DecodeStrategyDescriptor, ...], dict[str, list[str]]]:
    """Return the registered strategies that fit device and limits, and why others do not.

    Raises:
        NoStrategyError: none fits.
    """
    _, plugins = discover()
    plugins.check_requirements(options.capability)
    fitting, skipped = [], {}
    for entry in plugins.decode_strategies():
        one = entry.descriptor
        reasons = one.requirements.unmet(options.capability)
        reasons = reasons or limit_reasons(one, limits)
        if reasons:
            skipped[one.name] = list(reasons)
        else:
            fitting.append(one)
    if not fitting:
        raise NoStrategyError(
            "no decode strategy fits this device",
            {name: tuple(reasons) for name, reasons in skipped.items()},
            remedy="install a plugin for it: adaverify-reference serves any device",
        )
    return tuple(sorted(fitting, key=_rank, reverse=True)), skipped


def make_case(
    options: BenchmarkOptions,
    limits: Limits,
    fitting: tuple[DecodeStrategyDescriptor, ...],
    kind: str,
    requests: int,
) -> Case:
    """Return a checked case of all strategies that can serve it: ragged ones serve full batches too.

    Raises:
        WrongValueError: names strategy and field.
    """
    device = torch.device(options.device)
    builders = {
        one.name: (one.allocate(limits, device, options.capability), one.device_lengths)
        for one in fitting
        if one.device_lengths or kind == FULL
    }
    batch = make_batch(limits, options.device, kind, requests)
    case = Case(kind, requests, batch, replace(batch, uniform_query_len=None), builders, {})
    for name, (builder, _) in builders.items():
        case.widths[name] = check(options, builder, case.batch_of(name), limits, kind)
    refill(batch, kind, 0)
    return case


def time_case(options: BenchmarkOptions, case: Case) -> Mapping[str, Times]:
    """Return the times of every strategy and of the torch chains, taken in turn on one batch."""
    works: dict[str, Callable[[], object]] = {
        name: partial(builder.build, case.batch_of(name)) for name, (builder, _) in case.builders.items()
    }
    for width in sorted(set(case.widths.values())):
        works[_chain(width)] = partial(obvious, case.batch, width)
    return options.timer.time(works)


def _notes(own_uniform: str | None) -> tuple[str, ...]:
    return (
        (
            f"uniform ratio: {own_uniform} on the same full batch, taken in the same rounds, divided by this "
            "variant; 1 or more means that a ragged strategy costs no more than our own uniform path"
        )
        if own_uniform is not None
        else "no uniform strategy fits here, so there is nothing to hold full batches against",
        "mean: of the medians over all sizes; its ratios are of these means",
        "strategies listed in the facts under schedules rebuild a kernel's schedule too; the chain does not",
    )


def _rows(
    case: tuple[BenchmarkCell, ...], pair: Mapping[str, Times], uniform: Times | None
) -> list[tuple[BenchmarkCell, ...]]:
    made = time_rows(case, pair, *PARTS)
    return [
        (*row, *(_ratio(uniform, own, part) for part in PARTS))
        for row, own in zip(made, pair.values(), strict=True)
    ]


def _ratio(base: Times | None, own: Times, part: str) -> float | None:
    theirs, ours = None if base is None else getattr(base, part), getattr(own, part)
    return None if theirs is None or ours is None else round(theirs.median / ours.median, 4)


def _mean(times: list[Times]) -> Times:
    """Return the means over sizes, of medians and of quartiles."""
    found = {}
    for part in PARTS:
        parts = [getattr(one, part) for one in times]
        if all(one is not None for one in parts):
            ends = ([getattr(one, end) for one in parts] for end in ("median", "low", "high"))
            found[part] = Sample(*(fsum(values) / len(values) for values in ends))
    return Times(**found)


def _rank(one: DecodeStrategyDescriptor) -> tuple[int, str]:
    return one.priority, one.name


def _chain(width: int) -> str:
    return f"{CHAIN} of {width}"


def _scheduled(builder: DecodeRowBuilder) -> bool:
    return any("schedule" in name and "lens" not in name for name in builder.buffers)


def reference_of(rows: DecodeRows, batch: DecodeBatch) -> Reference:
    """Return the reference of the layout that a strategy chose: by tokens a row, and by joined requests."""
    if rows.tokens_per_row == 1 and batch.max_query_len > 1:
        return varlen_rows if rows.request_indices is not None else flatten_rows
    return uniform_rows if rows.tokens_per_row == batch.max_query_len else paired_rows


def make_batch(limits: Limits, device: str, kind: str, requests: int) -> DecodeBatch:
    """Make a batch whose lengths ``refill`` rewrites; its token count is that of seed 0."""
    tokens = sum(query_lens(requests, kind, 0))
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
        uniform_query_len=K + 1 if kind == FULL else None,
    )
    refill(batch, kind, 0)
    return batch


def query_lens(requests: int, kind: str, seed: int) -> list[int]:
    """Draw query lengths uniform in 1 .. K + 1; every seed is another order of the same ones."""
    if kind == FULL:
        return [K + 1] * requests
    lens = [random.Random(99 * requests + number).randint(1, K + 1) for number in range(requests)]
    random.Random(seed).shuffle(lens)
    return lens


def refill(batch: DecodeBatch, kind: str, seed: int) -> None:
    """Write other device lengths of the same padded shape."""
    draw = random.Random(seed)
    start = torch.tensor([0, *query_lens(batch.requests, kind, seed)]).cumsum(0)
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


def check(
    options: BenchmarkOptions, builder: DecodeRowBuilder, batch: DecodeBatch, limits: Limits, kind: str
) -> int:
    """Require exact rows from one captured build replayed with other lengths, and from the torch chain.

    Returns:
        Query tokens a row.

    Raises:
        WrongValueError: names strategy and field.
    """
    strategy = builder.strategy
    reference = reference_of(builder.build(batch), batch)
    build = options.timer.captured(lambda: builder.build(batch))
    for seed in CHECKED_SEEDS:
        refill(batch, kind, seed)
        for name, tensor in builder.buffers.items():
            tensor.fill_(0 if name.endswith("block_table") else POISON)
        rows, expected = build(), reference(batch, limits)
        for name in ("row_lens", "schedule_lens", "row_request", "row_token", "token_slot"):
            require_equal(f"{strategy} rows: {name}", getattr(rows, name), getattr(expected, name))
        if rows.schedule is not None:
            left = rows.schedule == POISON
            require_equal(f"{strategy} rows: schedule left as it was", left, torch.zeros_like(left))
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
    return rows.tokens_per_row
