"""The training loop: a wall-clock budget, checkpoints, and a schedule that always ends at zero."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.nn import functional

from adaverify_smollm2.drafter import BlockDrafterModel
from drafter_training.context import DenseContext, anchored
from drafter_training.loss import DraftLoss, LossWeights, Teacher
from drafter_training.optimiser import make_optimisers, rate
from drafter_training.sequences import Anchors, Feed
from drafter_training.target import DenseTarget

HOLD = 0.5
"""Share of the budget at the peak rate; the rest anneals."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Choices of the training.

    Attributes:
        muon_lr, adam_lr: peak rates.
        gamma: position k weighs exp(-(k - 1) / gamma).
        shares: of the drafting losses.
        confidence: share of the binary cross entropy.
        other_regime: weight of a confidence label from text of the other regime.
        clip: of AdamW's gradient norm.
        seconds: wall-clock budget of training; None trains ``steps`` steps.
        steps: used without ``seconds``; then a run is a function of the seed.
        checkpoint_seconds: between two checkpoints.
        log_every: steps between two log lines.
    """

    muon_lr: float = 0.02
    adam_lr: float = 1e-3
    gamma: float = 4.0
    shares: LossWeights = field(default_factory=LossWeights)
    confidence: float = 0.5
    other_regime: float = 0.25
    clip: float = 1.0
    seconds: float | None = None
    steps: int = 1000
    checkpoint_seconds: float = 90.0
    log_every: int = 50


class Trainer:
    """Train a drafter against a frozen target.

    Args:
        target: the target, which also gives features and keys.
        model: the drafter, float32.
        teacher: the target's laws on the drafter's vocabulary.
        feed: batches.
        recipe: choices.
    """

    def __init__(
        self, target: DenseTarget, model: BlockDrafterModel, teacher: Teacher, feed: Feed, recipe: Recipe
    ) -> None:
        self.target, self.model, self.teacher = target, model, teacher
        self.feed, self.recipe = feed, recipe
        self.optimisers = make_optimisers(model, recipe.muon_lr, recipe.adam_lr)
        self.step = 0
        self.seconds = 0.0
        block = model.config.block
        decay = torch.exp(-torch.arange(block, dtype=torch.float32) / recipe.gamma)
        self._position_weight = (decay / decay.sum()).to(target.device)

    @property
    def done(self) -> float:
        """Share of the budget that is spent."""
        recipe = self.recipe
        if recipe.seconds is None:
            return self.step / max(recipe.steps, 1)
        return self.seconds / recipe.seconds

    def run(
        self,
        log: Callable[[dict[str, float]], None],
        checkpoint: Path | None = None,
        stable: Path | None = None,
        until: int | None = None,
    ) -> None:
        """Train until the budget is spent, or until step ``until``.

        Args:
            log: called with numbers every ``log_every`` steps.
            checkpoint: written now and then; ``restore`` continues from it.
            stable: written once, when the rate begins to fall: a longer run starts from there.
            until: stop early, as an interruption would.
        """
        saved = began = time.monotonic()
        before = self.seconds
        annealing = self.done >= HOLD
        while self.done < 1.0 and self.step != until:
            if not annealing and self.done >= HOLD:
                annealing = True
                if stable is not None:
                    self.save(stable)
            wanted = (self.step + 1) % self.recipe.log_every == 0
            numbers = self.update(measure=wanted)
            now = time.monotonic()
            if numbers is not None:
                log(
                    numbers
                    | {"step": self.step, "seconds": round(self.seconds, 1), "done": round(self.done, 4)}
                )
            self.seconds = before + now - began
            if checkpoint is not None and now - saved > self.recipe.checkpoint_seconds:
                self.save(checkpoint)
                saved = time.monotonic()
        if checkpoint is not None:
            self.save(checkpoint)

    def update(self, *, measure: bool = False) -> dict[str, float] | None:
        """Take one step; with ``measure``, wait for it and return its numbers."""
        share = rate(self.done, hold=HOLD)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["peak"] * share
        batch = self.feed.batch(self.step, self.target.device)
        loss, numbers = self.loss(batch, measure=measure)
        loss.backward()
        adam = self.optimisers[1]
        norm = torch.nn.utils.clip_grad_norm_(
            [parameter for group in adam.param_groups for parameter in group["params"]], self.recipe.clip
        )
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        if numbers is None:
            # Otherwise the host would run minutes ahead of the device, and the clock would mean nothing.
            if self.step % 8 == 0:
                loss.item()
            return None
        return {name: value.item() for name, value in numbers.items()} | {"norm": norm.item(), "rate": share}

    def loss(
        self, batch: Anchors, *, measure: bool = False
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor] | None]:
        """Return the loss of one batch, and numbers about it if asked."""
        model, config, recipe = self.model, self.model.config, self.recipe
        seen = self.target.run(batch.tokens, config.feature_layers, config.cross_layers)
        laws, likeliest = self.teacher.laws(seen.hidden.flatten(0, 1))
        ahead = batch.index()
        before = (ahead - 1).flatten(1)
        previous = batch.tokens.gather(1, before).view(-1, config.block)
        width = batch.tokens.shape[1]
        offsets = torch.arange(len(before), device=before.device).unsqueeze(1) * width
        row = (before + offsets).flatten()
        valid = batch.valid.flatten(0, 1)
        with torch.autocast(
            self.target.device.type, torch.bfloat16, enabled=self.target.device.type == "cuda"
        ):
            hidden = model.backbone(
                anchored(seen.features, batch.at),
                batch.tokens.gather(1, batch.at).flatten(),
                batch.at.flatten(),
                DenseContext(seen, batch.at, config.block),
            )
            head = model.head
            doubt = head.doubt_block(hidden).float() + head.doubt_offset
            token_row = model.table(previous)
            state, mixed = head.bias(head.mix_block(hidden), token_row)
            # One product for U h + W2 m: the logits are the largest tensor here.
            logits = functional.linear(
                torch.cat([hidden, state.to(hidden.dtype)], -1).flatten(0, 1),
                torch.cat([head.unembedding.weight, head.markov.weight], 1),
            )
            weight = valid * self._position_weight
            weight = (weight / weight.sum().clamp(min=1e-6)).flatten()
            drafting, drafted, log_peak, accepted = DraftLoss.apply(
                logits, laws, row, likeliest[row], weight, recipe.shares
            )
            log_peak = log_peak.view(valid.shape)
            confidence = head.confidence(doubt, token_row, mixed, log_peak)
        match = (drafted == likeliest[row]).float().view(valid.shape)
        labels = torch.stack([match, accepted.view(valid.shape)], -1)
        own = batch.greedy.repeat_interleave(batch.at.shape[1]).view(-1, 1)
        regime = torch.stack([own, ~own], -1).float()
        regime = regime + recipe.other_regime * (1 - regime)
        entropy = functional.binary_cross_entropy_with_logits(confidence, labels, reduction="none")
        doubted = (entropy * regime).sum(-1).flatten().mul(weight).sum()
        loss = drafting + recipe.confidence * doubted
        if not measure:
            return loss, None
        numbers = {"loss": loss.detach(), "drafting": drafting.detach(), "confidence": doubted.detach()}
        return loss, numbers | _acceptance(match, labels[..., 1], valid, own.squeeze(1))

    def save(self, path: Path) -> None:
        """Write everything a continuation needs; a crash leaves the file before."""
        state = {
            "model": self.model.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "step": self.step,
            "seconds": self.seconds,
            "config": self.model.config.text(),
        }
        draft = path.with_suffix(".tmp")
        torch.save(state, draft)
        draft.replace(path)

    def restore(self, path: Path) -> None:
        """Continue from what ``save`` wrote."""
        state = torch.load(path, map_location=self.target.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.step, self.seconds = state["step"], state["seconds"]


def _acceptance(
    match: torch.Tensor, accepted: torch.Tensor, valid: torch.Tensor, greedy: torch.Tensor
) -> dict[str, torch.Tensor]:
    # Teacher-forced, at random positions: optimistic beside a real run, but cheap and steady.
    whole = valid.all(1)
    rows = whole & greedy
    survival = match[rows].cumprod(1)
    sampled = accepted[whole & ~greedy].cumprod(1)
    return {
        "length": 1 + survival.sum(1).mean(),
        "first": match[rows][:, 0].mean(),
        "length_sampled": 1 + sampled.sum(1).mean(),
    }
