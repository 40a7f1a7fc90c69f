"""From block states to draft tokens and confidences, one position after the other."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from adaverify_smollm2.drafter.config import REGIMES, DrafterConfig


class HeadInputs(NamedTuple):
    """What one pass over the block prepares for the sequential head.

    Attributes:
        base: [..., K, draft vocabulary] float32, the logits without the previous token's say.
        mix: [..., K, table], the block's share of the mixing layer.
        doubt: [..., K, regimes] float32, the block's share of the confidence logits.
    """

    base: torch.Tensor
    mix: torch.Tensor
    doubt: torch.Tensor


class MarkovHead(nn.Module):
    """First-order head: logits_k = U h_k + W2 m(h_k, x_{k-1}), and a confidence logit that never reads x_k.

    With e = table[x_{k-1}] and n = silu(G h_k + C e), m = A e + B n: a low-rank bias by the previous token,
    as in a plain first-order head, plus one that depends on the context. Only C, A, B and W2 run one position
    after another; all else is one product for the whole block.

    The confidence reads h_k, e, n and the draft law's largest probability. All four are functions of the
    prefix, so what it has seen is ``PREFIX``. It has one output per regime; the label of each is
    1 - TV(draft law, target law) for the laws that really meet. Drafts are greedy, so the draft law is the
    point mass at x_k: for a sampled target 1 - TV = p_t(x_k), for a greedy one it is 1 where x_k is the
    target's likeliest token and 0 elsewhere.
    """

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        width, table, rank, drafts = config.hidden, config.table, config.rank, config.draft_vocabulary
        self.unembedding = nn.Linear(width, drafts, bias=False)
        self.markov = nn.Linear(rank, drafts, bias=False)
        self.mix_block = nn.Linear(width, table, bias=False)
        self.mix_token = nn.Linear(table, table, bias=False)
        self.rank_token = nn.Linear(table, rank, bias=False)
        self.rank_mix = nn.Linear(table, rank, bias=False)
        self.doubt_block = nn.Linear(width, len(REGIMES), bias=False)
        self.doubt_token = nn.Linear(table, len(REGIMES), bias=False)
        self.doubt_mix = nn.Linear(table, len(REGIMES), bias=False)
        self.doubt_peak = nn.Linear(2, len(REGIMES), bias=False)
        self.doubt_offset = nn.Parameter(torch.zeros(config.block, len(REGIMES)))

    def prepare(self, hidden: torch.Tensor) -> HeadInputs:
        """Return everything that does not depend on draft tokens, for ``hidden`` [..., K, hidden]."""
        doubt = self.doubt_block(hidden).float() + self.doubt_offset.float()
        return HeadInputs(self.unembedding(hidden).float(), self.mix_block(hidden), doubt)

    def bias(self, mix: torch.Tensor, token_row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rank-wide state m [..., rank] and the mixing layer's n [..., table].

        Args:
            mix: [..., table], from ``prepare``.
            token_row: [..., table], the table's row of the previous token.
        """
        mixed = functional.silu(mix + self.mix_token(token_row))
        return self.rank_token(token_row) + self.rank_mix(mixed), mixed

    def confidence(
        self, doubt: torch.Tensor, token_row: torch.Tensor, mixed: torch.Tensor, log_peak: torch.Tensor
    ) -> torch.Tensor:
        """Return confidence logits [..., regimes] float32; ``log_peak`` [...] is log max p_d."""
        peak = torch.stack([log_peak, log_peak.exp()], dim=-1).to(token_row.dtype)
        share = self.doubt_token(token_row) + self.doubt_mix(mixed) + self.doubt_peak(peak)
        return doubt + share.float()
