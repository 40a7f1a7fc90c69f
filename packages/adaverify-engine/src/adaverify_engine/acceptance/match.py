"""Acceptance by equality: the target draws its own token at every position and a draft is accepted if equal.

With a greedy target this is greedy verification. With a deterministic drafter it *is* rejection sampling: the
draft's law is one-hot, so the draft x is accepted with probability p(x) and otherwise replaced from p without
x, which is what drawing y from p and comparing does (maths section 5.4, case 3). The token after a fully
accepted prefix is drawn from p as well, whether the prefix was trimmed or not (section 5.6). Since the noise
belongs to the output position, trimming does not even change which token comes out (section 5.4, case 4).
"""

from __future__ import annotations

import torch


def accept_equal(drawn: torch.Tensor, drafts: torch.Tensor, admitted: torch.Tensor) -> torch.Tensor:
    """Return int64 [S], accepted drafts of each sequence.

    Args:
        drawn: int64 [S, K + 1], the target's token at each position.
        drafts: int64 [S, K], -1 where undrafted (equal to nothing).
        admitted: int [S]; positions past it were not verified and count for nothing.
    """
    position = torch.arange(drafts.shape[1], device=drafts.device)
    equal = (drawn[:, : drafts.shape[1]] == drafts) & (position < admitted[:, None])
    return equal.long().cumprod(dim=1).sum(dim=1)
