"""The trace of a run: its format, its summary and its plots."""

from adaverify_replay.plots import plot_cost_curve, plot_reliability, plot_trace, require_plottable
from adaverify_replay.summary import PredictionError, Summary, summarise
from adaverify_replay.trace import TraceHeader, TraceWriter, read_header, read_trace

__all__ = [
    "PredictionError",
    "Summary",
    "TraceHeader",
    "TraceWriter",
    "plot_cost_curve",
    "plot_reliability",
    "plot_trace",
    "read_header",
    "read_trace",
    "require_plottable",
    "summarise",
]
