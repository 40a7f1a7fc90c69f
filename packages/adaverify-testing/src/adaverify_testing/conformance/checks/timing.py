"""How long one build takes; reported, never judged."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from time import perf_counter

import torch

from adaverify_contracts import DecodeBatch, DecodeRowBuilder
from adaverify_testing.conformance.batches import Case
from adaverify_testing.conformance.subject import Subject

_ROUNDS = {"cpu": 30, "cuda": 200}
# An interpreted kernel takes tenths of a second; the kit is to stay under ten.
_SECONDS = 0.5


def latency(subject: Subject) -> Mapping[str, float]:
    """Return the median time of a full batch of the first limits that are served, in microseconds."""
    _, limits, builder = subject.first()
    most, block = limits.max_requests, limits.max_query_len
    case = Case(
        "full",
        (block,) * most,
        (limits.max_kv_len,) * most,
        limits.max_tokens,
        most,
        block if subject.uniform else None,
    )
    batch = case.batch(limits, subject.device)
    subject.build(builder, batch, case.describe())
    times = _times(builder, batch, subject.device)
    return {"median_us": median(times) * 1e6, "builds": float(len(times)), "tokens": float(case.tokens)}


def _times(builder: DecodeRowBuilder, batch: DecodeBatch, device: torch.device) -> list[float]:
    times: list[float] = []
    began = perf_counter()
    while len(times) < _ROUNDS[device.type] and (not times or perf_counter() - began < _SECONDS):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = perf_counter()
        builder.build(batch)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(perf_counter() - start)
    return times
