"""Where the prices of a run come from: a stored table that still fits this machine, or one measured now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rich.progress import Progress

from adaverify.console import note
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
_ROUNDS = 3


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


def find_prices(session: Session, *, planned: bool, display: Progress) -> Prices:
    """Return the table to plan with: the stored one where it still has this machine's shape, else a new one.

    Every departure from the stored table is said on standard error: nothing is planned in silence with prices
    that a busy machine produced.

    Args:
        session: of the run's sizes.
        planned: whether any mode plans; without one nothing is measured.
        display: shows what goes on.

    Raises:
        FingerprintMismatchError, CostTableError: the table that the user named does not fit.
    """
    if not planned or session.options.draft_tokens == 0:
        return Prices(None, "none", "no cost table: nothing to plan")
    table, origin = stored_table(session)
    if table is None:
        note(f"{origin}: measuring step times, once for this setup")
        return _measured(session, display, None)
    task = display.add_task("checking the cost table", total=None, note="")
    check = check_stored(session, table)
    display.remove_task(task)
    if not check.misfit:
        return _stored(table, origin, check)
    if session.settings.paths.cost_table is not None:
        note(f"{origin} is used because ADAVERIFY_PATHS_COST_TABLE names it, but {check.words()}")
        words = f"{origin}, which does not fit: {check.words()}"
        if check.outcome == "outrun":
            # Its times would be off by far more than serving may correct.
            return Prices(table.scaled(check.factor), "stored", words, check)
        return Prices(table, "stored", words, check, kept=True)
    note(f"the stored cost table is given up, {check.words()}: measuring step times anew")
    return _measured(session, display, check)


def _stored(table: CostTable, origin: str, check: TableCheck) -> Prices:
    if check.outcome == "undecided":
        note(f"{origin} is used, though {check.words()}")
    if table.disturbed:
        note(f"{origin} was measured on a busy machine: {table.disturbed[0]}")
    if check.outcome == "rescaled":
        table = table.scaled(check.factor)
    return Prices(table, "stored", f"{origin}, {check.words()}", check, kept=check.outcome != "rescaled")


def _measured(session: Session, display: Progress, check: TableCheck | None) -> Prices:
    task = display.add_task("measuring step times", total=None, note="")
    table = measure_table(
        session, lambda done, total: display.update(task, completed=done, total=total), repeats=_ROUNDS
    )
    display.remove_task(task)
    if table.disturbed:
        say_disturbed(session, table)
        return Prices(table, "measured", "cost table measured now on a busy machine, not stored", check)
    try:
        store_table(table, table_path(session))
    except CostTableError as error:
        # Measured is measured: this run goes on, the next one measures anew.
        note(error.problem)
        return Prices(table, "measured", "cost table measured now, not stored", check)
    return Prices(table, "measured", "cost table measured now", check, kept=True)


def say_disturbed(session: Session, table: CostTable) -> None:
    """Say once that a table was measured on a busy machine, with what to do."""
    count = len(table.disturbed)
    points = "1 point" if count == 1 else f"{count} points"
    note(
        f"the machine was busy while step times were measured: {points} never came to rest "
        f"({table.disturbed[0]}). This cost table is used for this run only and not stored. "
        f"To do: quieten the machine and run `{profile_command(session)}`"
    )
