"""A benchmark that has results, and could not finish all the same."""

from __future__ import annotations

from adaverify_contracts import AdaverifyError, BenchmarkResult


class UnfinishedError(AdaverifyError):
    """Everything was measured, and something about it failed: ``result`` is to be shown before that is said.

    Args:
        cause: what failed.
        result: what was measured.
    """

    def __init__(self, cause: AdaverifyError, result: BenchmarkResult) -> None:
        self.cause, self.result = cause, result
        super().__init__(cause.problem, arrived=cause.arrived, allowed=cause.allowed, remedy=cause.remedy)
