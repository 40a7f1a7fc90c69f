"""The contract of ``DecodeRows`` in plain Python: what every slot, row and token of a batch must hold.

Written from the contract alone. It knows no strategy: rows of one token, of two, of a request and grouped
rows are all judged by the same sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adaverify_contracts import DecodeRows, Limits, ceil_div
from adaverify_testing.conformance.batches import UNUSED_PAGE, Case, page_count

if TYPE_CHECKING:
    from collections.abc import Iterator

_LENS = (
    "DecodeRows.row_lens: the KV length the slot may attend to, clamped at 0, then divided by the "
    "compression ratio and localised to this context-parallel rank; 0 for padding"
)
_SCHEDULE = "DecodeRows.schedule_lens: max(row_lens, 1)"
_PADDING_ID = (
    "DecodeRows.row_request: a padding row carries R + its own row number, an id that no request and no "
    "other row has"
)
_REQUEST = "DecodeRows.row_request: the request of the row, in 0 .. R - 1"
_TOKEN = "DecodeRows.row_token: the query-token number of the slot, -1 where there is none"
_SLOT = "DecodeRows.token_slot: the slot of each query token; the slot's row_token is that token"
_PADDING_SLOT = (
    "DecodeRows.token_slot: a padding token points at a padding slot where one exists, else at slot 0"
)
_TABLE = "DecodeRows.block_table: page ids of the row's request in the columns that the row's length needs"
_STALE_TABLE = (
    "DecodeRows.block_table: later columns are not written; they hold valid ids of earlier steps, initially 0"
)
_GROUPS = (
    "DecodeRows.request_indices: equal exactly for rows of one request, which stand side by side in the "
    "order of their tokens; a padding row is a run of its own"
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where rows break the contract.

    Attributes:
        field: field of ``DecodeRows``.
        place: index into it.
        got: what it holds.
        expected: what it must hold, a value or words.
        about: the request, row and token it belongs to.
        contract: the sentence of the contract.
        padding: whether the place is a padding slot, row or token.
    """

    field: str
    place: tuple[int, ...]
    got: object
    expected: object
    about: str
    contract: str
    padding: bool = False

    def text(self) -> str:
        """Return three lines for a person."""
        return (
            f"{self.field}{list(self.place)}: got {self.got}, expected {self.expected}\n"
            f"  {self.about}\n  contract: {self.contract}"
        )


def seen_entries(length: int, limits: Limits) -> int:
    """Return the compressed KV entries of one row on this rank, counted by the definition."""
    turn = limits.context_parallel_size * limits.context_parallel_interleave
    entries = max(0, length) // limits.compress_ratio
    before = limits.context_parallel_rank * limits.context_parallel_interleave
    rest = min(max(entries % turn - before, 0), limits.context_parallel_interleave)
    return entries // turn * limits.context_parallel_interleave + rest


