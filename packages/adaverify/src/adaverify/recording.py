"""What ``adaverify calibrate`` calibrates on: a run that verifies everything, or traces of earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaverify.blame import blaming_plugins
from adaverify.loaded import require_completed
from adaverify.running import known_records, trace_failure, trace_writer
from adaverify.session import Session
from adaverify_contracts import CalibrationError, StepRecord
from adaverify_engine import Engine, Sampling
from adaverify_replay import TraceHeader, read_header

NOT_NAMED = "not named"


@dataclass(frozen=True, slots=True)
class Recording:
    """Records with the names that a calibration made of them belongs to.

    Attributes:
        target, drafter: their names; ``not named`` where a trace does not say.
        records: in order.
        source: where they came from, JSON-ready.
    """

    target: str
    drafter: str
    records: list[StepRecord]
    source: dict[str, Any]


def read_recordings(paths: Sequence[Path]) -> Recording:
    """Return the records of all traces together.

    Raises:
        TraceError: a file is missing or no trace.
        CalibrationError: the traces are of different targets or drafters.
    """
    records: list[StepRecord] = []
    names: dict[Path, tuple[str, str]] = {}
    for path in paths:
        records += known_records(path, "remove the line, or name a file that `adaverify run --trace` wrote")
        names[path] = _names(read_header(path))
    if len(set(names.values())) > 1:
        raise CalibrationError(
            "traces of different setups cannot be calibrated together",
            arrived={
                str(path): f"target {target}, drafter {drafter}" for path, (target, drafter) in names.items()
            },
            allowed="one target and one drafter",
            remedy="calibrate each setup by itself",
        )
    target, drafter = next(iter(names.values()))
    return Recording(target, drafter, records, {"traces": [str(path) for path in paths]})


def record_run(
    session: Session,
    prompts: Sequence[Sequence[int]],
    sampling: Sequence[Sampling],
    run: dict[str, Any],
    *,
    trace: Path | None,
    advance: Callable[[int, int], None],
) -> Recording:
    """Run every prompt once, verify every draft, and return what was recorded.

    Args:
        session: of the run's sizes.
        prompts: token ids.
        sampling: one a prompt.
        run: sizes for the header of the trace and the report.
        trace: also append the records to this file.
        advance: called as ``advance(finished, prompts)``.

    Raises:
        PluginError: a plugin's code raised, or its tokenizer failed for a prompt.
        TraceError: the trace cannot be written.
    """
    records: list[StepRecord] = []
    with trace_writer(trace, session, run) as writer:
        engine = session.engine("fixed")
        engine.verifier.add_observer("calibration", records.append)
        if writer is not None:
            engine.verifier.add_observer("trace", writer.write)
        try:
            with blaming_plugins(session.plugins):
                _run(engine, prompts, sampling, advance)
            require_completed(engine.take().values(), session.model_name, session.plugins)
        finally:
            engine.verifier.close()
    if trace is not None and (failure := trace_failure({"fixed": engine}, trace)):
        raise failure
    return Recording(session.model.model.geometry.name, session.drafter.name, records, {"run": run})


def _run(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    sampling: Sequence[Sampling],
    advance: Callable[[int, int], None],
) -> None:
    for tokens, wanted in zip(prompts, sampling, strict=True):
        engine.add(tokens, wanted)
    finished = 0
    while not engine.idle:
        finished += sum(event.finished is not None for event in engine.step())
        advance(finished, len(prompts))


def _names(header: TraceHeader) -> tuple[str, str]:
    run = header.settings.get("run")
    drafter = run.get("drafter") if isinstance(run, dict) else None
    target = header.fingerprint.get("model")
    return _text(target), _text(drafter)


def _text(value: object) -> str:
    return value if isinstance(value, str) else NOT_NAMED
