"""Plots of a cost table, of a trace and of reliability; matplotlib is imported when one is asked for."""

from __future__ import annotations

import os
import secrets
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from adaverify_contracts import AdaverifyError, StepRecord, TraceError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SUFFIXES = (".png", ".svg", ".pdf")
"""What a plot can be; help texts name the same three."""
# Of the small letters of a caption that many fit an inch.
_CAPTION_LETTERS = 17


class Curve(Protocol):
    """Step time over executed tokens, for one number of requests and one context."""

    @property
    def requests(self) -> int:
        """Decode requests in the step."""
        ...

    @property
    def context(self) -> int:
        """KV length of each request."""
        ...

    @property
    def tokens(self) -> Sequence[int]:
        """Executed query tokens, rising."""
        ...

    @property
    def measured(self) -> Sequence[float]:
        """Seconds as measured."""
        ...

    @property
    def seconds(self) -> Sequence[float]:
        """Seconds as the planner uses them, never falling."""
        ...


class ReliabilityBin(Protocol):
    """One point of a reliability diagram."""

    @property
    def rows(self) -> int:
        """Drafts in the bin."""
        ...

    @property
    def predicted(self) -> float:
        """Their mean predicted survival."""
        ...

    @property
    def observed(self) -> float:
        """The share whose prefix was accepted."""
        ...


class Reliability(Protocol):
    """What a reliability diagram needs of ``adaverify_verification.PositionReliability``."""

    @property
    def position(self) -> int:
        """1 .. K."""
        ...

    @property
    def ece(self) -> float | None:
        """Expected calibration error, None without rows."""
        ...

    @property
    def bins(self) -> Sequence[ReliabilityBin]:
        """Bins that hold rows."""
        ...


class CostCurves(Protocol):
    """What a plot needs of ``adaverify_verification.CostTable``."""

    @property
    def curves(self) -> Sequence[Curve]:
        """One a (requests, context)."""
        ...


def plot_cost_curve(table: CostCurves, path: str | os.PathLike[str], *, tiered: bool = False) -> Path:
    """Plot step time over tokens, one line a (requests, context), and return the file written.

    Points are measurements in milliseconds, lines the monotone curve that the planner uses: straight between
    points, or stairs with ``tiered``, where a batch executes at the next captured size. The suffix of
    ``path`` chooses the format.

    Raises:
        AdaverifyError: matplotlib is not installed, or the suffix is none of ``SUFFIXES``.
    """
    figure = new_figure()
    axes = figure.add_subplot()
    for curve in table.curves:
        label = f"{curve.requests} requests, context {curve.context}"
        (line,) = axes.plot(
            curve.tokens,
            [1e3 * value for value in curve.seconds],
            drawstyle="steps-pre" if tiered else "default",
            label=label,
        )
        axes.plot(
            curve.tokens,
            [1e3 * value for value in curve.measured],
            linestyle="none",
            marker="o",
            color=line.get_color(),
        )
    axes.set_xlabel("query tokens executed")
    axes.set_ylabel("step time, ms")
    axes.set_ylim(bottom=0)
    axes.set_title("Cost of a step: measured (points) and used (lines)")
    if table.curves:
        axes.legend(fontsize="small")
    return save_figure(figure, path)


def plot_trace(records: Sequence[StepRecord], path: str | os.PathLike[str]) -> Path:
    """Plot scheduled, verified and accepted drafts, and predicted and realised time, over steps.

    Raises:
        TraceError: there are no records.
        AdaverifyError: matplotlib is not installed, or the suffix is none of ``SUFFIXES``.
    """
    if not records:
        problem = "a trace without records cannot be plotted"
        raise TraceError(problem, path=str(path), remedy="record at least one step")
    steps = [record.step for record in records]
    figure = new_figure()
    drafts, times = figure.subplots(2, 1, sharex=True)
    for name in ("scheduled", "verified", "accepted"):
        drafts.plot(steps, [getattr(record, name) for record in records], label=name, linewidth=1)
    drafts.set_ylabel("draft tokens")
    drafts.legend(fontsize="small")
    for name in ("predicted_seconds", "realised_seconds"):
        values = [getattr(record, name) for record in records]
        milliseconds = [float("nan") if value is None else 1e3 * value for value in values]
        times.plot(steps, milliseconds, label=name.split("_", maxsplit=1)[0], linewidth=1)
    times.set_ylabel("step time, ms")
    times.set_xlabel("step")
    times.legend(fontsize="small")
    return save_figure(figure, path)


