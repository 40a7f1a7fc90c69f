"""Checked mode: read everything back to the host and refuse what would corrupt memory. Synchronises."""

from __future__ import annotations

import torch

from adaverify_contracts import DecodeBatch, DecodeRows, LayoutError, Limits
from adaverify_metadata.layout import pages_of
from adaverify_metadata.lengths import local_lens


def _refuse(problem: str, arrived: object, allowed: str, remedy: str) -> None:
    raise LayoutError(problem, arrived=arrived, allowed=allowed, remedy=remedy)


def require_batch(batch: object) -> None:
    """Require a ``DecodeBatch``; reads no value.

    Raises:
        LayoutError: it is something else.
    """
    if not isinstance(batch, DecodeBatch):
        _refuse(
            "what rows are to be built for is no batch",
            type(batch).__name__,
            "a DecodeBatch",
            "describe the step with DecodeBatch(...)",
        )


def check_batch(batch: DecodeBatch, limits: Limits, num_pages: int | None = None) -> None:
    """Validate the device values of a batch on the host.

    For tests and debugging: it copies every tensor of the batch to the host, so it synchronises and cannot be
    captured.

    Args:
        batch: the step.
        limits: the sizes it must fit.
        num_pages: pages in the KV pool; None leaves only negative page ids refused.

    Raises:
        LayoutError: totals, boundaries, lengths or page ids are wrong; the message names the first request.
    """
    start = batch.query_start_loc.cpu().long()
    seq_lens = batch.seq_lens.cpu().long()
    _check_boundaries(batch, start, limits)
    _check_lengths(batch, start.diff(), seq_lens, limits)
    _check_pages(batch, seq_lens, limits, num_pages)


def _check_boundaries(batch: DecodeBatch, start: torch.Tensor, limits: Limits) -> None:
    lengths = start.diff()
    if int(start[0]) != 0:
        _refuse("query_start_loc does not start at 0", int(start[0]), "0", "cumulate query lengths from zero")
    if len(lengths) and (int(lengths.min()) < 0 or int(lengths.max()) > limits.max_query_len):
        worst = int(((lengths < 0) | (lengths > limits.max_query_len)).nonzero()[0])
        _refuse(
            f"the query length of request {worst} is out of range",
            int(lengths[worst]),
            f"0 .. {limits.max_query_len} (K + 1)",
            "send prompt chunks down the prefill path",
        )
    if int(start[-1]) != batch.num_tokens:
        _refuse(
            "device and host disagree about the total of query tokens",
            {"device": int(start[-1]), "host": batch.num_tokens},
            "equal totals; only the split over requests may differ",
            "give host placeholders the budget's total",
        )
    if int(lengths[batch.num_requests :].abs().sum()):
        _refuse(
            "a padding request has query tokens",
            lengths[batch.num_requests :].tolist(),
            "query length 0 for every request from num_requests on",
            "rewrite the padding tail every step",
        )
    uniform = batch.uniform_query_len
    if uniform is not None and (lengths[: batch.num_requests] != uniform).any():
        _refuse(
            "the batch is not uniform on the device",
            lengths[: batch.num_requests].tolist(),
            f"{uniform} for every real request",
            "leave uniform_query_len None when anything is trimmed",
        )


def _check_lengths(batch: DecodeBatch, lengths: torch.Tensor, seq_lens: torch.Tensor, limits: Limits) -> None:
    real = torch.arange(len(seq_lens)) < batch.num_requests
    highest = torch.where(real, limits.max_kv_len, 0)
    wrong = (seq_lens < lengths) | (seq_lens > highest)
    if wrong.any():
        worst = int(wrong.nonzero()[0])
        _refuse(
            f"seq_lens of request {worst} is out of range",
            {"seq_len": int(seq_lens[worst]), "query_len": int(lengths[worst])},
            f"query length .. {int(highest[worst])} (KV length including this step's query tokens)",
            "do not schedule drafts past max_model_len; zero the lengths of padding requests",
        )


def _check_pages(batch: DecodeBatch, seq_lens: torch.Tensor, limits: Limits, num_pages: int | None) -> None:
    table = batch.block_table.cpu().long()
    used = torch.arange(table.shape[1]) < pages_of(local_lens(seq_lens, limits), limits)[:, None]
    wrong = used & (table < 0)
    if num_pages is not None:
        wrong |= used & (table >= num_pages)
    if wrong.any():
        request, column = (int(value) for value in wrong.nonzero()[0])
        _refuse(
            f"block_table[{request}, {column}] is not a page",
            int(table[request, column]),
            "a page id >= 0" if num_pages is None else f"0 .. {num_pages - 1}",
            "map every page a sequence reaches, drafts included, before the step",
        )


def check_rows(rows: DecodeRows, batch: DecodeBatch) -> None:
    """Validate built rows on the host: every id, slot and token in range, every real token in one slot.

    Synchronises, like ``check_batch``.

    Raises:
        LayoutError: an id or a map is out of range; this is a fault of the builder or of a poisoned buffer.
    """
    request, token = rows.row_request.cpu().long(), rows.row_token.cpu().long()
    slot = rows.token_slot.cpu().long()
    number = torch.arange(rows.rows)
    padding = (token < 0).all(dim=1)
    valid = torch.where(
        padding, request == batch.requests + number, (request >= 0) & (request < batch.requests)
    )
    if not valid.all():
        _refuse(
            "row_request holds an id that is neither the row's request nor its own padding id",
            request.tolist(),
            f"0 .. {batch.requests - 1}, or {batch.requests} + row for padding rows",
            "rebuild the rows from the device's boundaries",
        )
    real = slot[: batch.num_tokens]
    held = token.flatten()
    if len(real) and (int(slot.min()) < 0 or int(slot.max()) >= held.numel()):
        _refuse("token_slot is out of range", slot.tolist(), f"0 .. {held.numel() - 1}", "rebuild the rows")
    if not torch.equal(held[real], torch.arange(batch.num_tokens)) or int((held >= 0).sum()) != len(real):
        _refuse(
            "token_slot and row_token are not inverse maps of the real tokens",
            {"token_slot": slot.tolist(), "row_token": held.tolist()},
            "every real token in exactly one slot",
            "rebuild the rows from the device's boundaries",
        )
