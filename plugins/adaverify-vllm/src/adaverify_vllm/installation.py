"""Put the bridge into vLLM's seams, and take it out again."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any
from weakref import WeakSet

from adaverify_vllm import seams
from adaverify_vllm.plugin import give_up, switched_off, unsupported

LOG = logging.getLogger("vllm.adaverify")

# What was replaced: (owner, name) -> the original and ours, in the order of replacement.
_replaced: dict[tuple[Any, str], tuple[Any, Any]] = {}
# Every wrapper of the factory that is ours, in force or not.
_made: WeakSet[Callable[..., Any]] = WeakSet()


def install(runner: ModuleType | None = None) -> bool:
    """Wrap the factory of vLLM's model runner; return whether ours is in place. Idempotent; never raises.

    False where the bridge is switched off, in silence, and, with one line logged, where this vLLM is not
    supported, a seam differs or anything of ours fails. The row builder is wrapped later, by the factory,
    when it makes a manager of ours.

    Args:
        runner: the model runner's module; imported when None.
    """
    try:
        if switched_off():
            return False
        if (why := unsupported()) is not None:
            LOG.warning("%s", why)
            return False
        return put_in(import_module(seams.RUNNER) if runner is None else runner)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whoever calls this starts vLLM
        give_up(error)
        return False


def put_in(runner: ModuleType) -> bool:
    """Wrap the factory of this runner where every seam is as expected; return whether ours is in place."""
    if (runner, seams.FACTORY) in _replaced:
        return True
    if wrong := seams.differences(seams.look(seams.SEAMS)):
        LOG.warning("adaverify-vllm changes nothing: %s: %s; %s", *_blame(runner, wrong))
        return False
    factory = getattr(runner, seams.FACTORY)
    if (ours := _ours_within(factory)) is not None:
        # Left behind under another plugin's wrapper: it acts again, and no second one comes over both.
        _replaced[runner, seams.FACTORY] = (ours.__wrapped__, ours)
    else:
        replace(runner, seams.FACTORY, _factory(factory, runner))
    return True


def _blame(runner: ModuleType, wrong: Sequence[str]) -> tuple[str, str, str]:
    """Return who differs from what the bridge expects, in what, and what to do."""
    at = f"{seams.RUNNER}.{seams.FACTORY} "
    module = getattr(getattr(runner, seams.FACTORY, None), "__module__", None)
    if module not in (None, seams.ADAPTIVE) and any(line.startswith(at) for line in wrong):
        return (
            f"another plugin, {module}, has wrapped vLLM's factory without functools.wraps",
            "; ".join(wrong),
            "have it use functools.wraps, leave it out with VLLM_PLUGINS, or set ADAVERIFY_VLLM=off",
        )
    return (
        f"this vLLM differs in {len(wrong)} place(s)",
        "; ".join(wrong),
        "install the adaverify-vllm made for it, or set ADAVERIFY_VLLM=off",
    )


def _ours_within(factory: Any) -> Any:
    """Return the wrapper of ours within a chain of wrappers, None without one."""
    while factory is not None and factory not in _made:
        factory = getattr(factory, "__wrapped__", None)
    return factory


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
        if _replaced.get((runner, seams.FACTORY), (None, None))[1] is not factory:
            # Taken back, or one of ours is in force elsewhere in the chain: one manager is made.
            return theirs
        if theirs is None:
            restore(runner, seams.FACTORY)
            return None
        try:
            if switched_off():
                return theirs
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

    _made.add(factory)
    return factory
