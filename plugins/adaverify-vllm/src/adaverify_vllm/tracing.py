"""The trace of ``ADAVERIFY_PATHS_TRACE``: whose it is, and that it costs nobody more than itself."""

from __future__ import annotations

import atexit
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adaverify_runtime import Settings
from adaverify_vllm.outcomes import Observer
from adaverify_vllm.settings import planner_in_force

LOG = logging.getLogger("vllm.adaverify")

# Records that a killed process loses at most.
FLUSH_EVERY = 8


def trace_of(settings: Settings, facts: Mapping[str, object], rank: int) -> Observer | None:
    """Return what writes records to the trace, None where none is asked for or it cannot be written.

    Data-parallel ranks after the first write to files of their own, ``.dp1`` and so on. One line says why a
    trace that was asked for is not written.

    Args:
        settings: in force; the header carries those of the planner.
        facts: the setup, the header's fingerprint.
        rank: data-parallel rank.
    """
    if settings.paths.trace is None:
        return None
    path = settings.paths.trace if rank == 0 else Path(f"{settings.paths.trace}.dp{rank}")
    try:
        return _open(path, settings, facts)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with a file, the bridge serves
        LOG.warning("adaverify-vllm writes no trace, and is active without: %s", error)
        return None


def _open(path: Path, settings: Settings, facts: Mapping[str, object]) -> Observer:
    from adaverify_replay import TraceHeader, TraceWriter

    header = TraceHeader(fingerprint=dict(facts), settings=planner_in_force(settings))
    writer = TraceWriter(path, header, flush_every=FLUSH_EVERY)
    atexit.register(writer.close)
    return writer.write


def trace_problem(settings: Settings) -> str | None:
    """Return why no trace would be written, None where one would; nothing is created.

    The model and the accelerator are known to vLLM alone: a trace of another one is found when it starts.
    """
    path = settings.paths.trace
    if path is None:
        return "no trace is asked for: ADAVERIFY_PATHS_TRACE is unset"
    try:
        from adaverify_replay import read_header

        if not path.exists():
            with tempfile.TemporaryFile(dir=path.parent):
                return None
        with path.open("ab"):
            empty = not path.stat().st_size
        found: Mapping[str, Any] = {} if empty else read_header(path).settings
    except Exception as error:  # noqa: BLE001 - whatever is wrong is the answer
        return f"the trace {path} cannot be written: {error}"
    here = planner_in_force(settings)
    differing = [name for name in here if not empty and found.get(name) != here[name]]
    if differing:
        return f"the trace {path} belongs to another setup ({', '.join(differing)}): write to a new file"
    return None
