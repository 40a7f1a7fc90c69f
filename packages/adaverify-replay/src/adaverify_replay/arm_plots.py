"""Plots of arms beside each other; matplotlib is imported when one is asked for."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adaverify_replay.plots import add_caption, new_figure, save_figure

_COLORS = (
    "none",
    "published-ahead",
    "oracle-budget",
    "adaptive",
    "oracle",
    "published-fixed",
    "published",
)

_LADDERS = ("fixed", "adaptive")

Arms = Mapping[int, Mapping[str, Mapping[str, Any]]]
"""Figures of each arm, by number of requests, then by name of the arm."""


def plot_arms(arms: Arms, path: str | os.PathLike[str], caption: str = "") -> Path:
    """Plot tokens a second, relative to the arm that verifies everything, and time a token over requests.

    Each arm has ``tokens_per_s_rounds``, of the same rounds as the others', and ``token_latency_us``. Points
    are medians over rounds of the ratio in each round, bars its quartiles. The suffix of ``path`` chooses the
    format; ``caption`` stands below.

    Raises:
        AdaverifyError: matplotlib is not installed, or the suffix is none of ``SUFFIXES``.
    """
    figure = new_figure((12, 5))
    rate, latency = figure.subplots(1, 2)
    full = max((name for name in _names(arms) if name.startswith("fixed-")), key=_drafts, default="")
    for number, name in enumerate(_names(arms)):
        style = _style(name, number)
        have = [requests for requests in arms if name in arms[requests] and full in arms[requests]]
        found = [_ratio(arms[requests][name], arms[requests][full]) for requests in have]
        middle = [one for _, one, _ in found]
        low, high = ([one - least for least, one, _ in found], [most - one for _, one, most in found])
        rate.errorbar(have, middle, yerr=[low, high], label=name, capsize=2, **style)
        times = [1e-3 * arms[requests][name]["token_latency_us"] for requests in have]
        latency.plot(have, times, label=name, **style)
    rate.set_ylabel(f"tokens a second, {full} = 1 in each round")
    latency.set_ylabel("time a token and request, ms")
    latency.set_yscale("log")
    for axes in (rate, latency):
        _over_requests(axes, list(arms))
    figure.legend(*rate.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    add_caption(figure, caption)
    return save_figure(figure, path)


def plot_planning(arms: Arms, path: str | os.PathLike[str], caption: str = "") -> Path:
    """Plot drafts verified a request, accepted length and the share of verified drafts that failed.

    Each arm has ``verified_a_step``, ``accepted_length`` and ``waste``.

    Raises:
        AdaverifyError: matplotlib is not installed, or the suffix is none of ``SUFFIXES``.
    """
    figure = new_figure((14, 4.5))
    panels = figure.subplots(1, 3)
    for number, name in enumerate(_names(arms)):
        style = _style(name, number)
        have = [requests for requests in arms if name in arms[requests]]
        own = [arms[requests][name] for requests in have]
        verified = [one["verified_a_step"] / requests for one, requests in zip(own, have, strict=True)]
        for axes, values in zip(
            panels,
            (verified, [one["accepted_length"] for one in own], [one["waste"] for one in own]),
            strict=True,
        ):
            axes.plot(have, values, label=name, **style)
    words = ("drafts verified, a request and step", "accepted length, tokens", "verified drafts that failed")
    for axes, word in zip(panels, words, strict=True):
        axes.set_ylabel(word)
        _over_requests(axes, list(arms))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    add_caption(figure, caption)
    return save_figure(figure, path)


def plot_tiers(
    points: Mapping[int, Sequence[tuple[int, float]]], path: str | os.PathLike[str], caption: str = ""
) -> Path:
    """Plot seconds of a step at each captured size, as stairs, one line a number of requests.

    Raises:
        AdaverifyError: matplotlib is not installed, or the suffix is none of ``SUFFIXES``.
    """
    figure = new_figure((8, 5))
    axes = figure.subplots()
    for requests, found in points.items():
        tokens, seconds = zip(*found, strict=True)
        axes.plot(
            tokens,
            [1e3 * value for value in seconds],
            drawstyle="steps-pre",
            marker="o",
            markersize=3,
            label=f"{requests} requests",
        )
    axes.set_xlabel("query tokens executed")
    axes.set_ylabel("step time, ms")
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    add_caption(figure, caption)
    return save_figure(figure, path)


def plot_capture(
    captures: Mapping[int, Mapping[str, Any]], path: str | os.PathLike[str], caption: str = ""
) -> Path:
    """Plot capture seconds and bytes of the fixed and the adaptive ladder, and padding of limited ladders.

    Bytes have a panel where any were measured: on a CPU none are.

    Raises:
        AdaverifyError: matplotlib is not installed, or the suffix is none of ``SUFFIXES``.
    """
    sizes = [found[name].get("pool_bytes") for found in captures.values() for name in _LADDERS]
    figure = new_figure((11, 4))
    seconds, *held, padding = figure.subplots(1, 3 if any(sizes) else 2)
    for place, (requests, found) in enumerate(captures.items()):
        for offset, name in enumerate(_LADDERS):
            at, color = place + 0.4 * offset, f"C{offset}"
            label = f"{requests} requests, {name}, {found[name]['graphs']} graphs"
            seconds.bar(at, found[name]["seconds"], width=0.35, color=color, label=label)
            for axes in held:
                axes.bar(at, (found[name].get("pool_bytes") or 0) / 2**20, width=0.35, color=color)
        _draw_padding(padding, found.get("ladders", ()), f"{requests} requests")
    for axes in (seconds, *held):
        axes.set_xlabel("requests at once")
        axes.set_xticks([place + 0.2 for place in range(len(captures))], [str(count) for count in captures])
    seconds.set_ylabel("capture, s")
    for axes in held:
        axes.set_ylabel("held by captures, MiB")
    seconds.legend(fontsize="x-small")
    padding.legend(fontsize="x-small")
    add_caption(figure, caption)
    return save_figure(figure, path)


def _draw_padding(axes: Any, ladders: Sequence[Mapping[str, Any]], words: str) -> None:
    axes.set_xlabel("graphs at most")
    axes.set_ylabel("mean padding, share of the batch")
    limits = [one["limit"] for one in ladders]
    for name in ("even", "chosen"):
        padding = [one[f"{name}_padding"] for one in ladders]
        axes.plot(limits, padding, marker="o", label=f"{words}, {name}")


def _ratio(own: Mapping[str, Any], base: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile of an arm's rate over another's, round by round."""
    pairs = zip(own["tokens_per_s_rounds"], base["tokens_per_s_rounds"], strict=True)
    each = [rate / under for rate, under in pairs]
    if len(each) == 1:
        return each[0], each[0], each[0]
    low, middle, high = statistics.quantiles(each, n=4, method="inclusive")
    return low, middle, high


def _drafts(name: str) -> int:
    """Return K of a fixed arm."""
    return int(name.rsplit("-", 1)[1])


def _names(arms: Arms) -> list[str]:
    return list(dict.fromkeys(name for found in arms.values() for name in found))


def _style(name: str, number: int) -> dict[str, Any]:
    """Return how a line looks: fixed arms stay in the background."""
    if name.startswith("fixed-"):
        return {"color": str(max(0.0, 0.85 - 0.08 * _drafts(name))), "linewidth": 1}
    place = _COLORS.index(name) if name in _COLORS else len(_COLORS) + number
    line = "--" if name.startswith("published") else ":" if name.startswith("oracle") else "-"
    return {"color": f"C{place % 10}", "linestyle": line, "linewidth": 1.8, "marker": "o", "markersize": 3}


def _over_requests(axes: Any, requests: Sequence[int]) -> None:
    axes.set_xlabel("requests at once")
    axes.set_xscale("log", base=2)
    axes.set_xticks(requests, [str(count) for count in requests])