class _Judge:
    """Rows of one batch read back to the host, and the truth about the batch."""

    def __init__(self, rows: DecodeRows, case: Case, limits: Limits) -> None:
        self.case, self.limits, self.width = case, limits, rows.tokens_per_row
        self.lens = rows.row_lens.tolist()
        self.schedule = rows.schedule_lens.tolist()
        self.table = rows.block_table.tolist()
        self.request = rows.row_request.tolist()
        self.token = rows.row_token.tolist()
        self.slot = rows.token_slot.tolist()
        self.groups = None if rows.request_indices is None else rows.request_indices.tolist()
        self.pages = case.table(limits)
        self.starts = case.starts()
        self.owner = [request for request, length in enumerate(case.query) for _ in range(length)]

    def about(self, row: int, token: int = -1) -> str:
        if 0 <= token < len(self.owner):
            request = self.owner[token]
            left = self.starts[request + 1] - 1 - token
            return (
                f"request {request} (query length {self.case.query[request]}, KV length "
                f"{self.case.kv[request]}), row {row}, query token {token}, {left} before the request's last"
            )
        return f"row {row}, a padding slot"

    def own_request(self, row: int) -> int | None:
        """Return the request whose tokens the row holds, None for a padding row."""
        real = [token for token in self.token[row] if 0 <= token < len(self.owner)]
        return self.owner[real[0]] if real else None

    def places(self) -> Iterator[Difference]:
        """Yield wrong entries of the maps between tokens and slots."""
        flat = [token for row in self.token for token in row]
        if len(self.slot) != self.case.padded_tokens:
            yield Difference(
                "token_slot",
                (),
                f"{len(self.slot)} entries",
                f"{self.case.padded_tokens} entries",
                "every query token to produce, padding included",
                _SLOT,
            )
            return
        for token, slot in enumerate(self.slot):
            about = f"query token {token} of {len(self.owner)} real ones"
            if not 0 <= slot < max(1, len(flat)):
                yield Difference("token_slot", (token,), slot, f"0 .. {len(flat) - 1}", about, _SLOT)
            elif token < len(self.owner) and flat[slot] != token:
                row = slot // self.width
                yield Difference(
                    "token_slot",
                    (token,),
                    f"slot {slot}, whose row_token is {flat[slot]}",
                    f"a slot whose row_token is {token}",
                    f"{about}, {self.about(row, token)}",
                    _SLOT,
                )
            elif token >= len(self.owner) and (flat[slot] != -1 if -1 in flat else slot != 0):
                wanted = "a padding slot" if -1 in flat else "slot 0"
                yield Difference("token_slot", (token,), slot, wanted, about, _PADDING_SLOT, True)
        count = len([token for token in flat if token != -1])
        valid = {token for token in flat if 0 <= token < len(self.owner)}
        if count != len(valid) or len(valid) != len(self.owner):
            place = next((i for i, t in enumerate(flat) if t != -1 and (t not in valid or t in flat[:i])), 0)
            got = flat[place] if flat else "no slot"
            yield Difference(
                "row_token",
                (place // self.width, place % self.width),
                got,
                f"each of 0 .. {len(self.owner) - 1} in one slot, -1 in the others",
                f"{count} slots hold a token, the batch has {len(self.owner)}",
                _TOKEN,
                padding=not 0 <= (flat[place] if flat else -1) < len(self.owner),
            )

    def lengths(self) -> Iterator[Difference]:
        """Yield wrong lengths."""
        for row, tokens in enumerate(self.token):
            for column, token in enumerate(tokens):
                real = 0 <= token < len(self.owner)
                expected = 0
                if real:
                    request = self.owner[token]
                    left = self.starts[request + 1] - 1 - token
                    expected = seen_entries(self.case.kv[request] - left, self.limits)
                got, about = self.lens[row][column], self.about(row, token)
                if got != expected:
                    yield Difference("row_lens", (row, column), got, expected, about, _LENS, not real)
                scheduled = self.schedule[row][column]
                if scheduled != max(1, expected):
                    yield Difference(
                        "schedule_lens",
                        (row, column),
                        scheduled,
                        max(1, expected),
                        about,
                        _SCHEDULE,
                        not real,
                    )
            if sorted(tokens) != tokens:
                words = "-1 first, then ascending tokens"
                yield Difference("row_token", (row,), tokens, words, self.about(row, tokens[0]), _TOKEN)

    def owners(self) -> Iterator[Difference]:
        """Yield rows with a wrong request, or whose table lacks pages."""
        for row, tokens in enumerate(self.token):
            request = self.own_request(row)
            about = self.about(row, tokens[-1])
            if request is None:
                wanted = self.case.requests + row
                if self.request[row] != wanted:
                    yield Difference(
                        "row_request", (row,), self.request[row], wanted, about, _PADDING_ID, True
                    )
            elif self.request[row] != request:
                yield Difference("row_request", (row,), self.request[row], request, about, _REQUEST)
            reach = 0
            if request is not None:
                left = 0 if self.groups is not None else self.starts[request + 1] - 1 - tokens[-1]
                reach = seen_entries(self.case.kv[request] - left, self.limits)
            needed = min(self.limits.table_width, ceil_div(reach, self.limits.page_size))
            for column, page in enumerate(self.table[row]):
                if request is not None and column < needed:
                    if page != self.pages[request][column]:
                        wanted = self.pages[request][column]
                        yield Difference("block_table", (row, column), page, wanted, about, _TABLE)
                elif not 0 <= page < page_count(self.limits):
                    words = f"a valid page id, 0 .. {page_count(self.limits) - 1}"
                    words += ", not the batch's unused column" * (page == UNUSED_PAGE)
                    yield Difference("block_table", (row, column), page, words, about, _STALE_TABLE, True)

    def runs(self) -> Iterator[Difference]:
        """Yield wrong request indices."""
        if self.groups is None:
            return
        first: dict[int, int | None] = {}
        last, previous = -1, object()
        for row, group in enumerate(self.groups):
            request = self.own_request(row)
            fresh = group not in first
            continued = request is not None and request == previous
            # Rows of one request share an id and stand together; all other ids are new.
            if fresh is continued or (not fresh and group != self.groups[row - 1]):
                words = f"the id of row {row - 1}" if continued else "an id that no row before has"
                about = self.about(row, self.token[row][-1])
                yield Difference("request_indices", (row,), group, words, about, _GROUPS, request is None)
            if request is not None and self.token[row][-1] < last:
                words = f"a token after {last}"
                about = self.about(row, self.token[row][-1])
                yield Difference("row_token", (row,), self.token[row], words, about, _GROUPS)
            last = self.token[row][-1] if request is not None else last
            first.setdefault(group, request)
            previous = request
        for row, group in enumerate(self.groups):
            if self.own_request(row) is None and 0 <= group < self.case.requests:
                words = "an id that no request has"
                yield Difference("request_indices", (row,), group, words, self.about(row), _GROUPS, True)


def differences(rows: DecodeRows, case: Case, limits: Limits) -> list[Difference]:
    """Return every place where ``rows`` break the contract for ``case``; reads them back to the host."""
    judge = _Judge(rows, case, limits)
    return [*judge.places(), *judge.lengths(), *judge.owners(), *judge.runs()]


def meaningful(rows: DecodeRows, case: Case, limits: Limits) -> dict[str, object]:
    """Return all values that two equal builds must share: everything but table columns that no row needs."""
    judge = _Judge(rows, case, limits)
    table = []
    for row, pages in enumerate(judge.table):
        request = judge.own_request(row)
        reach = 0 if request is None else judge.lens[row][-1]
        table.append(pages[: min(limits.table_width, ceil_div(max(0, reach), limits.page_size))])
    return {
        "row_lens": judge.lens,
        "schedule_lens": judge.schedule,
        "block_table": table,
        "row_request": judge.request,
        "row_token": judge.token,
        "token_slot": judge.slot,
        "request_indices": judge.groups,
        "schedule": None if rows.schedule is None else rows.schedule.tolist(),
    }
