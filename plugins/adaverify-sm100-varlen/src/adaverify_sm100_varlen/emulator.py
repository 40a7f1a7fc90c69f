"""What the chip's kernel does with a schedule and its tensors, in torch: the oracle where no card is at hand.

Everything is vectorised over (slot, run, split) visits. Where the real kernel would not stop, or would read
what is not there, the emulator says so with an error.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adaverify_sm100_varlen.deep_gemm.versions import LogitsContract

CHUNK = 16
"""Splits that all query blocks of a run go through before the next ones (deepgemm section 8.2)."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """Every piece of work in the order of each slot; one entry is one query block over one split.

    Attributes:
        slot: int64 [K].
        table_row: int64 [K], row whose block table is read: the first of the run.
        first_row: int64 [K], first row of the query block.
        rows: int64 [K], rows of the query block.
        split: int64 [K].
        runaways: int64, slots that would never meet their end, or whose split count is negative.
        dummies: visits of units without splits, which cost time and write nothing.
    """

    slot: torch.Tensor
    table_row: torch.Tensor
    first_row: torch.Tensor
    rows: torch.Tensor
    split: torch.Tensor
    runaways: torch.Tensor
    dummies: int

    def visits(self, rows: int, splits: int) -> torch.Tensor:
        """Return int64 [rows, splits]: how often each split of each row was done."""
        row, task = _expand(self.first_row, self.rows)
        count = torch.zeros(rows, splits, dtype=torch.int64)
        return count.index_put_((row, self.split[task]), torch.ones_like(row), accumulate=True)


def _expand(first: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the numbers first[i] .. first[i] + counts[i] - 1 for all i in one tensor, and i for each."""
    owner = torch.arange(len(counts)).repeat_interleave(counts)
    within = torch.arange(len(owner)) - (counts.cumsum(0) - counts)[owner]
    return first[owner] + within, owner


@dataclass(frozen=True, slots=True)
class _Units:
    """Runs of rows, or pairs: first row, rows, true splits, and stops of the walk (int64 [U] each)."""

    first: torch.Tensor
    size: torch.Tensor
    splits: torch.Tensor
    stops: torch.Tensor


def _units(contract: LogitsContract, lens: torch.Tensor, request_indices: torch.Tensor, split: int) -> _Units:
    rows = len(lens)
    opens = torch.ones(rows, dtype=torch.bool)
    opens[1:] = request_indices[1:] != request_indices[:-1]
    paired = contract.rule == "paired-units"
    if paired and rows:
        number = torch.arange(rows)
        opens = (number - torch.where(opens, number, 0).cummax(0).values) % 2 == 0
    first = opens.nonzero().flatten()
    size = torch.cat([first[1:], torch.tensor([rows])])[: len(first)] - first
    splits = (lens.long()[first + size - 1] + split - 1) // split
    # This walk stops on equality and spends one empty visit on a unit without splits; the other compares.
    return _Units(first, size, splits, splits.clamp(min=1) if paired else splits)


