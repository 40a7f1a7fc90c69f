"""Rows of a result: ours and the baseline below each other, and the ratio beside ours."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from adaverify_contracts import BenchmarkCell, BenchmarkColumn, Sample, Times, WrongValueError

OURS = "ours"
PARTS = ("host", "gpu", "graph_host", "graph_gpu")
_SPREAD = ("low", "high")


def time_columns(*parts: str) -> tuple[BenchmarkColumn, ...]:
    """Return variant, a column for each part, ratios baseline / ours, and quartiles for JSON alone."""
    return (
        BenchmarkColumn("variant"),
        *(BenchmarkColumn(f"{part}_us", "us") for part in parts),
        *(BenchmarkColumn(f"{part}_ratio", "baseline / ours") for part in parts if part != "graph_host"),
        *(BenchmarkColumn(f"{part}_us_{end}", "us", shown=False) for part in parts for end in _SPREAD),
    )


def time_rows(
    case: tuple[BenchmarkCell, ...], times: Mapping[str, Times], *parts: str
) -> list[tuple[BenchmarkCell, ...]]:
    """Return a row for each variant, for ``(*case columns, *time_columns(*parts))``; the first is ours."""
    return sample_rows(
        case,
        {name: {part: getattr(one, part) for part in parts} for name, one in times.items()},
        *parts,
    )


def sample_rows(
    case: tuple[BenchmarkCell, ...], variants: Mapping[str, Mapping[str, Sample | None]], *parts: str
) -> list[tuple[BenchmarkCell, ...]]:
    """Return the rows of ``time_rows`` from samples by variant and part; the last variant is the baseline."""
    names = list(variants)
    base = variants[names[-1]]
    rows: list[tuple[BenchmarkCell, ...]] = []
    for name in names:
        own = variants[name]
        ratios = [
            _ratio(base[part], own[part]) if name != names[-1] else None
            for part in parts
            if part != "graph_host"
        ]
        spread = [None if own[part] is None else _end(own[part], end) for part in parts for end in _SPREAD]
        rows.append((*case, name, *(_median(own[part]) for part in parts), *ratios, *spread))
    return rows


def require_equal(what: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    """Require that every integer equals the reference's.

    Raises:
        WrongValueError: names ``what``, how many differ, and where the first one does.
    """
    if found.shape != expected.shape:
        raise WrongValueError(
            f"{what} has another shape than the reference",
            arrived=tuple(found.shape),
            allowed=str(tuple(expected.shape)),
            remedy="do not use this kernel here; no time was taken",
        )
    wrong = (found != expected).nonzero()
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise WrongValueError(
            f"{what} differs from the reference in {len(wrong)} of {found.numel()} values, first at {at}",
            arrived=found[at].item(),
            allowed=str(expected[at].item()),
            remedy="do not use this kernel here; no time was taken",
        )


def _median(one: Sample | None) -> float | None:
    return None if one is None else round(one.median, 3)


def _end(one: Sample | None, end: str) -> float | None:
    return None if one is None else round(float(getattr(one, end)), 3)


def _ratio(base: Sample | None, own: Sample | None) -> float | None:
    if base is None or own is None or own.median == 0:
        return None
    return round(base.median / own.median, 4)
