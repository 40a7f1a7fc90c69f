"""Arms against each other: round by round, and over all text that they passed."""

from __future__ import annotations

import numpy as np

from adaverify.bench.endtoend.baseline import PUBLISHED, PUBLISHED_AHEAD, PUBLISHED_FIXED
from adaverify.bench.endtoend.rounds import Round
from adaverify.bench.timing import sample

DRAWS = 2000
"""Sets of rounds that are drawn, with replacement, for the interval of a ratio over all text."""

Totals = dict[str, tuple[np.ndarray, np.ndarray]]
"""Tokens and seconds of each arm, float64 [rounds] each."""


def ratios(rounds: dict[str, list[Round]], drafts: int) -> dict[str, dict[str, float]]:
    """Return ratios of rates: round by round (median, quartiles), and of all tokens a second of all time.

    A median of rounds says which arm wins in most of them. Over text some of which accepts far more than
    the rest, ``total`` says which one is through first; its interval, 95 %, is of rounds drawn anew.

    ``adaptive/best`` is against the best of none and the fixed arms, chosen by its median over all rounds,
    and ``adaptive/best of all text`` against the best by all its tokens a second; regrets are against the two
    oracles. ``gain over ...`` is what adaptive gains over full verification, over what that arm of the
    published arrangement gains over its own.
    """
    totals: Totals = {
        name: (np.array([float(one.tokens) for one in found]), np.array([one.seconds for one in found]))
        for name, found in rounds.items()
    }
    plain = ["none", *(f"fixed-{count}" for count in range(1, drafts + 1))]
    best = max(plain, key=lambda name: float(np.median(totals[name][0] / totals[name][1])))
    first = max(plain, key=lambda name: float(totals[name][0].sum() / totals[name][1].sum()))
    full = f"fixed-{drafts}"
    pairs = {
        f"adaptive/{full}": ("adaptive", full),
        "adaptive/none": ("adaptive", "none"),
        "adaptive/best": ("adaptive", best),
        "adaptive/best of all text": ("adaptive", first),
        "adaptive/oracle-budget": ("adaptive", "oracle-budget"),
        "adaptive/oracle": ("adaptive", "oracle"),
        f"{full}/{PUBLISHED_FIXED}": (full, PUBLISHED_FIXED),
    }
    for name in (PUBLISHED, PUBLISHED_AHEAD):
        pairs[f"adaptive/{name}"] = ("adaptive", name)
        pairs[f"{name}/{full}"] = (name, full)
        pairs[f"{name}/{PUBLISHED_FIXED}"] = (name, PUBLISHED_FIXED)
    chosen = {name: ((above, below),) for name, (above, below) in pairs.items()}
    gains: dict[str, tuple[tuple[str, str], ...]] = {
        f"gain over {name}": (("adaptive", full), (PUBLISHED_FIXED, name))
        for name in (PUBLISHED, PUBLISHED_AHEAD)
    }
    found = {name: compare(totals, factors) for name, factors in (chosen | gains).items()}
    found["best"] = {"drafts": float(plain.index(best)), "drafts of all text": float(plain.index(first))}
    return found


def compare(totals: Totals, factors: tuple[tuple[str, str], ...]) -> dict[str, float]:
    """Return the product of ratios of rates between pairs of arms, each the first's over the second's."""
    count = len(totals[factors[0][0]][0])
    each = np.ones(count)
    drawn = np.random.default_rng(0).integers(0, count, (DRAWS, count))
    whole, many = 1.0, np.ones(DRAWS)
    for above, below in factors:
        (tokens, seconds), (others, longer) = totals[above], totals[below]
        each *= (tokens / seconds) / (others / longer)
        whole *= (tokens.sum() / seconds.sum()) / (others.sum() / longer.sum())
        rates = tokens[drawn].sum(1) / seconds[drawn].sum(1)
        many *= rates / (others[drawn].sum(1) / longer[drawn].sum(1))
    one = sample(each.tolist())
    low, high = np.quantile(many, (0.025, 0.975)).tolist()
    return {
        "median": one.median,
        "low": one.low,
        "high": one.high,
        "total": float(whole),
        "total_low": low,
        "total_high": high,
    }