def walk(
    contract: LogitsContract,
    schedule: torch.Tensor,
    lens: torch.Tensor,
    request_indices: torch.Tensor,
    *,
    heads: int = 64,
    split: int | None = None,
    chunk: int = CHUNK,
) -> Tasks:
    """Return what every slot does with a schedule over the *true* lengths.

    A run of k rows is cut into ceil(k / (128 / heads)) near-equal query blocks, larger first; a pair is one
    block. All blocks of a run go through at most ``chunk`` splits before the next ones and share KV tiles.

    Args:
        contract: which rule the kernel follows.
        schedule: int32 [slots + 1, 2] on the CPU.
        lens: int32 [M] or [M, 1].
        request_indices: int32 [M].
        heads: H.
        split: instead of the contract's, for tests of small sizes.
        chunk: splits between changes of the query block.
    """
    split = split or contract.split
    lens = lens.reshape(-1)
    units = _units(contract, lens, request_indices, split)
    until = units.stops.cumsum(0)
    before = torch.cat([until - units.stops, units.stops.sum()[None]])
    pair = schedule.long()
    # Where each pair lies on the line of all stops; a pair that names no stop is never met.
    unit = torch.searchsorted(units.first, pair[:, 0].contiguous())
    named = torch.cat([units.first, torch.tensor([len(lens)])])
    place = before[unit.clamp(max=len(units.first))] + pair[:, 1]
    limit = torch.cat([units.stops, torch.zeros(1, dtype=torch.int64)])[unit]
    inside = pair[:, 1] < limit if contract.rule == "paired-units" else pair[:, 1] <= limit
    exists = (named[unit.clamp(max=len(units.first))] == pair[:, 0]) & (
        inside | ((unit == len(units.first)) & (pair[:, 1] == 0))
    )
    bad = ~exists[1:] | ~exists[:-1] | (place[1:] < place[:-1])
    stop, slot = _expand(place[:-1], torch.where(bad, 0, place[1:] - place[:-1]))
    at = torch.searchsorted(until, stop, right=True)
    real = units.splits[at] > 0
    dummies = int((~real).sum())
    slot, at, done = slot[real], at[real], (stop - before[at])[real]
    low = (place[slot] - before[at]).clamp(min=0)
    limit_rows = 2 if contract.rule == "paired-units" else max(1, 128 // heads)
    blocks = (units.size[at] + limit_rows - 1) // limit_rows
    block, visit = _expand(torch.zeros_like(blocks), blocks)
    slot, at, done, low, blocks = slot[visit], at[visit], done[visit], low[visit], blocks[visit]
    base, more = units.size[at] // blocks, units.size[at] % blocks
    order = _order(slot, at, (done - low) // chunk, block, done)
    first = units.first[at] + block * base + torch.minimum(block, more)
    columns = (slot, units.first[at], first, base + (block < more).long(), done)
    slot, table_row, first_row, rows, done = (column[order] for column in columns)
    return Tasks(slot, table_row, first_row, rows, done, bad.nonzero().flatten(), dummies)


def _order(*keys: torch.Tensor) -> torch.Tensor:
    """Return the order by the first key, then the second, and so on."""
    order = torch.arange(len(keys[0]))
    for key in reversed(keys):
        order = order[key[order].argsort(stable=True)]
    return order


def emulate_logits(
    tasks: Tasks,
    q: torch.Tensor,
    kv_codes: torch.Tensor,
    kv_scales: torch.Tensor,
    weights: torch.Tensor,
    block_table: torch.Tensor,
    width: int,
    split: int,
) -> torch.Tensor:
    """Return the unmasked result float32 [M, width rounded up to the split]; NaN where nothing was written.

    Each (table row, split) is one KV tile that all query blocks over it share. Columns of the last split past
    a row's length hold scores of whatever pages lie there, as on the chip: the caller masks.

    Args:
        tasks: of ``walk``, without runaways.
        q: float32 [M, H, D].
        kv_codes: float32 [pages, P, D].
        kv_scales: float32 [pages, P].
        weights: float32 [M, H].
        block_table: int32 [M, W].
        width: ``max_context_len``.
        split: KV positions in one split.
    """
    rows, page = len(q), kv_codes.shape[1]
    out = torch.full((rows, -(-width // split) * split), float("nan"))
    if not len(tasks.slot):
        return out
    key = tasks.table_row * out.shape[1] + tasks.split
    tiles, tile = torch.unique(key, return_inverse=True)
    column = (tiles % out.shape[1])[:, None] * split + torch.arange(split)
    entry = column // page
    table = block_table.long()
    ids = table[(tiles // out.shape[1])[:, None], entry.clamp(max=table.shape[1] - 1)]
    # A missing page reads as page 0, and a page that is not there as zeros (deepgemm sections 7 and 9l).
    ids = torch.where(entry < table.shape[1], ids, 0)
    there = (ids >= 0) & (ids < len(kv_codes))
    ids = ids.clamp(0, len(kv_codes) - 1)
    codes = kv_codes[ids, column % page] * there[..., None]
    scales = kv_scales[ids, column % page] * there
    row, task = _expand(tasks.first_row, tasks.rows)
    dots = torch.einsum("khd,kcd->khc", q[row], codes[tile[task]]).relu()
    scores = torch.einsum("khc,kh->kc", dots, weights[row]) * scales[tile[task]]
    out[row[:, None], column[tile[task]]] = scores
    return out
