"""Temperatures from JSON: our own lists and the files of other engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from adaverify_contracts import CalibrationError
from adaverify_verification.evidence import REGIME_NAMES

# Beyond these a confidence is a step function or one half everywhere. The smallest that was reported of a
# real fit, an absurd one, is 0.087.
LOWEST, HIGHEST = 0.01, 100.0

# SGLang writes the first, TensorRT-LLM the second (and the first beside it, equal), draft models' config.json
# the third or, within dspark_config, the second.
_KEYS = ("temperatures", "sts_temperatures", "confidence_temperatures")
_NESTED = "dspark_config"
_REGIMES = ("regimes", "modes")
_ALLOWED = (
    "a list of K numbers; an object with temperatures, sts_temperatures or confidence_temperatures, being "
    "such a list or an object by position; or an object with greedy and sampled, being one of these each"
)
_REMEDY = "export a JSON list, or fit temperatures: adaverify calibrate --signal temperature-scaled"


def temperatures_of(value: object, draft_tokens: int) -> dict[str, np.ndarray]:
    """Return the temperatures float64 [K] of each regime that a parsed JSON value has them for.

    Understood are a plain list; objects with ``temperatures`` (SGLang), ``sts_temperatures`` (TensorRT-LLM)
    or ``confidence_temperatures``, also within ``dspark_config``; by position, ``{"1": 1.2, ...}`` from 1 or
    from 0; and any of these by regime, ``{"greedy": ..., "sampled": ...}``, also within ``regimes`` or
    ``modes``. A value that names no regime is for both.

    Args:
        value: parsed JSON.
        draft_tokens: K in force.

    Raises:
        CalibrationError: none of these, another K, or a number outside 0.01 .. 100; says what arrived.
    """
    value = _within(value)
    if isinstance(value, dict) and value and set(value) <= set(REGIME_NAMES):
        return {name: _vector(part, draft_tokens) for name, part in value.items()}
    vector = _vector(value, draft_tokens)
    return {name: vector.copy() for name in REGIME_NAMES}


def require_temperatures(values: object, draft_tokens: int) -> np.ndarray:
    """Return a list of numbers as float64 [K].

    Raises:
        CalibrationError: it is no list, not of K numbers, or one is outside 0.01 .. 100.
    """
    if not isinstance(values, list) or not all(_is_number(item) for item in values):
        raise CalibrationError(
            "temperatures are no list of numbers", arrived=_short(values), allowed=_ALLOWED, remedy=_REMEDY
        )
    if len(values) != draft_tokens:
        raise CalibrationError(
            f"{len(values)} temperatures were given for K = {draft_tokens} draft tokens",
            arrived=_short(values),
            allowed=f"{draft_tokens} numbers, one a position",
            remedy="fit temperatures for the K in force, or run with the K they were fitted for",
        )
    for position, item in enumerate(values, 1):
        if not LOWEST <= item <= HIGHEST:
            raise CalibrationError(
                f"the temperature of position {position} is out of range",
                arrived=item,
                allowed=f"{LOWEST:g} .. {HIGHEST:g}",
                remedy="fit it to more data; 1 leaves a position as it is",
            )
    return np.array(values, np.float64)


def _within(value: object) -> object:
    """Return what regimes or a draft model's configuration enclose."""
    if isinstance(value, dict):
        for key in (*_REGIMES, _NESTED):
            if isinstance(value.get(key), dict):
                return value[key]
    return value


def _vector(value: object, draft_tokens: int) -> np.ndarray:
    if not isinstance(value, dict):
        return require_temperatures(value, draft_tokens)
    named = {key: value[key] for key in _KEYS if key in value}
    if not named:
        return require_temperatures(_by_position(value), draft_tokens)
    length = value.get("max_draft_len", draft_tokens)
    if length != draft_tokens:
        raise CalibrationError(
            f"temperatures for max_draft_len = {length} were given for K = {draft_tokens} draft tokens",
            arrived=_short(length),
            allowed=f"{draft_tokens}",
            remedy="fit temperatures for the K in force, or run with the K they were fitted for",
        )
    found = [
        require_temperatures(_by_position(part) if isinstance(part, dict) else part, draft_tokens)
        for part in named.values()
    ]
    if any((other != found[0]).any() for other in found[1:]):
        raise CalibrationError(
            "a file holds two different sets of temperatures",
            arrived=tuple(named),
            allowed="one of them, or equal ones",
            remedy="remove the one that is out of date",
        )
    return found[0]


def _by_position(value: Mapping[str, Any]) -> list[Any]:
    """Return the values of ``{"1": ..., "2": ...}`` in order; positions count from 1 or from 0."""
    count = len(value)
    for first in (1, 0):
        names = [str(first + index) for index in range(count)]
        if count and set(value) == set(names):
            return [value[name] for name in names]
    raise CalibrationError(
        "a file holds no temperatures that are understood",
        arrived=sorted(map(str, value))[:8],
        allowed=_ALLOWED,
        remedy=_REMEDY,
    )


def _is_number(item: object) -> bool:
    return isinstance(item, int | float) and not isinstance(item, bool)


def _short(value: object) -> object:
    text = repr(value)
    return value if len(text) <= 80 else f"{text[:77]}..."
