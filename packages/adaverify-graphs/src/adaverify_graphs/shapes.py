"""From a batch to the key it looks a graph up with, and from a key to lengths it can be captured with."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from adaverify_contracts import GraphError, GraphKey, LayoutError, Limits
from adaverify_graphs._arguments import is_count

if TYPE_CHECKING:
    import numpy as np


def decode_flags(
    computed_tokens: Sequence[int] | np.ndarray, prompt_tokens: Sequence[int] | np.ndarray
) -> list[bool]:
    """Return which requests decode: those whose whole prompt is computed, whatever this step's length is.

    Args:
        computed_tokens: host [R]; tokens of each request whose KV exists before this step.
        prompt_tokens: host [R]; prompt length of each request.

    A prompt chunk of K + 1 tokens looks like a full decode and is prefill all the same.

    Raises:
        LayoutError: the arguments disagree, or are no integers.
    """
    _same_length("computed_tokens", computed_tokens, "prompt_tokens", prompt_tokens)
    done, prompts = _counts("computed_tokens", computed_tokens), _counts("prompt_tokens", prompt_tokens)
    return [have >= prompt for have, prompt in zip(done, prompts, strict=True)]


def batch_key(
    query_lens: Sequence[int] | np.ndarray,
    is_decode: Sequence[bool] | np.ndarray,
    table_width: int,
    *,
    max_query_len: int,
) -> GraphKey | None:
    """Return the key of a batch, or None when it holds a prefill chunk and must not enter a decode graph.

    Args:
        query_lens: host [R]; only their sum counts, so a host split that differs from the device's is fine.
        is_decode: host [R]; from the requests' state (``decode_flags``), never from their lengths.
        table_width: columns of the block table in use.
        max_query_len: upper bound of any *device* length: K + 1 for a trimmed batch.

    Raises:
        LayoutError: the arguments disagree, or a length is no integer, negative or above ``max_query_len``.
        GraphError: ``table_width`` or ``max_query_len`` is no count.
    """
    _same_length("query_lens", query_lens, "is_decode", is_decode)
    if not all(bool(flag) for flag in is_decode):
        return None
    lengths = _counts("query_lens", query_lens)
    if lengths and not (min(lengths) >= 0 and max(lengths) <= max_query_len):
        raise LayoutError(
            "a decode request's query length is outside the bound of its batch",
            arrived=(min(lengths), max(lengths)),
            allowed=f"0 .. {max_query_len}",
            remedy="pass K + 1 of the K in force as max_query_len",
        )
    return GraphKey(sum(lengths), len(lengths), max_query_len, table_width)


def capture_query_lens(tokens: int, requests: int, draft_tokens: int) -> tuple[int, ...]:
    """Return query lengths to capture with: each 1 .. K + 1, summing to ``tokens``, as even as possible.

    Args:
        tokens: query tokens of the graph.
        requests: request slots of the graph; none of them stays empty.
        draft_tokens: K.

    Raises:
        GraphError: no such lengths exist.
    """
    longest = draft_tokens + 1
    if requests < 0 or not requests <= tokens <= requests * longest:
        raise GraphError(
            f"no decode lengths of 1 .. {longest} over {requests} requests sum to {tokens} tokens",
            arrived={"tokens": tokens, "requests": requests, "draft_tokens": draft_tokens},
            allowed=f"{requests} <= tokens <= {requests * longest}",
            remedy="capture with fewer requests, or drop this size from the ladder",
        )
    if requests == 0:
        return ()
    each, longer = divmod(tokens, requests)
    return (each + 1,) * longer + (each,) * (requests - longer)


def graph_keys(tiers: Iterable[int], limits: Limits) -> tuple[GraphKey, ...]:
    """Return the key of each tier: as many requests as its tokens can hold, any decode lengths up to K + 1.

    Raises:
        GraphError: a tier is below 1 or above ``limits.max_tokens``.
    """
    keys = []
    for tier in tiers:
        if not is_count(tier) or not 1 <= tier <= limits.max_tokens:
            raise GraphError(
                "a tier is no size of a decode batch",
                arrived=tier,
                allowed=f"1 .. {limits.max_tokens} (max_requests x (K + 1))",
                remedy="choose tiers with choose_ladder",
            )
        requests = min(tier, limits.max_requests)
        keys.append(GraphKey(tier, requests, limits.max_query_len, limits.table_width))
    return tuple(keys)


def check_key(key: GraphKey, limits: Limits) -> None:
    """Require a key that fits the buffers made for ``limits`` and has lengths to capture with.

    Raises:
        GraphError: the key is larger than the limits, of another table width, or no lengths give its tokens.
    """
    highest = {
        "tokens": limits.max_tokens,
        "requests": limits.max_requests,
        "max_query_len": limits.max_query_len,
    }
    for name, bound in highest.items():
        if not 1 <= getattr(key, name) <= bound:
            raise GraphError(
                f"a graph's {name} does not fit the buffers",
                arrived=getattr(key, name),
                allowed=f"1 .. {bound}",
                remedy="size the limits for the largest padded batch, or drop this graph",
            )
    if key.table_width != limits.table_width:
        raise GraphError(
            "a graph's table width is not the buffers'",
            arrived=key.table_width,
            allowed=str(limits.table_width),
            remedy="use limits.table_width: the width is fixed for the life of the buffers",
        )
    capture_query_lens(key.tokens, key.requests, key.max_query_len - 1)


def _counts(name: str, values: Iterable[object]) -> list[int]:
    """Return host integers as ints; NaN, floats and words are none."""
    listed = list(values)
    try:
        return [operator.index(value) for value in listed]  # type: ignore[arg-type]
    except TypeError as error:
        raise LayoutError(
            f"{name} holds what is no integer",
            arrived=listed,
            allowed="one int a request",
            remedy=f"count {name} in integers on the host",
        ) from error


def _same_length(first: str, left: Sequence[int] | np.ndarray, second: str, right: object) -> None:
    for name, values in ((first, left), (second, right)):
        if isinstance(values, str) or not hasattr(values, "__len__") or not hasattr(values, "__iter__"):
            raise LayoutError(
                f"{name} is no sequence",
                arrived=values,
                allowed="a sequence or a NumPy array, one entry a request",
                remedy=f"pass {name} for each request of the batch",
            )
    if len(left) != len(right):  # type: ignore[arg-type]
        raise LayoutError(
            f"{first} and {second} disagree about the number of requests",
            arrived=(len(left), len(right)),  # type: ignore[arg-type]
            allowed="one entry a request in each",
            remedy="build both from one list of requests",
        )
