"""Whose line raised: the strategy's own, torch's on its behalf, or the kit's while it read a result."""

from __future__ import annotations

# Frames of these are never the strategy's; the kit's own callers count as theirs.
_OTHERS = ("torch", "numpy", "triton", "adaverify_testing.conformance", "adaverify_contracts")


def strategy_place(error: BaseException) -> str | None:
    """Return ``file:line in function`` of the last frame below the kit that is neither torch's nor the kit's.

    None when the kit itself raised: no line of a strategy ran in between.
    """
    place, inside, trace = None, False, error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.startswith("adaverify_testing.conformance"):
            inside = True
        elif inside and not module.startswith(_OTHERS):
            place = f"{code.co_filename}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    return place


def told(error: BaseException) -> str:
    """Return type and words of an error, with the strategy's line where there is one."""
    place = strategy_place(error)
    return f"{type(error).__name__}: {error}" + (f" ({place})" if place else "")
