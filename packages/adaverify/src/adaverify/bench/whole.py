"""Sessions and engines for benchmarks of whole decode steps, which are single replays wherever possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from adaverify.drafting import DRAFTER
from adaverify.outset import MODEL, Choice
from adaverify.session import Session, open_session
from adaverify_contracts import (
    BenchmarkOptions,
    Drafter,
    GraphBackendDescriptor,
    Limits,
    ModelFileError,
    Requirements,
    UnknownNameError,
    hookimpl,
)
from adaverify_engine.drafters import LookupDrafter
from adaverify_graphs import EagerBackend

K = 7
PROMPT, PERIOD = 24, 8


class RerunBackend:
    """A plugin whose graphs run their step again, so that a CPU takes the path of captured steps."""

    @hookimpl
    def adaverify_register_graph_backends(self) -> Sequence[GraphBackendDescriptor]:
        """Return the backend ``bench-rerun``, for a CPU alone."""
        needs = Requirements(device_types=("cpu",))
        return (
            GraphBackendDescriptor("bench-rerun", needs, captures=True, priority=5, factory=EagerBackend),
        )


def session_of(options: BenchmarkOptions) -> tuple[Session, tuple[str, ...]]:
    """Return a session of the asked model; the tiny one, with a note, where the default is not to be had."""
    choice = Choice(
        model=options.model or MODEL,
        drafter=options.drafter or DRAFTER,
        device=options.device,
        dtype=options.dtype,
        draft_tokens=K,
        offline=options.offline,
    )
    notes: tuple[str, ...] = ()
    try:
        session = open_session(choice)
    except (ModelFileError, UnknownNameError) as error:
        if options.model is not None:
            raise
        try:
            # Not imported above: the testing kit brings pytest, which nobody needs for the command line.
            from adaverify_testing import tiny_model
        except ImportError:
            raise error from None
        notes = (f"{choice.model} is not to be had ({error.problem}); the tiny test model stood in for it",)
        session = open_session(choice, load=tiny_model)
    if options.device.startswith("cpu"):
        session.plugins.register(RerunBackend(), "bench-rerun")
        if session.drafter.name == DRAFTER:
            session = replace(session, drafter=replace(session.drafter, factory=_lookup))
        notes = (*notes, "a CPU captures nothing: a replay runs the step again, and hides no host time")
    return session, notes


def periodic_prompts(requests: int, block: int) -> list[list[int]]:
    """Return periodic prompts, which prompt lookup drafts well; each block has others."""
    return [
        [1 + (11 * request + 7 * block + 3 * (place % PERIOD)) % 61 for place in range(PROMPT)]
        for request in range(requests)
    ]


def _lookup(limits: Limits, device: torch.device) -> Drafter:
    return LookupDrafter(limits, device)
