"""Capture once, replay with other lengths: what a strategy declares is what it survives."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from adaverify_contracts import DecodeBatch, DecodeRowBuilder, DecodeRows, GraphSupport, Limits
from adaverify_testing.conformance.batches import Case, random_case
from adaverify_testing.conformance.report import READ, CheckFailed, CheckSkipped
from adaverify_testing.conformance.subject import Subject, judge, poison_rows, require_plain, views
from adaverify_testing.conformance.watching import Tape
from adaverify_testing.poisoning import is_poisoned


def capture_and_replay(subject: Subject) -> str:
    """One captured build follows new KV lengths, pages and request counts of the same query lengths."""
    return _replay(subject, other_kv)


def graph_support(subject: Subject) -> str:
    """The declared level is survived: equal lengths for UNIFORM_BATCH, any lengths from VARLEN_DECODE on."""
    declared = subject.descriptor.graph_support
    if subject.uniform and declared > GraphSupport.UNIFORM_BATCH:
        raise CheckFailed(
            f"graph support {declared.name} is declared without device_lengths: a strategy that serves "
            f"uniform batches only cannot survive ragged replays\n  contract: GraphSupport.{declared.name} "
            f"replays any decode lengths up to K + 1\n  to do: declare UNIFORM_BATCH\n{READ}"
        )
    ragged = declared >= GraphSupport.VARLEN_DECODE
    how = _replay(subject, any_lengths if ragged else fewer_requests)
    return f"{declared.name}, {'any' if ragged else 'equal'} lengths; {how}"


def other_kv(limits: Limits, captured: Case) -> Iterator[Case]:
    """Yield the captured query lengths with other KV lengths and pages."""
    draw = random.Random(21)
    for number in range(4):
        kv = tuple(draw.randint(length, limits.max_kv_len) if length else 0 for length in captured.query)
        yield replace(captured, label=f"replay {number}, other KV lengths", kv=kv, seed=number + 1)


def fewer_requests(limits: Limits, captured: Case) -> Iterator[Case]:
    """Yield uniform batches of the captured length, some of their requests padding."""
    draw, width = random.Random(22), captured.uniform or captured.query[0]
    for real in {captured.requests, captured.requests // 2, 1, 0}:
        query = (width,) * real + (0,) * (captured.requests - real)
        kv = tuple(draw.randint(length, limits.max_kv_len) if length else 0 for length in query)
        yield replace(captured, label=f"replay, {real} real requests", query=query, kv=kv, real=real)


def any_lengths(limits: Limits, captured: Case) -> Iterator[Case]:
    """Yield ragged batches of the captured padded shape, the empty one among them."""
    draw = random.Random(23)
    slots, tokens = captured.requests, captured.padded_tokens
    for number in range(8):
        yield random_case(
            limits, draw, slots, uniform=False, label=f"replay {number}, ragged", padded_tokens=tokens
        )
    nothing = (0,) * slots
    yield replace(captured, label="replay, empty", query=nothing, kv=nothing, real=0)


def _replay(subject: Subject, others: Callable[[Limits, Case], Iterator[Case]]) -> str:
    declared = subject.descriptor.graph_support
    if declared is GraphSupport.NEVER:
        raise CheckSkipped("graph support NEVER is declared, so there is nothing to survive")
    how = ""
    for name, limits, builder in subject.builders():
        captured = captured_case(limits, subject)
        require_plain(subject, captured, name, limits)
        batch = captured.batch(limits, subject.device)
        rows, replay, how = _capture(subject, builder, batch, captured, limits)
        replays = list(others(limits, captured))
        for case in replays[:: 3 if subject.slow else 1]:
            case.write_to(batch, limits)
            poison_rows(rows)
            replay()
            lead = (
                f"a replay gives wrong rows: the strategy declares {declared.name} and does not survive it\n"
                f"  captured with query lengths {list(captured.query)} ({how})"
            )
            judge(rows, case, name, limits, lead)
    return how


def captured_case(limits: Limits, subject: Subject) -> Case:
    """Return the case to capture: full blocks, host values true at that moment and stale ever after."""
    most, block, deep = limits.max_requests, limits.max_query_len, limits.max_kv_len
    ragged = subject.descriptor.graph_support >= GraphSupport.VARLEN_DECODE and not subject.uniform
    query = tuple(1 + index % block for index in range(most)) if ragged else (block,) * most
    kv = (max(block, deep // 2),) * most
    return Case("captured", query, kv, most * block, most, block if subject.uniform else None)


def _capture(
    subject: Subject, builder: DecodeRowBuilder, batch: DecodeBatch, case: Case, limits: Limits
) -> tuple[DecodeRows, Callable[[], None], str]:
    """Return the rows, a replay that runs no host code where that can be had, and how it is done."""
    about = case.describe()
    subject.build(builder, batch, about)
    if subject.device.type == "cuda":
        return _capture_cuda(subject, builder, batch, about)
    recorded = record(subject, builder, batch, case, limits)
    if recorded is not None:
        return (*recorded, "recorded operations repeated without the strategy's code")
    rows = subject.build(builder, batch, about)

    def rebuild() -> None:
        # Kernels outside torch leave nothing to repeat: the code runs again with the capture's host values.
        again = subject.build(builder, batch, about)
        moved = [f for f, v in views(rows).items() if views(again)[f].data_ptr() != v.data_ptr()]
        if moved:
            raise CheckFailed(f"a second build returns other tensors for {', '.join(moved)}\n{READ}")

    return rows, rebuild, "rebuilt with the host values of the capture"


def record(
    subject: Subject, builder: DecodeRowBuilder, batch: DecodeBatch, case: Case, limits: Limits
) -> tuple[DecodeRows, Callable[[], None]] | None:
    """Return rows and a replay of a build's torch operations, None where kernels outside torch write rows."""
    with Tape() as tape:
        rows = subject.build(builder, batch, case.describe())
    poison_rows(rows)
    tape.replay()
    untouched = [
        field
        for field, view in views(rows).items()
        if field != "block_table" and view.numel() and bool(is_poisoned(view).all())
    ]
    if untouched or _table_is_opaque(rows, batch, case, limits, tape):
        return None
    return rows, tape.replay


def _table_is_opaque(rows: DecodeRows, batch: DecodeBatch, case: Case, limits: Limits, tape: Tape) -> bool:
    """Return whether the recorded operations leave the table alone although other pages arrived."""
    other = replace(case, seed=99)
    if other.table(limits) == case.table(limits):
        # Too few pages to be shuffled: there is nothing to tell by.
        return False
    other.write_to(batch, limits)
    before = rows.block_table.clone()
    tape.replay()
    same = torch.equal(before, rows.block_table)
    case.write_to(batch, limits)
    tape.replay()
    return same


def _capture_cuda(
    subject: Subject, builder: DecodeRowBuilder, batch: DecodeBatch, about: str
) -> tuple[DecodeRows, Callable[[], None], str]:
    stream = torch.cuda.Stream(subject.device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(subject.device))
    with torch.cuda.stream(stream):
        subject.build(builder, batch, about)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            rows = builder.build(batch)
    except Exception as error:
        raise CheckFailed(
            f"build cannot be captured: {type(error).__name__}: {error}\n  {about}\n  contract: graph "
            f"support {subject.descriptor.graph_support.name} is declared\n{READ}"
        ) from error

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return rows, replay, "a CUDA graph"
