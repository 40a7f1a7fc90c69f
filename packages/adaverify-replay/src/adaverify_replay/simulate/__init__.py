"""Ways to choose budgets, compared on acceptance records and a cost table, without a model."""

from adaverify_replay.simulate.arms import Planning, arm_names
from adaverify_replay.simulate.cursors import Cursors
from adaverify_replay.simulate.oracle import best_admitted, spread
from adaverify_replay.simulate.result import ArmResult
from adaverify_replay.simulate.run import Scene, simulate

__all__ = [
    "ArmResult",
    "Cursors",
    "Planning",
    "Scene",
    "arm_names",
    "best_admitted",
    "simulate",
    "spread",
]
