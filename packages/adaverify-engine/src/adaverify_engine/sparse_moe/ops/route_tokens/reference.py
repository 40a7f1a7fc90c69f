"""Reference of routing and dispatch, in plain torch over static shapes."""

from __future__ import annotations

import torch


def route_reference(
    logits: torch.Tensor, token_request: torch.Tensor, *, active: int, local: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return experts int32 [T, active], -1 where elsewhere or padding, and weights float32 [T, active].

    The ``active`` largest logits win, of equals the lowest expert; weights are their softmax.
    """
    values, order = torch.sort(logits.float(), dim=1, descending=True, stable=True)
    values, order = values[:, :active], order[:, :active]
    here = (order < local) & (token_request[:, None] >= 0)
    return torch.where(here, order, -1).int(), values.softmax(-1)


def dispatch_reference(
    hidden: torch.Tensor, experts: torch.Tensor, *, local: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rows [T x active, hidden], ends int32 [local] and places int32 [T, active].

    Rows of expert e end at ``ends[e]``; a token's row for its j-th expert is ``places[t, j]``, -1 where the
    expert is elsewhere. Rows past the last end are zeros.
    """
    tokens, active = experts.shape
    flat = torch.where(experts >= 0, experts, local).reshape(-1).long()
    ends = (flat[:, None] == torch.arange(local, device=flat.device)).sum(0).cumsum(0).int()
    order = torch.argsort(flat, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    rows = hidden[order // active]
    inside = torch.arange(len(rows), device=rows.device) < (ends[-1] if local else 0)
    places = torch.where(flat < local, place, -1).int().view(tokens, active)
    return torch.where(inside[:, None], rows, 0), ends, places
