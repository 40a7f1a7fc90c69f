"""Whether kept cases can be what was measured: a file that somebody edited is refused, by the place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from adaverify.bench.endtoend.paired import STRATEGIES
from adaverify.bench.endtoend.shares import OURS, THEIRS

_TIMES = ("step_us", "step_us_low", "step_us_high")
_RATES = ("tokens_per_s", "tokens_per_s_low", "tokens_per_s_high", "token_latency_us", "accepted_length")
# Figures that may be zero: nothing verified, nothing wasted.
_PLAIN = ("verified_a_step", "waste", "host_us")
_LARGEST = 1 << 63
_SPREAD = ("tokens_per_s_low", "tokens_per_s", "tokens_per_s_high")
# Figures that were computed from each other on one machine, and read back.
_ROUNDING = 1e-9


class _WrongError(Exception):
    """Says what is wrong, and where."""


def fault_in(stages: object) -> str | None:
    """Return what of the kept stages cannot have been measured, and where; None where nothing is wrong."""
    try:
        for stage, cases in _mapping(stages, "stages", empty=True).items():
            for case, found in _mapping(cases, f"stage {stage!r}", empty=True).items():
                place = f"stage {stage!r}, case {case!r}"
                one = _mapping(found, place)
                _finite(one, place)
                _origin(one, place)
                if stage in _CHECKS:
                    _CHECKS[stage](_named(stage, case, place), one, place)
    except _WrongError as wrong:
        return str(wrong)
    except RecursionError:
        return "values nested too deeply"
    return None


def _named(stage: str, case: str, place: str) -> int:
    """Return the requests that a case names."""
    parts = case.split(" x ") if stage == "paired" else [case]
    if len(parts) != (2 if stage == "paired" else 1) or not all(_is_count(part) for part in parts):
        form = "requests x context" if stage == "paired" else "a number of requests"
        raise _WrongError(f"{place}: no case is named so, {form} is")
    return int(parts[0])


def _is_count(text: str) -> bool:
    return len(text) < 10 and text.isascii() and text.isdecimal() and not text.startswith("0")


def _curve(requests: int, one: Mapping[str, Any], place: str) -> None:
    points = _list(one.get("points"), f"{place}, points")
    tokens = []
    for number, point in enumerate(points):
        here = f"{place}, points, {number}"
        _positive(_mapping(point, here), ("seconds", "low", "high"), here)
        tokens.append(_count(point, "tokens", here))
    tiers = _list(one.get("tiers"), f"{place}, tiers")
    if tokens != [tier for tier in tiers if _is_number(tier) and tier >= requests] or tokens != sorted(
        set(tokens)
    ):
        raise _WrongError(f"{place}, points: not one for each captured size of these requests, rising")


def _arms(_: int, one: Mapping[str, Any], place: str) -> None:
    arms = _mapping(one.get("arms"), f"{place}, arms")
    fixed = [name for name in arms if name.startswith("fixed-")]
    if not fixed or not all(_is_count(name.removeprefix("fixed-")) for name in fixed):
        raise _WrongError(f"{place}, arms: no fixed arm, fixed-1 and so on, that others are held against")
    lengths = set()
    for name, arm in arms.items():
        here = f"{place}, arms, {name}"
        _positive(_mapping(arm, here), (*_RATES, *_TIMES), here)
        _numbers(arm, _PLAIN, here)
        rounds = _list(arm.get("tokens_per_s_rounds"), f"{here}, tokens_per_s_rounds")
        for number, rate in enumerate(rounds):
            _positive({"rate": rate}, ("rate",), f"{here}, tokens_per_s_rounds, {number}")
        _same(arm["tokens_per_s"], median(rounds), f"{here}, tokens_per_s: not the median of its rounds")
        for rising in (_SPREAD, (_TIMES[1], _TIMES[0], _TIMES[2])):
            _ordered(arm, rising, here)
        if not 0 <= arm["waste"] <= 1:
            raise _WrongError(f"{here}, waste: {arm['waste']} is no share")
        lengths.add(len(rounds))
    if len(lengths) > 1:
        raise _WrongError(f"{place}, arms: arms of different numbers of rounds")
    _ratios(one.get("ratios", {}), arms, f"{place}, ratios")


def _ratios(ratios: object, arms: Mapping[str, Any], place: str) -> None:
    """Require that each ratio lies in its spread, and that one of two arms is that of their rounds."""
    for pair, found in _mapping(ratios, place, empty=True).items():
        here = f"{place}, {pair}"
        if "median" not in _mapping(found, here):
            continue
        _positive(found, ("median", "low", "high"), here)
        _ordered(found, ("low", "median", "high"), here)
        if "total" in found:
            _positive(found, ("total", "total_low", "total_high"), here)
            _ordered(found, ("total_low", "total_high"), here)
        above, _, below = pair.partition("/")
        if above in arms and below in arms:
            rates = zip(*(arms[name]["tokens_per_s_rounds"] for name in (above, below)), strict=True)
            own = median([rate / other for rate, other in rates])
            _same(found["median"], own, f"{here}, median: not that of the rounds")


def _shares(_: int, one: Mapping[str, Any], place: str) -> None:
    for budget, figures in _mapping(one.get("budgets"), f"{place}, budgets").items():
        here = f"{place}, budgets, {budget}"
        _mapping(figures, here)
        for name in (OURS, *THEIRS):
            at = f"{here}, {name}"
            found = _mapping(figures.get(name), at)
            _positive(found, _TIMES, at)
            _numbers(found, ("model_us", "beside_model_us", "host_us"), at)
            if name != OURS:
                ratio = _mapping(found.get("step_ratio"), f"{at}, step_ratio")
                _positive(ratio, ("median",), f"{at}, step_ratio")


def _paired(_: int, one: Mapping[str, Any], place: str) -> None:
    _count(one, "context", place)
    for tier, figures in _mapping(one.get("tiers"), f"{place}, tiers").items():
        here = f"{place}, tiers, {tier}"
        if not _is_count(tier):
            raise _WrongError(f"{here}: no number of query tokens")
        strategies = [name for name in _mapping(figures, here) if name != "ratio"]
        for name in strategies:
            _positive(_mapping(figures[name], f"{here}, {name}"), _TIMES, f"{here}, {name}")
        if set(STRATEGIES) <= set(strategies) or "ratio" in figures:
            _positive(_mapping(figures.get("ratio"), f"{here}, ratio"), ("median",), f"{here}, ratio")
            for name in STRATEGIES:
                _mapping(figures.get(name), f"{here}, {name}")


def _capture(_: int, one: Mapping[str, Any], place: str) -> None:
    for name in ("fixed", "adaptive"):
        here = f"{place}, {name}"
        found = _mapping(one.get(name), here)
        _count(found, "graphs", here)
        _positive(found, ("seconds",), here)
        if found.get("pool_bytes") is not None:
            _numbers(found, ("pool_bytes",), here)
    _positive(one, ("seconds_ratio",), place)
    ladders = _list(one["ladders"], f"{place}, ladders") if one.get("ladders") else ()
    for number, ladder in enumerate(ladders):
        here = f"{place}, ladders, {number}"
        _count(_mapping(ladder, here), "limit", here)
        _numbers(ladder, ("even_padding", "chosen_padding"), here)


def _origin(one: Mapping[str, Any], place: str) -> None:
    """Require that rounds, and what a case was measured by, are what they were written as; where they are."""
    if "rounds" in one:
        _count(one, "rounds", place)
    if "measured" not in one:
        return
    here = f"{place}, measured"
    kept = _mapping(one["measured"], here)
    _count(kept, "threads", here)
    if kept.get("steps") is not None:
        _count(kept, "steps", here)
    if not {"commit", "steps"} <= kept.keys() or not isinstance(kept["commit"], str | None):
        raise _WrongError(f"{here}: no commit and steps")


def _mapping(value: object, place: str, *, empty: bool = False) -> dict[str, Any]:
    if not isinstance(value, dict) or not (value or empty):
        raise _WrongError(f"{place}: an object with values belongs there")
    return value


def _list(value: object, place: str) -> Sequence[Any]:
    if not isinstance(value, list) or not value:
        raise _WrongError(f"{place}: a list of values belongs there")
    return value


def _finite(value: object, place: str) -> None:
    """Require that every figure is finite, and no larger than anything that is measured."""
    if isinstance(value, dict):
        for name, item in value.items():
            _finite(item, f"{place}, {name}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            _finite(item, f"{place}, {number}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise _WrongError(f"{place}: {value} is no figure")
    elif isinstance(value, int) and abs(value) >= _LARGEST:
        raise _WrongError(f"{place}: an integer of {value.bit_length()} bits is no figure")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(value: Mapping[str, Any], names: Sequence[str], place: str) -> None:
    for name in names:
        if not _is_number(value.get(name)):
            raise _WrongError(f"{place}, {name}: a number belongs there")


def _positive(value: Mapping[str, Any], names: Sequence[str], place: str) -> None:
    _numbers(value, names, place)
    for name in names:
        if value[name] <= 0:
            raise _WrongError(f"{place}, {name}: {value[name]} is not positive")


def _ordered(value: Mapping[str, Any], names: Sequence[str], place: str) -> None:
    found = [value[name] for name in names]
    if any(one > other * (1 + _ROUNDING) for one, other in pairwise(found)):
        raise _WrongError(f"{place}: {', '.join(names)} do not rise")


def _same(value: float, wanted: float, words: str) -> None:
    if not math.isclose(value, wanted, rel_tol=_ROUNDING):
        raise _WrongError(f"{words}, {value} instead of {wanted}")


def _count(value: Mapping[str, Any], name: str, place: str) -> int:
    found = value.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise _WrongError(f"{place}, {name}: a positive integer belongs there")
    return found


_CHECKS: dict[str, Callable[[int, Mapping[str, Any], str], None]] = {
    "curve": _curve,
    "arms": _arms,
    "shares": _shares,
    "paired": _paired,
    "capture": _capture,
}
