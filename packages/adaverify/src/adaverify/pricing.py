"""Where the prices of a run come from: a stored table that still fits this machine, or one measured now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from adaverify.affordable import affordable
from adaverify.console import count_of, note
from adaverify.course import Course
from adaverify.session import (
    Session,
    check_stored,
    measure_table,
    profile_command,
    store_table,
    stored_table,
    table_path,
)
from adaverify_contracts import CostTableError
from adaverify_verification import CostTable, TableCheck

Source = Literal["none", "stored", "measured"]


@dataclass(frozen=True, slots=True)
class Prices:
    """The cost table of a run, and how much it can be trusted.

    Attributes:
        table: what the planner reads; None where nothing is planned.
        source: ``none``, ``stored`` (loaded, perhaps rescaled) or ``measured`` in this run.
        words: the origin, for the reader.
        check: what came of measuring points of the stored table again; None without a stored table.
        kept: whether ``table`` is what the next run will find.
    """

    table: CostTable | None
    source: Source
    words: str
    check: TableCheck | None = None
    kept: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary, without the prices themselves."""
        return {
            "source": self.source,
            "kept": self.kept,
            "disturbed": [] if self.table is None else list(self.table.disturbed),
            "outliers": [] if self.table is None else list(self.table.outliers),
            "check": None if self.check is None else self.check.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class Job:
    """What prices are wanted for.

    Attributes:
        planned: whether any mode plans; without one nothing is measured.
        measure: False where the user wants no measuring.
        steps: decode steps at most; they bound how much is measured.
    """

    planned: bool
    measure: bool
    steps: int


def find_prices(session: Session, job: Job, course: Course, *, until: float) -> Prices:
    """Return the table to plan with: the stored one where it still has this machine's shape, else a new one.

    Every departure from the stored table is said on standard error: nothing is planned in silence with prices
    that a busy machine produced. Without prices the state is ``unpriced``, and that is said once.

    Args:
        session: of the run's sizes.
        job: what the prices are for.
        course: shows what goes on.
        until: share of the course at which measuring ends.

    Raises:
        FingerprintMismatchError, CostTableError: the table that the user named does not fit.
    """
    if not job.planned or session.options.draft_tokens == 0:
        return Prices(None, "none", "no cost table: nothing to plan")
    table, origin = stored_table(session)
    if not job.measure:
        if table is None:
            return _unpriced("--no-measure", "leave --no-measure out")
        return Prices(table, "stored", f"{origin}, not checked: --no-measure", kept=True)
    if table is None:
        return _measured(session, job, course, until, None, f"{origin}: measuring step times")
    course.stage("checking the cost table", until)
    check = check_stored(session, table)
    if not check.misfit:
        return _stored(table, origin, check)
    if session.settings.paths.cost_table is not None:
        note(f"{origin} is used because ADAVERIFY_PATHS_COST_TABLE names it, but {check.words()}")
        words = f"{origin}, which does not fit: {check.words()}"
        if check.outcome == "outrun":
            # Its times would be off by far more than serving may correct.
            return Prices(table.scaled(check.factor), "stored", words, check)
        return Prices(table, "stored", words, check, kept=True)
    why = f"the stored cost table is given up, {check.words()}: measuring step times anew"
    return _measured(session, job, course, until, check, why)


def share_of_measuring(session: Session, job: Job) -> float:
    """Return the share of a job's whole work that measuring takes at most, 0 .. 1."""
    chosen = affordable(session.options, session.ladder, job.steps, session.bare_ladder)
    if chosen is None or not job.planned or not job.measure:
        return 0.0
    return chosen.grid.most_timings / (chosen.grid.most_timings + job.steps)


def _unpriced(why: str, remedy: str, check: TableCheck | None = None) -> Prices:
    note(f"no step times, {why}: adaptive verifies every draft token (unpriced). To price steps, {remedy}")
    return Prices(None, "none", f"unpriced, {why}", check)


def _stored(table: CostTable, origin: str, check: TableCheck) -> Prices:
    if check.outcome == "undecided":
        note(f"{origin} is used, though {check.words()}")
    if table.disturbed:
        note(f"{origin} was measured on a busy machine: {table.disturbed[0]}")
    if check.outcome == "rescaled":
        table = table.scaled(check.factor)
    return Prices(table, "stored", f"{origin}, {check.words()}", check, kept=check.outcome != "rescaled")


def _measured(
    session: Session, job: Job, course: Course, until: float, check: TableCheck | None, why: str
) -> Prices:
    chosen = affordable(session.options, session.ladder, job.steps, session.bare_ladder)
    if chosen is None:
        few = f"the job's {count_of(job.steps, 'step')} at most are too few to measure for"
        return _unpriced(few, f"run `{profile_command(session)}` once", check)
    grid = chosen.grid
    if chosen.whole:
        note(f"{why}, once for this setup" if check is None else why)
    else:
        points = count_of(len(grid.shapes()), "point")
        note(
            f"{why} at {points} only, for this run only: the job is small. "
            f"To measure all of them once, run `{profile_command(session)}`"
        )
    table = measure_table(session, course.stage("measuring step times", until), grid=grid)
    if table.disturbed:
        say_disturbed(session, table)
        return Prices(table, "measured", "cost table measured now on a busy machine, not stored", check)
    if not chosen.whole:
        return Prices(table, "measured", "cost table of few points measured now, not stored", check)
    try:
        store_table(table, table_path(session))
    except CostTableError as error:
        # Measured is measured: this run goes on, the next one measures anew.
        note(str(error))
        return Prices(table, "measured", "cost table measured now, not stored", check)
    return Prices(table, "measured", "cost table measured now", check, kept=True)


def say_disturbed(session: Session, table: CostTable) -> None:
    """Say once that a table was measured on a busy machine, with what to do."""
    count = len(table.disturbed)
    points = count_of(count, "point")
    note(
        f"the machine was busy while step times were measured: {points} never came to rest "
        f"({table.disturbed[0]}). This cost table is used for this run only and not stored. "
        f"To do: quieten the machine and run `{profile_command(session)}`"
    )
