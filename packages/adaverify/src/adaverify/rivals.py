"""What else runs in the same rounds: the modes with another drafter, and other numbers of drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import typer

from adaverify.blame import blaming_plugins
from adaverify.session import Session
from adaverify_engine import Engine, profile_drafting
from adaverify_runtime import Mode, read_settings
from adaverify_verification import CostTable


def rival_name(drafter: str, mode: Mode) -> str:
    """Return the name under which ``mode`` with another drafter is compared."""
    return f"{drafter} {mode}"


def rival_names(session: Session, modes: Iterable[Mode]) -> dict[str, dict[Mode, str]]:
    """Return the names of what runs beside ``modes``, by drafter and mode.

    A rival runs in one mode, the last of ``modes`` that drafts: another one would cost a quarter of the
    default run's time and answer no question about the drafters.
    """
    drafting = [mode for mode in modes if mode != "none"][-1:]
    rivals = [one.name for one in session.rivals] if drafting else []
    return {name: {mode: rival_name(name, mode) for mode in drafting} for name in rivals}


def require_fewer(counts: Sequence[int], draft_tokens: int | None) -> None:
    """Refuse numbers of drafts that are not below K, which ``fixed`` itself drafts.

    K is that of the command line, or of the settings where it is None: no model decides it.

    Raises:
        typer.BadParameter: one is out of range.
    """
    if not counts:
        return
    most = (read_settings().engine.draft_tokens if draft_tokens is None else draft_tokens) - 1
    wrong = [count for count in counts if not 1 <= count <= most]
    if wrong:
        allowed = f"1 .. {most}, as mode fixed drafts K = {most + 1}" if most > 0 else "none: K is 1 or less"
        raise typer.BadParameter(f"--fixed {wrong[0]} is out of range; allowed: {allowed}")


def fixed_engines(session: Session, counts: Iterable[int]) -> dict[str, Engine]:
    """Return engines, ``fixed-1`` and so on, that draft so many tokens and verify them all."""
    return {
        f"fixed-{count}": replace(session, options=replace(session.options, draft_tokens=count)).engine(
            "fixed"
        )
        for count in counts
    }


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
    engines, names = {}, rival_names(session, modes)
    for rival in session.rivalled():
        prices = None if table is None else _table(rival, table, measured)
        for mode, name in names.get(rival.drafter.name, {}).items():
            engines[name] = rival.engine(mode, prices)
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