def plot_reliability(
    diagrams: Mapping[str, Mapping[str, Sequence[Reliability]]], path: str | os.PathLike[str]
) -> Path:
    """Plot observed acceptance over predicted survival, one panel a position, and return the file written.

    On the diagonal a prediction is right; below it, too sure. A dot's area grows with the rows of its bin.

    Args:
        diagrams: by regime, then by the name of a series (``before``, ``after``): one value a position.
        path: the suffix chooses the format.

    Raises:
        AdaverifyError: there is nothing to plot, or matplotlib is not installed or does not know the suffix.
    """
    width = max((len(one) for series in diagrams.values() for one in series.values()), default=0)
    if not width:
        raise AdaverifyError(
            "a reliability diagram without positions cannot be plotted",
            arrived=sorted(diagrams),
            allowed="at least one regime with K of at least 1",
            remedy="record drafts first",
        )
    figure = new_figure((max(6.0, 2.4 * width), 0.6 + 2.8 * len(diagrams)))
    panels = figure.subplots(len(diagrams), width, sharex=True, sharey=True, squeeze=False)
    for (regime, series), row in zip(diagrams.items(), panels, strict=True):
        row[0].set_ylabel(f"{regime}: accepted")
        for axes in row:
            axes.plot((0, 1), (0, 1), color="0.7", linewidth=1)
            axes.set_aspect("equal")
        for number, (name, positions) in enumerate(series.items()):
            for axes, one in zip(row, positions, strict=False):
                _draw_bins(axes, one, name, f"C{number}")
        for index, axes in enumerate(row):
            errors = [one[index].ece for one in series.values() if index < len(one)]
            shown = " to ".join("-" if error is None else f"{100 * error:.1f}" for error in errors)
            axes.set_title(f"position {index + 1}\nECE {shown} %", fontsize="small")
    panels[0][0].legend(fontsize="x-small")
    figure.supxlabel("predicted survival, held-out prompts")
    return save_figure(figure, path)


def _draw_bins(axes: Any, one: Reliability, name: str, color: str) -> None:
    total = sum(item.rows for item in one.bins)
    predicted, observed = ([getattr(item, word) for item in one.bins] for word in ("predicted", "observed"))
    axes.plot(predicted, observed, color=color, linewidth=1)
    areas = [4.0 + 60.0 * item.rows / total for item in one.bins]
    axes.scatter(predicted, observed, s=areas, color=color, label=name, alpha=0.8)


def require_plottable(path: str | os.PathLike[str]) -> None:
    """Refuse a file name that no plot can have, so that a long measurement does not end in this error.

    Raises:
        AdaverifyError: matplotlib is not installed, or the suffix is none of ``SUFFIXES``.
    """
    new_figure()
    _require_suffix(Path(path))


def _require_suffix(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise AdaverifyError(
            "the suffix names no format that a plot can have",
            arrived=str(path),
            allowed=", ".join(SUFFIXES),
            remedy="choose a path that ends in .png, .svg or .pdf",
        )


def new_figure(size: tuple[float, float] = (8, 5)) -> Figure:
    """Return an empty figure of ``size`` inches; raises ``AdaverifyError`` without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        problem = "a plot needs matplotlib, which is not installed"
        raise AdaverifyError(problem, remedy="install adaverify-replay[plot]") from error
    # A figure of its own: pyplot would keep global state and choose a backend from the user's environment.
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def add_caption(figure: Any, text: str) -> None:
    """Write ``text`` under a figure, in lines as long as it is wide; nothing where it is empty."""
    if text:
        across = int(_CAPTION_LETTERS * figure.get_size_inches()[0])
        figure.supxlabel(textwrap.fill(text, across), fontsize="x-small", color="0.35")


def save_figure(figure: Any, path: str | os.PathLike[str]) -> Path:
    """Write a figure in the format of the suffix, all of it or nothing; what lay there stays until then.

    Raises:
        AdaverifyError: the suffix is none of ``SUFFIXES``, or the file cannot be written.
    """
    target = Path(path)
    _require_suffix(target)
    # Behind a link, or the link would be replaced. The suffix stays last: it chooses the format.
    whole = target.resolve()
    part = whole.with_name(f".{whole.stem}.{secrets.token_hex(4)}.part{target.suffix}")
    try:
        figure.savefig(part)
        part.replace(whole)
    except (OSError, ValueError) as error:
        remedy = "make room on its disk, or choose a path that is writable"
        problem = f"the plot cannot be written, and what lay there is as it was: {_reason(error)}"
        raise AdaverifyError(problem, arrived=str(target), remedy=remedy) from error
    finally:
        part.unlink(missing_ok=True)
    return target


def _reason(error: Exception) -> str:
    """Return why a file was not written, without the name of the part that nobody asked for."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
