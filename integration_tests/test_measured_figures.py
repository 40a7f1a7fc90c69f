"""The figures of the comparison on one H200, in README and on its page, are those of the committed data."""

from __future__ import annotations

import json
from statistics import median, quantiles
from typing import Any

import pytest
import workspace

FOLDER = workspace.ROOT / "docs/measurements"
PAGE = FOLDER / "2026-11-30-h200-endtoend.md"
README = workspace.ROOT / "README.md"
PLAIN = ("none", *(f"fixed-{drafts}" for drafts in range(1, 8)))
BASELINES = ("published", "published-ahead")


def stages(name: str) -> dict[str, Any]:
    """Return the stages of a kept run."""
    found: dict[str, Any] = json.loads((FOLDER / "data" / name).read_text(encoding="utf-8"))["stages"]
    return found


FIRST = stages("2026-11-30-h200-endtoend.json")
AGAIN = stages("2026-12-01-h200-endtoend-1-and-4.json")
ARMS = {int(size): case["arms"] for size, case in (FIRST["arms"] | AGAIN["arms"]).items()}
"""Arms by requests; those of the later run where there is one."""


def ratios(arms: dict[str, Any], above: str, below: str) -> list[float]:
    """Return the ratio of two arms' tokens a second in every round."""
    pairs = (arms[name]["tokens_per_s_rounds"] for name in (above, below))
    return [one / other for one, other in zip(*pairs, strict=True)]


def gains(arms: dict[str, Any], baseline: str) -> list[float]:
    """Return what a baseline gains over its own full verification, round by round."""
    return ratios(arms, baseline, "published-fixed")


def over(arms: dict[str, Any], baseline: str) -> list[float]:
    """Return our gain over K = 7 against a baseline's gain over its own, round by round."""
    pairs = zip(ratios(arms, "adaptive", "fixed-7"), gains(arms, baseline), strict=True)
    return [ours / its for ours, its in pairs]


def best(arms: dict[str, Any]) -> str:
    """Return the best of none and every fixed K by its median, in hindsight."""
    return max(PLAIN, key=lambda name: arms[name]["tokens_per_s"])


def spread(values: list[float]) -> str:
    """Return median and quartiles as the page writes them."""
    low, _, high = quantiles(values, n=4, method="inclusive")
    return f"{median(values):.3f} ({low:.3f}-{high:.3f})"


def listed(values: list[float]) -> str:
    """Return figures of all sizes as the page's first table lists them."""
    return ", ".join(f"{value:.3f}" for value in values)


def row(*cells: object) -> str:
    """Return a line of a table."""
    return "\n| " + " | ".join(map(str, cells)) + " |\n"


def rates(arms: dict[str, Any], *names: str) -> list[str]:
    """Return tokens a second in whole numbers."""
    return [f"{arms[name]['tokens_per_s']:.0f}" for name in names]


@pytest.mark.parametrize("requests", ARMS)
def test_the_readme_has_the_figures_of_the_data(requests: int):
    """One row for each number of requests."""
    arms = ARMS[requests]
    compared = [ratios(arms, "adaptive", best(arms)), ratios(arms, "adaptive", "fixed-7")]
    compared += [gains(arms, baseline) for baseline in BASELINES]
    figures = [f"{median(values):.3f}" for values in compared]
    expected = row(requests, *rates(arms, "none", best(arms), "fixed-7", "adaptive"), *figures)
    assert expected in README.read_text(encoding="utf-8")


@pytest.mark.parametrize("requests", ARMS)
def test_the_page_has_the_throughput_of_the_data(requests: int):
    """Rates, ratios with quartiles, and what both baselines gain."""
    arms, page = ARMS[requests], PAGE.read_text(encoding="utf-8")
    none, top, full, adaptive = rates(arms, "none", best(arms), "fixed-7", "adaptive")
    compared = [spread(ratios(arms, "adaptive", name)) for name in (best(arms), "fixed-7")]
    assert row(requests, none, f"{top} (K = {best(arms)[-1]})", full, adaptive, *compared) in page
    both = [spread(made(arms, baseline)) for baseline in BASELINES for made in (gains, over)]
    assert row(requests, *both) in page


