"""Running the modes side by side: engines, trace, live figures, and what is known when it is cut short."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adaverify.blame import blaming_plugins
from adaverify.console import note
from adaverify.session import Session
from adaverify_contracts import StepRecord, TraceError
from adaverify_engine import Engine, Sampling
from adaverify_engine.compare import Comparison, compare
from adaverify_replay import TraceHeader, TraceWriter, read_trace

WARMUP = 1
"""Rounds before the first recorded one; see ``adaverify_engine.compare``."""

Advance = Callable[[int, int], None]


class Live:
    """Tokens per second of every mode so far, as text; read by the progress display while engines run."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = engines

    def __str__(self) -> str:
        rates = {mode: _rate(engine) for mode, engine in self._engines.items()}
        parts = [f"{mode} {rate:.1f}" for mode, rate in rates.items() if rate is not None]
        return f"{', '.join(parts)} tokens/s" if parts else ""

    def rows(self) -> list[tuple[object, ...]]:
        """Return (mode, tokens per second of step time, tokens, steps) for the table of a run cut short.

        The speed of a mode that has not run a step yet is None.
        """
        return [
            (mode, _rate(engine), engine.stats.emitted, engine.stats.steps)
            for mode, engine in self._engines.items()
        ]


@contextmanager
def trace_writer(path: Path | None, session: Session, run: Mapping[str, Any]) -> Iterator[TraceWriter | None]:
    """Open the trace before anything is measured; yield None without a path.

    The header carries the run's sizes too, so that a trace never mixes runs of different sizes.

    Raises:
        TraceError: the file cannot be opened, is no trace, or belongs to another setup.
    """
    if path is None:
        yield None
        return
    settings = {**session.settings.as_dict(), "run": {**run, "drafter": session.drafter.name}}
    known = len(require_trace(path))
    with TraceWriter(
        path, TraceHeader(fingerprint=dict(session.fingerprint.pairs), settings=settings)
    ) as writer:
        if known:
            note(f"the trace {path} is of the same setup: appending to its {known} records")
        yield writer


def require_trace(path: Path, option: str = "--trace") -> list[StepRecord]:
    """Return the records that a file holds already; refuse one that exists and is no trace.

    Args:
        path: the file.
        option: how the user named it.

    Raises:
        TraceError: the file holds something else.
    """
    if not (path.exists() and path.stat().st_size):
        return []
    return known_records(path, f"choose another file for {option}, or remove that line")


def known_records(path: Path, remedy: str) -> list[StepRecord]:
    """Return the records of a trace; a last line that a crash cut short is left out.

    Raises:
        TraceError: the file is missing or no trace. Of a bad line it says ``remedy``, since the library's own
            advice is for programs.
    """
    try:
        return read_trace(path, allow_torn_tail=True)
    except TraceError as error:
        if error.line is not None:
            error.remedy = remedy
        raise


def run_modes(
    engines: Mapping[str, Engine],
    prompts: Sequence[Sequence[int]],
    sampling: Sequence[Sampling],
    session: Session,
    *,
    rounds: int,
    writer: TraceWriter | None = None,
    advance: Advance | None = None,
) -> Comparison:
    """Compare the modes on the same prompts; hand every step to observers, the adaptive ones to the trace.

    Raises:
        PluginError: a plugin's code raised.
        TraceError: the trace could not be written to the end.
    """
    verifiers = [engine.verifier for engine in engines.values()]
    if writer is not None:
        engines["adaptive"].verifier.add_observer("trace", writer.write)

    def finished(done: int, total: int, _: str) -> None:
        for verifier in verifiers:
            verifier.drain()
        if advance is not None:
            advance(done, total)

    try:
        with blaming_plugins(session.plugins):
            result = compare(engines, prompts, sampling, rounds=rounds, warmup=WARMUP, progress=finished)
    finally:
        for verifier in verifiers:
            verifier.close()
    if writer is not None:
        writer.flush()
    return result


def sampling_of(
    count: int, tokens: int, temperature: float, seed: int | None, *, trim_invariant: bool = False
) -> list[Sampling]:
    """Return what each prompt asks for; with a seed every prompt has noise of its own, equal in every round.

    Raises:
        EngineError: the temperature is no finite number.
    """
    seeds: list[int | None] = [None] * count
    if seed is not None:
        # Spread by a large odd factor, so that neighbouring seeds share no prompt's noise.
        seeds = [seed * 1_000_003 + index for index in range(count)]
    return [
        Sampling(temperature=temperature, max_tokens=tokens, seed=one, trim_invariant=trim_invariant)
        for one in seeds
    ]


def trace_failure(engines: Mapping[str, Engine], path: Path) -> TraceError | None:
    """Return why the trace is incomplete, None when it is whole."""
    for engine in engines.values():
        for one in engine.verifier.disabled_observers:
            if one.plugin == "trace":
                problem = f"the trace ends before step {one.step}: {one.error}"
                return TraceError(problem, path=str(path), remedy="choose a writable path with room")
    return None


def _rate(engine: Engine) -> float | None:
    seconds = engine.stats.total_seconds
    return engine.stats.emitted / seconds if seconds else None
