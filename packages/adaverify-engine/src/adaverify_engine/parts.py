"""What an engine is made of: checked before anything is built on it."""

from __future__ import annotations

from adaverify_contracts import (
    BlockDrafter,
    Drafter,
    EngineError,
    LoadedModel,
    ModelGeometry,
    TargetModel,
    Tokenizer,
)
from adaverify_contracts.describing import kind_of
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
    lacks = lacking_in(model)
    if lacks:
        raise EngineError(
            "the model is no target with a tokenizer",
            arrived=lacks,
            allowed="a LoadedModel with a TargetModel and a Tokenizer",
            remedy="implement what is lacking",
        )
    require_kind("verifier", verifier, Verifier)
    require_kind("options", options, EngineOptions)
    if not isinstance(drafter, Drafter | BlockDrafter):
        require_kind("drafter", drafter, Drafter)


def lacking_in(loaded: object) -> str:
    """Return what ``loaded`` lacks to be a model that can run, in words; an empty string where it is one."""
    if not isinstance(loaded, LoadedModel):
        return f"{kind_of(loaded)}, which is no LoadedModel"
    for field, kind in (("model", TargetModel), ("tokenizer", Tokenizer)):
        made = getattr(loaded, field)
        gaps = [name for name in vars(kind) if not name.startswith("_") and not hasattr(made, name)]
        if gaps or isinstance(made, type):
            return f"{field}: {kind_of(made)}, which lacks {', '.join(gaps) or 'an instance'}"
    geometry = loaded.model.geometry
    if not isinstance(geometry, ModelGeometry):
        return f"model.geometry: {kind_of(geometry)}, which is no ModelGeometry"
    return ""