def asked(line: str) -> str:
    """Return what the table of what was asked says was measured."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    (found,) = [text for text in lines if text.startswith(f"| {line}")]
    return found.split(" | ")[1]


def test_what_was_measured_beside_what_was_asked_is_of_the_data():
    """The first table of the page: all sizes in a row, lowest rounds, equal budgets, shares, regret."""
    to_best = [ratios(arms, "adaptive", best(arms)) for arms in ARMS.values()]
    medians, lowest = listed([median(one) for one in to_best]), listed([min(one) for one in to_best])
    assert asked("never below 0.995") == f"{medians}; lowest round {lowest}"
    to_none = [median(ratios(arms, "adaptive", "none")) for arms in ARMS.values()]
    assert asked("nor of verifying none") == listed(to_none)
    to_full = ratios(ARMS[1], "adaptive", "fixed-7")
    assert asked("at 1 request") == f"{median(to_full):.3f}; lowest round {min(to_full):.3f}"
    page = PAGE.read_text(encoding="utf-8")
    for baseline in BASELINES:
        its = listed([median(gains(ARMS[size], baseline)) for size in (16, 64, 256)])
        ours = listed([median(over(ARMS[size], baseline)) for size in (16, 64, 256)])
        assert f"its {its}; ours over its {ours} |" in page
    regret = [100 * (1 - median(ratios(arms, "adaptive", "oracle-budget"))) for arms in ARMS.values()]
    assert asked("regret") == ", ".join(f"{value:.1f}" for value in regret) + " %"
    assert asked("at most 5 %").startswith(", ".join(f"{value:.1f}" for value in regret[3:]))


@pytest.mark.parametrize("baseline", BASELINES)
def test_equal_budgets_beside_what_was_asked_are_of_the_data(baseline: str):
    """Step times and shares at half of the drafts and at all, for all sizes in a row."""
    budgets = [list(case["budgets"].values()) for case in FIRST["shares"].values()]
    page = PAGE.read_text(encoding="utf-8")
    steps = [listed([one[at][baseline]["step_ratio"]["median"] for one in budgets]) for at in (0, 1)]
    shares = [
        listed([one[at]["ours"]["share"] / one[at][baseline]["share"] for one in budgets]) for at in (0, 1)
    ]
    for half, everything in (steps, shares):
        assert f"half verified: {half}; everything: {everything} |" in page


def test_ladders_and_pairs_beside_what_was_asked_are_of_the_data():
    """Time and memory of capturing, and the range of pairs by context."""
    capture = {int(size): case for size, case in FIRST["capture"].items()}
    times = [f"{case['seconds_ratio']:.3f} at {size}" for size, case in capture.items()]
    assert asked("capturing the adaptive ladder") == ", ".join(times)
    held = [f"{case['held_ratio']:.2f} at {size}" for size, case in capture.items()]
    assert asked("the same, memory") == ", ".join(held)
    found = []
    for context in (2048, 8192, 32768):
        cases = [FIRST["paired"][f"{requests} x {context}"] for requests in (1, 16, 64)]
        values = [one["ratio"]["median"] for case in cases for one in case["tiers"].values()]
        found.append(f"{min(values):.3f} to {max(values):.3f}")
    assert asked("pairs of rows").endswith(", ".join(found))


def test_the_ages_of_confidences_are_of_the_data():
    """Every step of the later run read confidences that were one step old, as the page says."""
    page = PAGE.read_text(encoding="utf-8")
    for requests, words in ((1, "1 request"), (4, "4 requests")):
        assert ARMS[requests]["adaptive"]["lags"] == {"1": 1.0}
        assert row(words, "100 %", 0, 0) in page
