"""What an engine is made of: checked before anything is built on it."""

from __future__ import annotations

from adaverify_contracts import BlockDrafter, Drafter, EngineError, LoadedModel
from adaverify_engine.options import EngineOptions


def require_kind(name: str, value: object, kind: type) -> None:
    """Refuse a value of another type.

    Raises:
        EngineError: names the argument, what arrived and what was expected.
    """
    if not isinstance(value, kind):
        raise EngineError(
            f"{name} is of another type",
            arrived=type(value).__name__,
            allowed=kind.__name__,
            remedy=f"pass a {kind.__name__}",
        )


def require_parts(model: object, verifier: object, drafter: object, options: object) -> None:
    """Refuse parts that no engine can be made of.

    Raises:
        EngineError: names the part, what arrived and what was expected.
    """
    from adaverify_runtime import Verifier

    require_kind("model", model, LoadedModel)
    require_kind("verifier", verifier, Verifier)
    require_kind("options", options, EngineOptions)
    if not isinstance(drafter, Drafter | BlockDrafter):
        require_kind("drafter", drafter, Drafter)
