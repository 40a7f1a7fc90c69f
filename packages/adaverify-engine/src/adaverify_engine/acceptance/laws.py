"""The target's law at a position: temperature, then nucleus."""

from __future__ import annotations

import torch

from adaverify_engine.acceptance.blocks import top_two

_PREFIX = 512
"""Largest logits sorted first; a nucleus beyond them is rare and pays for a whole sort (3 ms a row)."""


def target_law(logits: torch.Tensor, temperature: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Return float32 [N, V] probabilities; rows of temperature 0 are one-hot at the argmax.

    Args:
        logits: float32 [N, V].
        temperature: float32 [N], >= 0.
        top_p: float32 [N] in (0, 1]; the smallest set of most likely tokens whose mass reaches it is kept,
            the token that reaches it included. Of several tokens as likely as that one, those of smallest id
            are kept, as many as the mass needs.
    """
    greedy = temperature == 0
    law = torch.softmax(logits / torch.where(greedy, 1.0, temperature)[:, None], dim=1)
    narrow = torch.nonzero((top_p < 1) & ~greedy).flatten()
    if len(narrow):
        law[narrow] = _nucleus(law[narrow], top_p[narrow])
    if bool(greedy.any()):
        best, _, _ = top_two(logits[greedy])
        law[greedy] = torch.nn.functional.one_hot(best, law.shape[1]).to(law.dtype)
    return law


def _nucleus(law: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    for width in (min(_PREFIX, law.shape[1]), law.shape[1]):
        values = law.topk(width, dim=1).values
        mass = values.double().cumsum(dim=1)
        if bool((mass[:, -1] >= top_p).all()) or width == law.shape[1]:
            break
    count = (mass - values < top_p[:, None]).sum(dim=1, keepdim=True)
    edge = values.gather(1, count - 1)
    # Which of equal values topk returns first differs by device and size, and logits from bfloat16 tie often.
    ties = law == edge
    room = count - (law > edge).sum(dim=1, keepdim=True)
    kept = (law > edge) | (ties & (ties.cumsum(dim=1) <= room))
    out = torch.where(kept, law, 0.0)
    return out / out.sum(dim=1, keepdim=True)
