"""Addresses, allocations and host reads of ``build``."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import torch

from adaverify_contracts import DecodeBatch, DecodeRowBuilder, Limits
from adaverify_testing.conformance import watching
from adaverify_testing.conformance.batches import Case, random_case
from adaverify_testing.conformance.report import CheckFailed
from adaverify_testing.conformance.subject import READ, Subject, views

_STATIC = "DecodeRowBuilder.buffers: every static tensor; addresses never change, graphs rely on it"


def address_stability(subject: Subject) -> None:
    """Buffers and the views of one padded shape stay where they are through many builds."""
    for name, limits, builder in subject.builders():
        before = _addresses(builder)
        seen: dict[tuple[int, int, int | None], dict[str, int]] = {}
        for case in [*subject.cases(limits, count=8, seed=3)] * 2:
            rows = subject.build_case(builder, case, limits)
            after = _addresses(builder)
            for key in before.keys() | after.keys():
                if before.get(key) != after.get(key):
                    was, now = _hex(before.get(key)), _hex(after.get(key))
                    problem = f"buffers[{key!r}] moved from {was} to {now}"
                    raise CheckFailed(_memory(problem, case, name, _STATIC))
            shape = (case.requests, case.padded_tokens, case.uniform)
            found = {field: view.data_ptr() for field, view in views(rows).items()}
            for field, address in seen.setdefault(shape, found).items():
                if found.get(field) != address:
                    was, now = _hex(address), _hex(found.get(field))
                    problem = f"DecodeRows.{field} of one padded shape moved from {was} to {now}"
                    raise CheckFailed(_memory(problem, case, name, _STATIC))


def no_allocation(subject: Subject) -> str:
    """A build of a shape seen before makes no memory that outlives it and returns none of its own."""
    for name, limits, builder in subject.builders():
        case = _warm(subject, builder, limits)
        batch = case.batch(limits, subject.device)
        rows = subject.build(builder, batch, case.describe())
        for field, tensor in views(rows).items():
            if not watching.shares_storage(tensor, builder.buffers.values()):
                problem = f"DecodeRows.{field} is fresh storage and no view of a static buffer"
                raise CheckFailed(_memory(problem, case, name, _STATIC))
        if subject.device.type == "cuda":
            _count_device_memory(subject, builder, batch, case, name)
            continue
        _, kept = watching.storage_kept_after(lambda: subject.build(builder, batch, case.describe()))  # noqa: B023
        if kept:
            problem = f"storage made in build is still alive after it, by {', '.join(kept)}"
            contract = "DecodeRowBuilder.build never allocates device memory"
            raise CheckFailed(_memory(problem, case, name, contract))
    if subject.device.type == "cuda":
        return "no block of the allocator" if subject.descriptor.requirements.kernels else "nothing kept"
    return "nothing kept; temporaries of torch operations are not counted on a CPU"


def _count_device_memory(
    subject: Subject, builder: DecodeRowBuilder, batch: DecodeBatch, case: Case, name: str
) -> None:
    """Compare the allocator's counters; strategies made of torch operations alone may use temporaries."""
    strict = bool(subject.descriptor.requirements.kernels)
    counter = "allocation.all.allocated" if strict else "allocated_bytes.all.current"
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats(subject.device)[counter]
    subject.build(builder, batch, case.describe())
    made = torch.cuda.memory_stats(subject.device)[counter] - before
    if made:
        words = f"{made} allocations" if strict else f"{made} bytes that outlive it"
        contract = "DecodeRowBuilder.build never allocates device memory"
        raise CheckFailed(_memory(f"a warm build made {words} on the device", case, name, contract))


def no_host_read(subject: Subject) -> str:
    """A build reads no device value on the host and waits for nothing."""
    refusing: Callable[[Callable[[], Any]], Any] = (
        _refusing_syncs if subject.device.type == "cuda" else watching.refusing_host_reads
    )
    for name, limits, builder in subject.builders():
        _warm(subject, builder, limits)
        for case in subject.cases(limits, count=3, seed=4):
            batch = case.batch(limits, subject.device)
            subject.build(builder, batch, case.describe())
            try:
                refusing(lambda: builder.build(batch))  # noqa: B023 - called at once
            except Exception as error:
                read = isinstance(error, watching.HostRead) or "synchroniz" in str(error)
                if not read:
                    raise
                problem = f"build reads a device value on the host: {_line(error)}{error}"
                contract = "DecodeRowBuilder.build never reads a device value and never synchronises"
                raise CheckFailed(_memory(problem, case, name, contract)) from error
    if subject.device.type == "cuda":
        return "torch raises on every synchronisation"
    return "torch operations and tensor methods watched; kernels outside torch are not"


def _refusing_syncs(run: Callable[[], Any]) -> Any:
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
        try:
            return run()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def _line(error: BaseException) -> str:
    """Return where the strategy was when the read happened: the last frame outside torch and the kit."""
    place, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if not module.startswith(("torch", "adaverify_testing.conformance")):
            place = f"{code.co_filename}:{trace.tb_lineno} in {code.co_name}: "
        trace = trace.tb_next
    return place


def _warm(subject: Subject, builder: DecodeRowBuilder, limits: Limits) -> Case:
    """Build one padded shape twice, so that what happens once a shape has happened."""
    draw = random.Random(5)
    width = limits.max_query_len if subject.uniform else None
    tokens = limits.max_tokens
    case = random_case(
        limits,
        draw,
        limits.max_requests,
        uniform=subject.uniform,
        label="warm",
        padded_tokens=tokens,
        width=width,
    )
    for _ in range(2):
        subject.build_case(builder, case, limits)
    return case


def _addresses(builder: DecodeRowBuilder) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in builder.buffers.items()}


def _hex(address: int | None) -> str:
    return "nowhere" if address is None else hex(address)


def _memory(problem: str, case: Case, name: str, contract: str) -> str:
    return f"{problem}\n  {case.describe()}\n  limits {name!r}\n  contract: {contract}\n{READ}"
