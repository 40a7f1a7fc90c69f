"""The modes once more with another drafter, in the same rounds: names, prices, engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from adaverify.blame import blaming_plugins
from adaverify.session import Session
from adaverify_engine import Engine, profile_drafting
from adaverify_runtime import Mode
from adaverify_verification import CostTable


def rival_name(drafter: str, mode: Mode) -> str:
    """Return the name under which ``mode`` with another drafter is compared."""
    return f"{drafter} {mode}"


def rival_names(session: Session, modes: Iterable[Mode]) -> dict[str, dict[Mode, str]]:
    """Return the names of what runs beside ``modes``, by drafter and mode; ``none`` drafts nothing."""
    drafting = [mode for mode in modes if mode != "none"]
    rivals = [one.name for one in session.rivals] if drafting else []
    return {name: {mode: rival_name(name, mode) for mode in drafting} for name in rivals}


def rival_engines(
    session: Session,
    modes: Iterable[Mode],
    table: CostTable | None,
    measured: Callable[[Session], CostTable | None],
) -> dict[str, Engine]:
    """Return the engines of ``rival_names``.

    Args:
        session: whose rivals run.
        modes: of the run.
        table: what the session's own adaptive mode plans with; None where nothing plans.
        measured: returns the table of a rival whose steps hold its drafting, being captured.
    """
    engines = {}
    for rival in session.rivalled():
        prices = None if table is None else _table(rival, table, measured)
        for mode in modes:
            if mode != "none":
                engines[rival_name(rival.drafter.name, mode)] = rival.engine(mode, prices)
    return engines


def _table(
    rival: Session, table: CostTable, measured: Callable[[Session], CostTable | None]
) -> CostTable | None:
    if rival.ladder:
        return measured(rival)
    engine = rival.uncaptured("fixed")
    try:
        with blaming_plugins(rival.plugins):
            return profile_drafting(engine, table)
    finally:
        engine.verifier.close()
