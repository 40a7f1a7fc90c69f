"""Addresses, allocations and host reads of ``build``."""

from __future__ import annotations

import random

import torch

from adaverify_contracts import DecodeBatch, DecodeRowBuilder, Limits
from adaverify_testing.conformance import watching
from adaverify_testing.conformance.batches import Case, random_case
from adaverify_testing.conformance.report import READ, CheckFailed
from adaverify_testing.conformance.subject import Subject, views

_NEVER = "DecodeRowBuilder.build never allocates device memory"
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
                    raise CheckFailed(complaint(problem, case, name, _STATIC))
            shape = (case.requests, case.padded_tokens, case.uniform)
            found = {field: view.data_ptr() for field, view in views(rows).items()}
            for field, address in seen.setdefault(shape, found).items():
                if found.get(field) != address:
                    was, now = _hex(address), _hex(found.get(field))
                    problem = f"DecodeRows.{field} of one padded shape moved from {was} to {now}"
                    raise CheckFailed(complaint(problem, case, name, _STATIC))


def no_allocation(subject: Subject) -> str:
    """A build of any shape, new or not, makes no memory that outlives it and returns none of its own."""
    for name, limits, builder in subject.builders():
        case = warm(subject, builder, limits)
        batch = case.batch(limits, subject.device)
        rows = subject.build(builder, batch, case.describe())
        for field, tensor in views(rows).items():
            if not watching.shares_storage(tensor, builder.buffers.values()):
                problem = f"DecodeRows.{field} is fresh storage and no view of a static buffer"
                raise CheckFailed(complaint(problem, case, name, _STATIC))
        _require_no_first_use(subject, name, limits)
        if subject.device.type == "cuda":
            _count_device_memory(subject, builder, batch, case, name)
            continue
        _, kept = watching.storage_kept_after(lambda: subject.build(builder, batch, case.describe()))  # noqa: B023
        if kept:
            raise CheckFailed(complaint(_kept(kept), case, name, _NEVER))
    if subject.device.type == "cuda":
        return "no block of the allocator" if subject.descriptor.requirements.kernels else "nothing kept"
    return "nothing kept; temporaries of torch operations are not counted on a CPU"


def _require_no_first_use(subject: Subject, name: str, limits: Limits) -> None:
    """Require that the first build of a shape keeps no storage: it may happen inside a capture.

    A cache that has grown for one shape has grown for good, so the builder is a fresh one.
    """
    builder = subject.descriptor.allocate(limits, subject.device, subject.capability)
    # Kernels are compiled and libraries loaded in the first build of all.
    subject.build_case(builder, subject.cases(limits, count=1)[0], limits)
    for case in subject.cases(limits, count=8, seed=3)[1:]:
        batch = case.batch(limits, subject.device)
        if subject.device.type == "cuda":
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated(subject.device)
            subject.build(builder, batch, case.describe())
            made = torch.cuda.memory_allocated(subject.device) - before
            words = f"{made} bytes made in build outlive it" if made else ""
        else:
            _, kept = watching.storage_kept_after(lambda: subject.build(builder, batch, case.describe()))  # noqa: B023
            words = _kept(kept) if kept else ""
        if words:
            shape = f"{case.requests} requests and {case.padded_tokens} padded tokens"
            problem = f"{words}; this was the first build of {shape}"
            raise CheckFailed(complaint(problem, case, name, _NEVER))


def _kept(operations: tuple[str, ...]) -> str:
    made = ", ".join(dict.fromkeys(operations))
    return f"storage made in build is still alive after it, by {made}"


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
        raise CheckFailed(complaint(f"a warm build made {words} on the device", case, name, _NEVER))


def warm(subject: Subject, builder: DecodeRowBuilder, limits: Limits) -> Case:
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


def complaint(problem: str, case: Case, name: str, contract: str) -> str:
    """Return a failure in words: what happened, with which batch and limits, against which sentence."""
    return f"{problem}\n  {case.describe()}\n  limits {name!r}\n  contract: {contract}\n{READ}"
