"""Whether an engine with captured steps decodes next or reads prompts: a step does one of the two."""

from __future__ import annotations

PROMPT_SHARE = 0.25
"""Part of the time that prompts may take while nearly all slots decode."""
IDLE_SHARE = 0.125
"""Part of the taken slots that may wait for their prompts for that reason."""
MOST_STEPS = 32
"""Decode steps that a prompt waits for that reason, whatever the clock says: one step for prompts that took
seconds, as the first does, which compiles, must not hold up the next for thrice as long."""


class Turns:
    """Takes turns between captured decode steps and steps that read prompts.

    A step that does both cannot be a replay: each of its kernels is launched by the host, for the decode
    requests as well. So prompts get steps of their own. While few slots wait for their prompts those steps
    are spaced to take at most ``PROMPT_SHARE`` of the time, by the clock; a share ``IDLE_SHARE`` of the slots
    waits no longer than the next decode step. Between two steps for prompts there is always one that decodes.
    """

    def __init__(self) -> None:
        self._read, self._decoded = 0.0, 0.0
        # Nothing was read before, so nothing has to be waited for.
        self._steps = MOST_STEPS

    def prompts_next(self, decoding: int, waiting: int) -> bool:
        """Return whether prompts are read next.

        Args:
            decoding: requests that can decode, at least one.
            waiting: requests whose prompts are not read to the end.
        """
        if not self._steps:
            return False
        spaced = self._steps >= MOST_STEPS or self._decoded >= self._read * (1 / PROMPT_SHARE - 1)
        return spaced or waiting >= IDLE_SHARE * (decoding + waiting)

    def ran(self, seconds: float, *, prompts: bool) -> None:
        """Count a step that took ``seconds``, 0 where that is not known, and read prompts or decoded."""
        if prompts:
            self._read, self._decoded, self._steps = seconds, 0.0, 0
        else:
            self._decoded += seconds
            self._steps += 1
