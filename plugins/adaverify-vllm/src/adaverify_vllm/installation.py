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

# What was replaced: (owner, name) -> the original, in the order of replacement.
_replaced: dict[tuple[Any, str], Any] = {}


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
    replace(runner, seams.FACTORY, _factory(getattr(runner, seams.FACTORY)))
    return True


def uninstall() -> None:
    """Put every original back."""
    while _replaced:
        (owner, name), original = _replaced.popitem()
        setattr(owner, name, original)


def replace(owner: Any, name: str, ours: Any) -> None:
    """Replace an attribute of vLLM's and remember the original; a second time does nothing."""
    if (owner, name) not in _replaced:
        _replaced[owner, name] = getattr(owner, name)
        setattr(owner, name, ours)


def _factory(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a factory that asks vLLM's own first, so that whatever vLLM refuses it still refuses."""

    @functools.wraps(original)
    def factory(**arguments: Any) -> Any:
        theirs = original(**arguments)
        if theirs is None:
            return None
        try:
            from adaverify_vllm.activation import activate

            return activate(arguments)
        except Exception as error:  # noqa: BLE001 - vLLM's own manager still serves
            LOG.warning(
                "adaverify-vllm is not active, vLLM's own adaptive verification is: %s: %s; run `adaverify "
                "doctor --vllm`",
                type(error).__name__,
                error,
            )
            return theirs

    return factory
