"""What a verifier is made of, and what a replayed step hands out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from adaverify_contracts import Capability, DecodeRowBuilder, GraphKey, Limits
from adaverify_runtime.capture import GraphedSteps
from adaverify_runtime.observers import ObserverQueue
from adaverify_runtime.report import StartupReport
from adaverify_runtime.row_choice import RowChoice
from adaverify_runtime.staging import StaticInputs
from adaverify_verification import Assignment, VerificationManager


@dataclass(frozen=True, slots=True)
class Parts:
    """What ``assemble`` puts together; ``ragged`` and ``uniform`` are builders, either may be None.

    ``rows`` chooses between ``ragged`` and the ``alternatives``; None where there is nothing to choose.
    ``unproven`` are kernels that were probed on this device and did not give the known answer.
    """

    limits: Limits
    device: torch.device
    capability: Capability
    manager: VerificationManager
    ragged: DecodeRowBuilder | None
    uniform: DecodeRowBuilder | None
    inputs: StaticInputs
    graphs: GraphedSteps | None
    observers: ObserverQueue
    report: StartupReport
    alternatives: tuple[DecodeRowBuilder, ...] = ()
    rows: RowChoice | None = None
    unproven: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Replayed:
    """A step that ran from a graph: its key, its assignment, and what the captured step returned."""

    key: GraphKey
    assignment: Assignment
    result: Any
