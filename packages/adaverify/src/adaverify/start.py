"""Where the process begins: Ctrl-C has its answer before anything heavy is imported."""

from __future__ import annotations

import os
import signal
from types import FrameType

# As in the console module, which imports what this one is there to precede.
_INTERRUPTED = 130


def main() -> None:
    """Run the command line, answering Ctrl-C from here on with one line and the code of an interruption.

    Importing takes seconds, in which an exception would show its traceback, or be turned into another one by
    a library that guards its own imports. Until a command runs there is nothing to put in order, so the
    process ends where it is. ``Interruptible`` gives commands the exception that they clean up by.
    """
    # Whoever started this process with interrupts ignored, as shells do in the background, keeps them so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
    from adaverify.cli import main as run_command_line

    run_command_line()


def leave(_number: int, _frame: FrameType | None) -> None:
    """Say that the process was interrupted and end it at once; a signal handler."""
    try:
        os.write(2, b"interrupted\n")
    finally:
        os._exit(_INTERRUPTED)


def leave_silently(_number: int, _frame: FrameType | None) -> None:
    """End the process at once, where the line has been said; a signal handler."""
    os._exit(_INTERRUPTED)


class Interruptible:
    """Let Ctrl-C raise ``KeyboardInterrupt`` inside, where this module's own handler is in force."""

    def __enter__(self) -> None:
        self._ours = signal.getsignal(signal.SIGINT) is leave
        if self._ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._ours:
            # Ending takes a moment, too, and one line is enough.
            said = kind is not None and issubclass(kind, KeyboardInterrupt)
            signal.signal(signal.SIGINT, leave_silently if said else leave)
