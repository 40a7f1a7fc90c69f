"""The backend that captures nothing: it keeps the step and calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adaverify_contracts import CaptureError
from adaverify_contracts.describing import describe

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class EagerStep:
    """A kept step; ``replay`` calls it."""

    run: Callable[[], Any]

    def replay(self) -> Any:
        """Run the step on what the static buffers hold now."""
        return self.run()


class EagerBackend:
    """Keeps each step as a callable. Any device; holds no memory of its own."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = device

    def estimate(self, run: Callable[[], Any]) -> int:
        """Return 0: nothing is recorded."""
        return 0

    def capture(self, run: Callable[[], Any]) -> EagerStep:
        """Run the step once, so that compilation and errors happen now, and keep it.

        Raises:
            CaptureError: the step raised; the cause is named.
        """
        try:
            run()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise CaptureError(
                f"the step failed in its warm-up with {describe(error)}",
                remedy="run this size without a graph, or free memory and capture again",
            ) from error
        return EagerStep(run)

    def pool_bytes(self) -> int:
        """Return 0."""
        return 0
