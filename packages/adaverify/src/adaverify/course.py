"""The progress of a whole command: one bar over all its stages, which never runs backwards."""

from __future__ import annotations

from collections.abc import Callable

from rich.progress import Progress

LOADED = 0.1
"""Share of the bar that stands for loading the model, where a command loads one."""

Advance = Callable[[int, int | None], None]


class Course:
    """One bar; every stage fills the part of it that the stage before left, up to a share of its own.

    Args:
        display: shows the bar.
    """

    def __init__(self, display: Progress) -> None:
        self._display = display
        self._task = display.add_task("", total=1.0, note="")
        self._share = 0.0
        self._until = 0.0
        self._done = 0

    @property
    def share(self) -> float:
        """How much of the bar is filled, 0 .. 1; never less than it was."""
        return self._share

    def note(self, words: object) -> None:
        """Change what is shown beside the bar."""
        self._display.update(self._task, note=words)

    def stop(self) -> None:
        """Take the bar away, so that what is said next stands alone."""
        self._display.stop()

    def stage(self, words: str, until: float = 1.0, note: object = "") -> Advance:
        """Begin a stage and return what reports its progress, ``advance(done, total)``.

        A total that grows on the way, as where something is measured again, slows the bar: each report moves
        it by its part of what is left. A total of None (unknown) leaves it where it is.

        Args:
            words: what goes on.
            until: share of the whole bar at which the stage ends, 0 .. 1.
            note: shown beside the bar; anything with a text.
        """
        # Whatever the stage before did not report is done as well.
        self._share = max(self._share, self._until)
        self._until = until
        self._done = 0
        self._display.update(self._task, description=words, completed=self._share, note=note)

        def advance(done: int, total: int | None) -> None:
            if total is not None and self._done < done <= total:
                left = max(until - self._share, 0.0)
                self._share += left * (done - self._done) / (total - self._done)
                self._done = done
            self._display.update(self._task, completed=self._share)

        return advance
