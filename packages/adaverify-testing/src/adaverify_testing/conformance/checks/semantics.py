"""Values: what rows must hold for every batch, whatever ran before and whatever the host believes."""

from __future__ import annotations

import random

import torch

from adaverify_contracts import Limits
from adaverify_testing.conformance.batches import Case, random_case, stale
from adaverify_testing.conformance.oracle import differences, meaningful
from adaverify_testing.conformance.report import READ, CheckFailed
from adaverify_testing.conformance.subject import Subject, judge, poison_rows, require, require_plain, views

# Builds of one batch in a row. A fault that comes later than this is not found.
_MANY = 300


def row_semantics(subject: Subject) -> str:
    """Every corner and many random batches have the rows that the contract names, from poisoned buffers."""
    count = 0
    for name, limits, builder in subject.builders():
        for case in subject.cases(limits):
            poison_rows(subject.build_case(builder, case, limits))
            rows = subject.build_case(builder, case, limits)
            require([d for d in differences(rows, case, limits) if not d.padding], name, limits, case)
            count += 1
    return f"{count} batches over {subject.effort()}"


def padding(subject: Subject) -> str:
    """Padding rows, slots and tokens have length 0, a valid page and an id of their own."""
    count = 0
    for name, limits, builder in subject.builders():
        for case in subject.cases(limits, count=6, seed=1):
            rows = subject.build_case(builder, case, limits)
            found = [d for d in differences(rows, case, limits) if d.padding]
            require(found, name, limits, case, "padding breaks the contract")
            count += 1
    return f"{count} batches over {subject.effort()}"


def stale_tail(subject: Subject) -> None:
    """A small batch after a full one, of the same padded shape, leaves nothing of the full one behind."""
    for name, limits, builder in subject.builders():
        full, small = _full_and_small(limits, subject.uniform)
        for case in (full, small):
            require_plain(subject, case, name, limits)
        for case in (full, small, full, small):
            rows = subject.build_case(builder, case, limits)
            lead = "something of the batch before is left in the rows"
            judge(rows, case, name, limits, lead if case is small else "rows break the contract")


def stale_host_lengths(subject: Subject) -> None:
    """Device lengths are the truth: totals and counts on the host change nothing."""
    for name, limits, builder in subject.builders():
        draw = random.Random(7)
        for _ in range(1 if subject.slow else 6):
            slots, tokens = limits.max_requests, limits.max_tokens
            case = random_case(
                limits, draw, slots, uniform=subject.uniform, label="stale host", padded_tokens=tokens
            )
            require_plain(subject, case, name, limits)
            for other in _stale_cases(case, limits):
                poison_rows(subject.build_case(builder, other, limits))
                rows = subject.build_case(builder, other, limits)
                lead = (
                    f"the rows follow the host (num_requests {other.real}, num_tokens "
                    f"{other.tokens if other.host_tokens is None else other.host_tokens}) and not the device "
                    f"({case.tokens} tokens)"
                )
                judge(rows, case, name, limits, lead)


def determinism(subject: Subject) -> None:
    """Two builds of one batch are equal bit for bit, whatever ran between; so are those of two builders."""
    _many_builds(subject)
    for name, limits, builder in subject.builders():
        other = subject.descriptor.allocate(limits, subject.device, subject.capability)
        all_cases = subject.cases(limits, count=5, seed=2)
        between = all_cases[-1]
        for case in all_cases[-6:-1]:
            first = meaningful(subject.build_case(builder, case, limits), case, limits)
            subject.build_case(builder, between, limits)
            for words, maker in (("the same builder", builder), ("a second builder", other)):
                again = meaningful(subject.build_case(maker, case, limits), case, limits)
                for field, value in first.items():
                    if again[field] != value:
                        raise CheckFailed(
                            f"two builds of one batch differ in {field}: {value}, then {again[field]} "
                            f"from {words}\n  {case.describe()}\n  limits {name!r}: {limits}\n  contract: "
                            f"equal batches give equal rows; ranks that disagree hang\n{READ}"
                        )


def _many_builds(subject: Subject) -> None:
    """Compare one small batch over many builds: a fault may come with a count, not with a batch."""
    name, limits, builder = subject.first()
    case = Case("many builds", (1,), (limits.max_kv_len,), 1, 1, 1 if subject.uniform else None)
    batch = case.batch(limits, subject.device)
    first = {
        field: view.clone() for field, view in views(subject.build(builder, batch, case.describe())).items()
    }
    for number in range(2, 1 + (4 if subject.slow else _MANY)):
        rows = subject.build(builder, batch, case.describe())
        changed = [field for field, view in views(rows).items() if not torch.equal(first[field], view)]
        if changed:
            field = changed[0]
            raise CheckFailed(
                f"build number {number} of one batch differs from the first in {', '.join(changed)}: "
                f"{first[field].tolist()}, then {views(rows)[field].tolist()}\n  {case.describe()}\n"
                f"  limits {name!r}: {limits}\n  contract: equal batches give equal rows, however many "
                f"builds came before\n{READ}"
            )


def request_order(subject: Subject) -> None:
    """Requests in another order get the same rows under their new numbers."""
    for name, limits, builder in subject.builders():
        draw = random.Random(11)
        for _ in range(1 if subject.slow else 4):
            case = random_case(limits, draw, limits.max_requests, uniform=subject.uniform, label="in order")
            require_plain(subject, case, name, limits)
            order = draw.sample(range(case.real), case.real)
            query = tuple(case.query[index] for index in order) + case.query[case.real :]
            kv = tuple(case.kv[index] for index in order) + case.kv[case.real :]
            turned = Case(
                f"requests in the order {order}", query, kv, case.padded_tokens, case.real, case.uniform
            )
            for each in (case, turned):
                lead = "rows go to the wrong request when requests are in another order"
                judge(subject.build_case(builder, each, limits), each, name, limits, lead)


def _full_and_small(limits: Limits, uniform: bool) -> tuple[Case, Case]:
    most, block, deep = limits.max_requests, limits.max_query_len, limits.max_kv_len
    width = block if uniform else None
    full = Case("full", (block,) * most, (deep,) * most, most * block, most, width)
    real = most // 2
    padded = (0,) * (most - real)
    query = (block if uniform else 1,) * real + padded
    kv = (block,) * real + padded
    return full, Case("small after full", query, kv, most * block, real, width)


def _stale_cases(case: Case, limits: Limits) -> list[Case]:
    if case.uniform is not None:
        # uniform_query_len x num_requests is the host's total, so the two go stale together.
        return [stale(case, case.uniform * real, real) for real in range(case.requests + 1)]
    most = case.requests * limits.max_query_len
    return [
        stale(case, min(case.padded_tokens, most), case.requests),
        stale(case, 0, case.requests),
        stale(case, 0, 0),
    ]
