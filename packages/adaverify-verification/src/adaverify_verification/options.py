"""How a manager behaves; plain values, read from no environment."""

from __future__ import annotations

import math
from dataclasses import dataclass

from adaverify_contracts import DescriptorError

MODES = ("none", "fixed", "adaptive")
LOSSLESS_RULES = ("downgrade", "refuse")


@dataclass(frozen=True, slots=True)
class ManagerOptions:
    """Options of one ``VerificationManager``.

    Attributes:
        mode: ``none`` verifies nothing, ``fixed`` everything, ``adaptive`` what pays for itself.
        margin: relative gain over full verification that trimming must promise, at least 0. The default is
            about twice the noise of a measured cost table.
        hysteresis: relative gain below which the executed tier stays what it was.
        warmup_steps: most steps with drafts that are verified fully while the signal is not ready. Afterwards
            its estimates are used as they are, so that labels that never come do not hold trimming off for
            ever.
        explore_share: share of the time that exploration may lose, 0 .. 0.5.
        online: refresh the cost model with measured step times.
        lossless: what happens to sampled steps under an unsafe signal and policy: ``downgrade`` verifies
            everything and counts it; ``refuse`` raises when the manager is built.
        mixed_tiers: True when batches that hold prefill chunks are padded to the tiers too. A captured decode
            step never holds a prefill chunk, so by default such a batch executes as it is.
    """

    mode: str = "adaptive"
    margin: float = 0.02
    hysteresis: float = 0.005
    warmup_steps: int = 32
    explore_share: float = 0.01
    online: bool = True
    lossless: str = "downgrade"
    mixed_tiers: bool = False

    def __post_init__(self) -> None:
        for name, words in (("mode", MODES), ("lossless", LOSSLESS_RULES)):
            if getattr(self, name) not in words:
                raise DescriptorError(
                    f"ManagerOptions.{name} is not an allowed word",
                    arrived=getattr(self, name),
                    allowed=", ".join(words),
                    remedy=f"choose one of the allowed words for {name}",
                )
        for name, highest in (("margin", 10.0), ("hysteresis", 1.0), ("explore_share", 0.5)):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and math.isfinite(value) and 0 <= value <= highest):
                raise DescriptorError(
                    f"ManagerOptions.{name} is out of range",
                    arrived=value,
                    allowed=f"a number in 0 .. {highest:g}",
                    remedy=f"choose {name} within the range",
                )
        if (
            not isinstance(self.warmup_steps, int)
            or isinstance(self.warmup_steps, bool)
            or self.warmup_steps < 0
        ):
            raise DescriptorError(
                "ManagerOptions.warmup_steps is out of range",
                arrived=self.warmup_steps,
                allowed="an int >= 0",
                remedy="choose 0 to trust the signal at once",
            )
