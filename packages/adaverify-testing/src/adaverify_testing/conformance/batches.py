"""Decode batches of known content for the conformance kit: corners by name, then seeded random ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from adaverify_contracts import DecodeBatch, Limits, ceil_div

if TYPE_CHECKING:
    import torch

# In table columns that no row needs: a builder that copies more than it needs hands it on and is found out.
UNUSED_PAGE = -1515870811


def page_count(limits: Limits) -> int:
    """Return the pages of the imagined KV cache: enough for every request at its longest, and page 0."""
    return limits.max_requests * limits.table_width + 1


@dataclass(frozen=True, slots=True)
class Case:
    """One batch in host numbers, so that its rows can be worked out without the device.

    Attributes:
        label: what is special about it.
        query: query length of each request slot, padding slots included with 0.
        kv: KV length of each slot, this step's query tokens included; 0 for padding slots.
        padded_tokens: query tokens to produce.
        real: request slots that are real; the rest is padding.
        uniform: the common query length, None for a ragged batch.
        host_tokens: the host's total of query tokens, None for the true one.
        seed: of the page ids.
    """

    label: str
    query: tuple[int, ...]
    kv: tuple[int, ...]
    padded_tokens: int
    real: int
    uniform: int | None = None
    host_tokens: int | None = None
    seed: int = 0

    @property
    def requests(self) -> int:
        """Padded request count R."""
        return len(self.query)

    @property
    def tokens(self) -> int:
        """Real query tokens, as the device counts them."""
        return sum(self.query)

    def starts(self) -> list[int]:
        """Return the cumulative query lengths, R + 1 of them."""
        total, found = 0, [0]
        for length in self.query:
            total += length
            found.append(total)
        return found

    def table(self, limits: Limits) -> list[list[int]]:
        """Return the page ids of every request slot: distinct where used, no page elsewhere.

        Ids are below ``page_count(limits)``, and 0 is never one of a request's pages.
        """
        draw, width, used = random.Random(self.seed), limits.table_width, 0
        counts = [
            min(width, ceil_div(max(0, length) // limits.compress_ratio, limits.page_size))
            for length in self.kv
        ]
        ids = draw.sample(range(1, page_count(limits)), sum(counts))
        table = []
        for count in counts:
            table.append(ids[used : used + count] + [UNUSED_PAGE] * (width - count))
            used += count
        return table

    def batch(self, limits: Limits, device: str | torch.device) -> DecodeBatch:
        """Return the batch in tensors of its own on ``device``."""
        import torch

        table = torch.tensor(self.table(limits), dtype=torch.int32).view(self.requests, limits.table_width)
        return DecodeBatch(
            query_start_loc=torch.tensor(self.starts(), dtype=torch.int32).to(device),
            seq_lens=torch.tensor(self.kv, dtype=torch.int32).to(device),
            block_table=table.to(device),
            num_requests=self.real,
            num_tokens=self.tokens if self.host_tokens is None else self.host_tokens,
            padded_tokens=self.padded_tokens,
            max_query_len=limits.max_query_len,
            uniform_query_len=self.uniform,
        )

    def write_to(self, batch: DecodeBatch, limits: Limits) -> None:
        """Overwrite the device tensors of ``batch``, of equal shape, with this case; host values stay."""
        mine = self.batch(limits, "cpu")
        batch.query_start_loc.copy_(mine.query_start_loc)
        batch.seq_lens.copy_(mine.seq_lens)
        batch.block_table.copy_(mine.block_table)

    def describe(self) -> str:
        """Return the host numbers in one line."""
        kind = "ragged" if self.uniform is None else f"uniform {self.uniform}"
        return (
            f"batch {self.label!r} ({kind}): query lengths {list(self.query)}, KV lengths {list(self.kv)}, "
            f"{self.padded_tokens} padded tokens"
        )


def cases(limits: Limits, *, uniform: bool, count: int = 16, seed: int = 0) -> Iterator[Case]:
    """Yield corners, then ``count`` random batches; uniform ones only where ``uniform`` is True."""
    yield from _uniform_corners(limits) if uniform else _ragged_corners(limits)
    draw = random.Random(f"{seed} {limits}")
    for number in range(count):
        slots = draw.randint(1, limits.max_requests)
        yield random_case(limits, draw, slots, uniform=uniform, label=f"random {number}")


def random_case(
    limits: Limits,
    draw: random.Random,
    slots: int,
    *,
    uniform: bool,
    label: str,
    padded_tokens: int | None = None,
    width: int | None = None,
) -> Case:
    """Draw a batch of ``slots`` request slots that fits ``padded_tokens``, drawn too when None."""
    longest = min(limits.max_query_len, limits.max_kv_len)
    room = limits.max_tokens if padded_tokens is None else padded_tokens
    real = draw.randint(0, slots)
    width = (width or draw.randint(1, longest)) if uniform else None
    query: list[int] = []
    for _ in range(real):
        length = width if width is not None else draw.randint(0, longest)
        if sum(query) + length > room:
            if width is not None:
                break
            length = 0
        query.append(length)
    real = len(query)
    kv = [draw.randint(length, limits.max_kv_len) for length in query]
    tokens = sum(query)
    if padded_tokens is None:
        padded_tokens = draw.choice([tokens, min(limits.max_tokens, tokens + 1), limits.max_tokens])
    return _case(label, query, kv, slots, padded_tokens, width, draw.randrange(2**16))


def _case(
    label: str,
    query: Sequence[int],
    kv: Sequence[int],
    slots: int,
    padded_tokens: int,
    uniform: int | None = None,
    seed: int = 0,
) -> Case:
    padding = (0,) * (slots - len(query))
    return Case(
        label, (*query, *padding), (*kv, *padding), padded_tokens, len(query), uniform=uniform, seed=seed
    )


def _ragged_corners(limits: Limits) -> Iterator[Case]:
    most, block, deep = limits.max_requests, limits.max_query_len, limits.max_kv_len
    page = min(deep, limits.page_size * limits.compress_ratio)
    everything = limits.max_tokens
    yield _case("empty", [], [], most, everything)
    yield _case("empty, one slot and one token", [], [], 1, 1)
    yield _case("one request, single token", [1], [min(deep, 5)], 1, 1)
    yield _case("one request, full block", [block], [max(block, deep // 2)], 1, block)
    yield _case("one request of many slots", [block], [deep], most, everything)
    yield _case(
        "every request a full block at the longest length", [block] * most, [deep] * most, most, everything
    )
    yield _case("every request a single token of a sequence of one", [1] * most, [1] * most, most, most)
    yield _case("KV lengths at a page's end", [1] * most, [page] * most, most, everything)
    past = min(deep, page + 1)
    yield _case("KV lengths one past a page's end", [1] * most, [past] * most, most, everything)
    short = [max(0, block - 1 - index % (block + 1)) for index in range(most)]
    yield _case("KV lengths below the query length", [block] * most, short, most, everything)
    gaps = [block if index % 2 else 0 for index in range(most)]
    yield _case(
        "real requests without tokens", gaps, [max(9, n) % (deep + 1) for n in gaps], most, everything
    )
    steps = [1 + index % block for index in range(most)]
    yield _case("exactly full", steps, [deep - index % 2 for index in range(most)], most, sum(steps))


def _uniform_corners(limits: Limits) -> Iterator[Case]:
    most, block, deep = limits.max_requests, limits.max_query_len, limits.max_kv_len
    for width in range(1, min(block, deep) + 1):
        full = most * width
        yield _case(f"{width} tokens, full", [width] * most, [deep] * most, most, full, width)
        yield _case(f"{width} tokens, one request", [width], [width], 1, width, width)
        yield _case(f"{width} tokens, padded", [width], [max(width, deep // 2)], most, full, width)
        yield _case(f"{width} tokens, no request", [], [], most, full, width)
    yield _case("KV lengths below the query length", [block] * most, [0] * most, most, most * block, block)


def stale(case: Case, host_tokens: int, real: int) -> Case:
    """Return the same device lengths with other host values."""
    return replace(case, host_tokens=host_tokens, real=real)
