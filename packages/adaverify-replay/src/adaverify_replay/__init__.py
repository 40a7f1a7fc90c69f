"""The trace of a run with its summary and plots, and records of what a drafter would have got accepted."""

from adaverify_replay.plots import plot_cost_curve, plot_reliability, plot_trace, require_plottable
from adaverify_replay.records import BUNDLED, REGIMES, SOURCES, AcceptanceRecords, RecordsHeader
from adaverify_replay.summary import PredictionError, Summary, summarise
from adaverify_replay.trace import TraceHeader, TraceWriter, read_header, read_trace

__all__ = [
    "BUNDLED",
    "REGIMES",
    "SOURCES",
    "AcceptanceRecords",
    "PredictionError",
    "RecordsHeader",
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
