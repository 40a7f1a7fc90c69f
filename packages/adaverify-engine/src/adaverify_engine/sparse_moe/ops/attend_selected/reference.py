"""Reference of the sparse attention in float32 torch, over static shapes."""

from __future__ import annotations

import torch


def attend_selected_reference(
    query: torch.Tensor,
    own: torch.Tensor,
    latents: torch.Tensor,
    picked: torch.Tensor | None,
    visible: torch.Tensor,
    token_request: torch.Tensor,
    block_table: torch.Tensor,
    *,
    latent: int,
    selected: int,
    page: int,
) -> torch.Tensor:
    """Return float32 [T, heads, latent]; arguments as ``AttendSelected.__call__`` documents them.

    ``picked`` is by token here: [T, selected].
    """
    tokens, _, key = query.shape
    request = token_request.long().clamp(min=0)
    order = torch.arange(selected, device=query.device).expand(tokens, selected)
    entry = order if picked is None else torch.where(visible[:, None] > selected, picked, order)
    seen = (order < visible[:, None]) & (entry < visible[:, None])
    entry = torch.where(seen, entry, 0)
    cell = block_table.long()[request].gather(1, entry // page) * page + entry % page
    entries = latents[cell].float()
    scale = key**-0.5
    scores = torch.einsum("thd,tsd->ths", query.float(), entries) * scale
    scores = scores.masked_fill(~seen[:, None], float("-inf"))
    itself = torch.einsum("thd,td->th", query.float(), own.float()) * scale
    weights = torch.cat((itself[..., None], scores), dim=-1).softmax(-1)
    out = torch.einsum("ths,tsv->thv", weights[..., 1:], entries[..., :latent])
    out += weights[..., :1] * own[:, None, :latent].float()
    return torch.where(token_request[:, None, None] >= 0, out, 0.0)
