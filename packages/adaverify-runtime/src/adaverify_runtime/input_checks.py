"""What ``stage`` and ``replay`` take: attributes always, values only where they already are on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from adaverify_contracts import LayoutError, Limits, Plan, PlanError, ceil_div

_LARGEST_PAGE = 2**31 - 1


def is_int(value: object) -> bool:
    """Return whether ``value`` is an integer of Python or NumPy; a bool is none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def require_plan(plan: object) -> None:
    """Require a ``Plan``.

    Raises:
        PlanError: it is something else.
    """
    if not isinstance(plan, Plan):
        raise PlanError(
            "what is to be executed is no plan",
            arrived=type(plan).__name__,
            allowed="a Plan",
            remedy="pass what Verifier.plan returned for this step",
        )


def require_padded_tokens(padded_tokens: object, tokens: int, limits: Limits) -> None:
    """Require a number of query tokens that holds the planned ones and that the static buffers hold.

    Raises:
        LayoutError: it is something else.
    """
    if not is_int(padded_tokens) or not tokens <= padded_tokens <= limits.max_tokens:  # type: ignore[operator]
        raise LayoutError(
            "padded_tokens does not hold the step or exceeds the static buffers",
            arrived=padded_tokens,
            allowed=f"an int in {tokens} .. {limits.max_tokens}, planned tokens and Limits.max_tokens",
            remedy="run the step at a tier that holds it",
        )


def require_per_request(name: str, values: Any, device: torch.device) -> None:
    """Require int32 [R] in NumPy, on the CPU or on the run device.

    Raises:
        LayoutError: another type, dtype, shape or device.
    """
    tensor = isinstance(values, torch.Tensor)
    if not tensor and not isinstance(values, np.ndarray):
        raise LayoutError(
            f"{name} is no array",
            arrived=type(values).__name__,
            allowed="a NumPy array or a torch tensor of int32",
            remedy=f"keep {name} in an int32 array from the start",
        )
    if str(values.dtype) not in ("int32", "torch.int32"):
        raise LayoutError(
            f"{name} has the wrong dtype",
            arrived=str(values.dtype),
            allowed="int32",
            remedy="cast where the numbers are made: a cast here would wrap large ones in silence",
        )
    if values.ndim != 1:
        raise LayoutError(
            f"{name} has the wrong number of dimensions",
            arrived=tuple(values.shape),
            allowed="1 dimension, one entry a request",
            remedy=f"pass {name} as documented",
        )
    if tensor:
        _require_reachable(name, values, device)


def require_table(table: Any, requests: int, limits: Limits, device: torch.device) -> None:
    """Require page ids [at least ``requests``, table_width] as int32 or int64, on the CPU or the run device.

    Raises:
        LayoutError: another type, dtype, shape or device.
    """
    if not isinstance(table, torch.Tensor):
        raise LayoutError(
            "the block table is no tensor",
            arrived=type(table).__name__,
            allowed="a torch tensor of int32",
            remedy="wrap a NumPy table once with torch.from_numpy; it shares the memory",
        )
    if table.dtype not in (torch.int32, torch.int64):
        raise LayoutError(
            "the block table has the wrong dtype",
            arrived=str(table.dtype),
            allowed="torch.int32, or torch.int64 to be copied",
            remedy="keep page ids as int32 from the start",
        )
    if table.ndim != 2 or len(table) < requests or table.shape[1] != limits.table_width:
        raise LayoutError(
            "the block table does not fit the static one",
            arrived=tuple(table.shape),
            allowed=f"at least {requests} rows of {limits.table_width} page ids",
            remedy="keep one table of Limits.table_width columns for the life of the engine",
        )
    _require_reachable("the block table", table, device)


