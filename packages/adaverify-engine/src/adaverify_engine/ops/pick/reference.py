"""Reference of the pick: what the host path's acceptance decides, row by row."""

from __future__ import annotations

import torch

from adaverify_engine.acceptance import inverse_cdf, target_law, top_two


def token_slots(token_request: torch.Tensor, row_slot: torch.Tensor) -> torch.Tensor:
    """Return int64 [T]: slot of each token's row, -1 for padding tokens and tokens of padding rows."""
    request = token_request.long()
    padded = torch.nn.functional.pad(row_slot.long(), (0, 1), value=-1)
    return padded[torch.where(request < 0, len(row_slot), request)]


def pick_reference(
    logits: torch.Tensor,
    token_request: torch.Tensor,
    token_offset: torch.Tensor,
    row_slot: torch.Tensor,
    length: torch.Tensor,
    temperature: torch.Tensor,
    top_p: torch.Tensor,
    noise: torch.Tensor,
    out_token: torch.Tensor,
    out_gap: torch.Tensor,
    out_finite: torch.Tensor,
) -> None:
    """Write the token that each of T logits rows decides; arguments as ``Pick`` documents them."""
    slot = token_slots(token_request, row_slot)
    real = torch.nonzero(slot >= 0).flatten()
    slot = slot[real]
    token, best, gap = top_two(logits[real])
    finite = torch.isfinite(best)
    drawn = torch.nonzero(finite & (temperature[slot] > 0)).flatten()
    if len(drawn):
        owner = slot[drawn]
        law = target_law(logits[real[drawn]], temperature[owner], top_p[owner])
        place = length[owner].long() + token_offset[real[drawn]].long()
        token[drawn] = inverse_cdf(law, noise[owner, place.clamp(max=noise.shape[1] - 1), 1])
    out_token.fill_(-1)
    out_token[real] = token.to(out_token.dtype)
    out_gap.zero_()
    out_gap[real] = gap
    out_finite.copy_(finite.all())
