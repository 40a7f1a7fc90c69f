"""Put the bridge into vLLM's seams, and take it out again."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from adaverify_vllm import seams

LOG = logging.getLogger("vllm.adaverify")

# What was replaced: (owner, name) -> the original and ours, in the order of replacement.
_replaced: dict[tuple[Any, str], tuple[Any, Any]] = {}


def install(runner: ModuleType | None = None) -> bool:
    """Wrap the factory of vLLM's model runner; return whether that was done. Idempotent.

    Nothing is replaced and one line is logged when any seam differs. The row builder is wrapped later, by
    the factory, when it makes a manager of ours.

    Args:
        runner: the model runner's module; imported when None.
    """
    runner = import_module(seams.RUNNER) if runner is None else runner
    if (runner, seams.FACTORY) in _replaced:
        return True
    if wrong := seams.differences(seams.look(seams.SEAMS)):
        LOG.warning(
            "adaverify-vllm changes nothing: this vLLM differs in %d place(s): %s; install the "
            "adaverify-vllm made for it, or set ADAVERIFY_VLLM=off",
            len(wrong),
            "; ".join(wrong),
        )
        return False
    replace(runner, seams.FACTORY, _factory(getattr(runner, seams.FACTORY), runner))
    return True


def uninstall() -> None:
    """Put every original back."""
    for owner, name in reversed(tuple(_replaced)):
        restore(owner, name)


def restore(owner: Any, name: str) -> None:
    """Put one original back; nothing happens where none was replaced.

    What somebody else has put over ours stays: taking it out would take theirs out.
    """
    if (owner, name) in _replaced:
        original, ours = _replaced.pop((owner, name))
        if getattr(owner, name) is ours:
            setattr(owner, name, original)


def replace(owner: Any, name: str, ours: Any) -> None:
    """Replace an attribute of vLLM's and remember the original; a second time does nothing."""
    if (owner, name) not in _replaced:
        _replaced[owner, name] = (getattr(owner, name), ours)
        setattr(owner, name, ours)


def _factory(original: Callable[..., Any], runner: ModuleType) -> Callable[..., Any]:
    """Return a factory that asks vLLM's own first, so that whatever vLLM refuses it still refuses.

    Where vLLM makes no manager the original is put back: a worker imports the runner before any configuration
    is in force, so only this call tells that nothing was asked for.
    """

    @functools.wraps(original)
    def factory(**arguments: Any) -> Any:
        theirs = original(**arguments)
        if theirs is None:
            restore(runner, seams.FACTORY)
        if (runner, seams.FACTORY) not in _replaced:
            return theirs
        try:
            from adaverify_vllm.activation import activate

            return activate(arguments)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - vLLM's own manager still serves
            LOG.warning(
                "adaverify-vllm is not active, vLLM's own adaptive verification is: %s: %s; run `adaverify "
                "doctor --vllm`",
                type(error).__name__,
                error,
            )
            return theirs

    return factory
