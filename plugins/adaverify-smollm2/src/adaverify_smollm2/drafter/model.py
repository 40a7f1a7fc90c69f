"""The block drafter: K draft tokens and their confidences from one pass over the target's own state."""

from __future__ import annotations

import torch
from torch import nn

from adaverify_smollm2.drafter.config import DrafterConfig
from adaverify_smollm2.drafter.head import MarkovHead
from adaverify_smollm2.drafter.layer import BlockLayer, CrossAttend, Norm
from adaverify_smollm2.rope import DRAFT_ROOM, rotary_table

MAX_POSITIONS = 8192


class BlockDrafterModel(nn.Module):
    """Draft a block from target features, the newest token and the target's cached keys and values.

    It keeps nothing between calls: no cache of its own, hence nothing to roll back when drafts are rejected.

    Args:
        config: sizes.
        draft_ids: int64 [draft vocabulary], the target's id of each draft id.
        positions: positions the rotary table covers before the room for drafts.
    """

    def __init__(
        self, config: DrafterConfig, draft_ids: torch.Tensor, *, positions: int = MAX_POSITIONS
    ) -> None:
        super().__init__()
        self.config = config
        width = config.hidden
        self.feature_norms = nn.ModuleList(Norm(width, config.norm_eps) for _ in config.feature_layers)
        self.feature_in = nn.Linear(config.features, width, bias=False)
        self.table = nn.Embedding(config.vocabulary, config.table)
        self.token_in = nn.Linear(config.table, width, bias=False)
        self.slot_gain = nn.Parameter(torch.ones(config.block, width))
        self.slot_offset = nn.Parameter(torch.zeros(config.block, width))
        self.layers = nn.ModuleList(BlockLayer(config, layer) for layer in config.cross_layers)
        self.last_norm = Norm(width, config.norm_eps)
        self.head = MarkovHead(config)
        self.draft_ids: torch.Tensor
        self.register_buffer("draft_ids", draft_ids.to(torch.int64))
        turns = rotary_table(positions + DRAFT_ROOM, config.head_dim, config.rope_base, torch.device("cpu"))
        # Kept as bits: a module's cast to bfloat16 would round the angles, and with them the positions.
        self._turns: torch.Tensor
        self.register_buffer("_turns", torch.view_as_real(turns).view(torch.int32), persistent=False)

    def backbone(
        self, features: torch.Tensor, tokens: torch.Tensor, positions: torch.Tensor, attend: CrossAttend
    ) -> torch.Tensor:
        """Return block states [R, K, hidden].

        Args:
            features: [R, features], the target's hidden states at the position before the newest token.
            tokens: int64 [R], the newest token, which the cache does not hold yet.
            positions: int64 [R], its position, which is also the number of cached positions.
            attend: attention over the cache, see ``CrossAttend``.
        """
        parts = features.chunk(len(self.feature_norms), dim=-1)
        normed = [norm(part) for norm, part in zip(self.feature_norms, parts, strict=True)]
        entry = self.feature_in(torch.cat(normed, dim=-1)) + self.token_in(self.table(tokens))
        hidden = entry.unsqueeze(1) * self.slot_gain.to(entry.dtype) + self.slot_offset.to(entry.dtype)
        slots = torch.arange(self.config.block, device=positions.device)
        turns = torch.view_as_complex(self._turns[positions.unsqueeze(1) + slots].view(torch.float32))
        for layer in self.layers:
            hidden = layer(hidden, turns, attend)
        return self.last_norm(hidden)

    def draft(
        self, features: torch.Tensor, tokens: torch.Tensor, positions: torch.Tensor, attend: CrossAttend
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Draft greedily: return ids int64 [R, K] and confidence logits float32 [R, K, regimes].

        Arguments as in ``backbone``. Launches only: it neither waits for the device nor reads from it.
        """
        return self.decode(self.backbone(features, tokens, positions, attend), tokens)

    def decode(self, hidden: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the head over block states [R, K, hidden], from the newest tokens int64 [R]."""
        ready = self.head.prepare(hidden)
        drafts, doubts = [], []
        for k in range(self.config.block):
            row = self.table(tokens)
            state, mixed = self.head.bias(ready.mix[:, k], row)
            logits = ready.base[:, k] + self.head.markov(state).float()
            peak, chosen = logits.max(dim=-1)
            log_peak = peak - logits.logsumexp(dim=-1)
            doubts.append(self.head.confidence(ready.doubt[:, k], row, mixed, log_peak))
            tokens = self.draft_ids[chosen]
            drafts.append(tokens)
        return torch.stack(drafts, dim=1), torch.stack(doubts, dim=1)