def require_drafts(plan: Plan, scheduled: Any, limits: Limits) -> None:
    """Require that a host schedule holds 0 .. K drafts a request and what the plan verifies.

    Raises:
        LayoutError: a count is out of range; -1 would make a request padding.
        PlanError: fewer drafts than the plan verifies.
    """
    values = on_host(scheduled)
    if values is None or not len(values):
        return
    fewest, most = int(values.min()), int(values.max())
    if fewest < 0 or most > limits.draft_tokens:
        raise LayoutError(
            "a scheduled draft count is out of range",
            arrived={"fewest": fewest, "most": most},
            allowed=f"0 .. {limits.draft_tokens} for each request",
            remedy="stage the schedule that was planned; padding requests are added here",
        )
    total = int(values.sum())
    if total < plan.budget:
        problem = f"step {plan.step} schedules fewer drafts than its plan verifies"
        allowed = f"at least {plan.budget} scheduled drafts"
        remedy = "stage the schedule that was planned"
        raise PlanError(problem, arrived=total, allowed=allowed, remedy=remedy)


def require_room(kv_lens: Any, limits: Limits) -> None:
    """Require that KV lengths on the host leave room for the step's own tokens.

    Raises:
        LayoutError: one is negative or too long.
    """
    values = on_host(kv_lens)
    if values is None or not len(values):
        return
    shortest, longest = int(values.min()), int(values.max())
    if shortest < 0 or longest >= limits.max_kv_len:
        raise LayoutError(
            "a KV length before the step is out of range",
            arrived={"shortest": shortest, "longest": longest},
            allowed=f"0 .. {limits.max_kv_len - 1}: the step's own tokens must fit the block table",
            remedy="end requests at max_model_len, or assemble with a larger one",
        )


def require_pages(table: torch.Tensor, scheduled: Any, kv_lens: Any, limits: Limits) -> None:
    """Require that a host table names a page for every token the step reads.

    Columns behind a request's last page may hold anything; where the lengths are on the device, and so are
    not known here, every column counts.

    Raises:
        LayoutError: a page id is negative or does not fit int32.
    """
    pages = on_host(table)
    lens, drafts = on_host(kv_lens), on_host(scheduled)
    requests = len(kv_lens)
    if pages is None or not requests:
        return
    width, tokens = limits.table_width, None
    if lens is not None:
        tokens = lens + 1 if drafts is None else lens + drafts + 1
        width = min(width, ceil_div(int(tokens.max()) // limits.compress_ratio, limits.page_size))
    pages = pages[:requests, :width]
    if not width or (int(pages.min()) >= 0 and int(pages.max()) <= _LARGEST_PAGE):
        return
    wrong = (pages < 0) | (pages > _LARGEST_PAGE)
    if tokens is not None:
        # What a rank of a context-parallel group reads for certain: its share of the whole turns.
        turn = limits.context_parallel_size * limits.context_parallel_interleave
        local = tokens // limits.compress_ratio // turn * limits.context_parallel_interleave
        own = local if turn > 1 else tokens // limits.compress_ratio
        wrong &= np.arange(width) < (-(-own // limits.page_size))[:, None]
    if not wrong.any():
        return
    request, column = (int(index) for index in np.argwhere(wrong)[0])
    raise LayoutError(
        "a page id of the block table is out of range",
        arrived={"request": request, "column": column, "page": int(pages[request, column])},
        allowed=f"0 .. {_LARGEST_PAGE} in every column that the step reads",
        remedy="allocate the pages of a step, its drafts included, before staging it",
    )


def on_host(values: Any) -> np.ndarray | None:
    """Return values that are on the host as NumPy on the same memory, None for those that are not."""
    if isinstance(values, np.ndarray):
        return values
    return values.numpy() if values.device.type == "cpu" else None


def _require_reachable(name: str, tensor: torch.Tensor, device: torch.device) -> None:
    if tensor.device.type != "cpu" and tensor.device != device:
        raise LayoutError(
            f"{name} is on a device that this step cannot read",
            arrived=str(tensor.device),
            allowed=f"cpu or {device}" if device.type != "cpu" else "cpu",
            remedy="keep the inputs of a step on the run device, or on the host",
        )
