"""Arguments of ladders and caches: refused by type before anything is computed from them."""

from __future__ import annotations

from numbers import Integral, Real

from adaverify_contracts import GraphBackend, GraphError, GraphSupport, Limits


def is_count(value: object) -> bool:
    """Return whether ``value`` is an integer of Python or NumPy; a bool is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether ``value`` is a real number; a bool is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def require_limits(limits: object) -> None:
    """Require ``Limits``.

    Raises:
        GraphError: they are something else.
    """
    if not isinstance(limits, Limits):
        raise GraphError(
            "graphs are sized by what is no Limits",
            arrived=limits,
            allowed="Limits(max_requests, draft_tokens, max_model_len, page_size)",
            remedy="pass the Limits that the buffers are made for",
        )


def require_most(name: str, value: object) -> None:
    """Require an upper bound: None or an integer that is not negative.

    Raises:
        GraphError: it is something else; NaN would compare as no limit at all.
    """
    if value is not None and (not is_count(value) or value < 0):  # type: ignore[operator]
        raise GraphError(
            f"{name} is no upper bound",
            arrived=value,
            allowed="None or an int >= 0",
            remedy=f"pass None for no limit, 0 to capture nothing, as {name}",
        )


def require_cache_parts(backend: object, mode: object) -> None:
    """Require a graph backend and a level of support.

    Raises:
        GraphError: either is something else.
    """
    if not isinstance(backend, GraphBackend):
        raise GraphError(
            "the graph cache has no backend",
            arrived=backend,
            allowed="an object with estimate, capture and pool_bytes",
            remedy="pass what GraphBackendDescriptor.factory(device) returns, not the descriptor",
        )
    if not isinstance(mode, GraphSupport):
        raise GraphError(
            "the graph cache's mode is no level of support",
            arrived=mode,
            allowed=", ".join(level.name for level in GraphSupport),
            remedy="pass a GraphSupport, such as resolve_mode(...).support",
        )
