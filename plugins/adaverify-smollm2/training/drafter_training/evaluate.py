"""Hold the drafter against text the target wrote from held-out prompts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch

from adaverify_smollm2.drafter import REGIMES, BlockDrafterModel
from adaverify_smollm2.drafter.quantise import quantise, restore
from drafter_training import measure
from drafter_training.context import DenseContext, anchored
from drafter_training.prompts import SPLITS, PromptSet
from drafter_training.sequences import Sequences
from drafter_training.target import DenseTarget

WRITTEN = 128
"""Tokens of each held-out sequence that count."""
HELD_OUT = ("human-eval", "human-eval-chat", "prose")


@torch.no_grad()
def drafts_everywhere(
    target: DenseTarget, model: BlockDrafterModel, sequences: Sequences, rows: np.ndarray, written: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draft at each of the first ``written`` positions of some sequences.

    Returns int64 [rows, written, K] and float32 [rows, written, K, regimes]. Positions past the rectangle
    repeat its last one; whoever walks stops before.
    """
    device, config = target.device, model.config
    tokens = torch.from_numpy(sequences.tokens[rows].astype(np.int64)).to(device)
    at = torch.from_numpy(sequences.first[rows]).to(device).unsqueeze(1) + torch.arange(
        written, device=device
    )
    at = at.clamp(max=tokens.shape[1] - 1)
    seen = target.run(tokens, config.feature_layers, config.cross_layers)
    dtype = model.head.unembedding.weight.dtype
    drafts, logits = model.draft(
        anchored(seen.features, at).to(dtype),
        tokens.gather(1, at).flatten(),
        at.flatten(),
        DenseContext(seen, at, config.block),
    )
    shape = (len(rows), written, config.block)
    return drafts.view(shape).cpu().numpy(), logits.view(*shape, len(REGIMES)).cpu().numpy()


def steps_of(
    target: DenseTarget,
    model: BlockDrafterModel,
    sequences: Sequences,
    rows: np.ndarray,
    regime: int,
    batch: int = 32,
) -> measure.Steps:
    """Return the verification steps over some sequences, confidences of one regime."""
    parts = []
    for start in range(0, len(rows), batch):
        chosen = rows[start : start + batch]
        drafts, logits = drafts_everywhere(target, model, sequences, chosen, WRITTEN)
        for place, row in enumerate(chosen):
            parts.append(
                measure.walk(
                    drafts[place],
                    logits[place, :, :, regime],
                    sequences.tokens[row].astype(np.int64),
                    int(sequences.first[row]),
                    int(sequences.last[row]),
                    int(sequences.prompt[row]),
                )
            )
    return measure.Steps.join(parts)


def reduced(model: BlockDrafterModel, draft_vocabulary: int) -> BlockDrafterModel:
    """Return a copy that proposes the first ``draft_vocabulary`` ids only; they are in order of frequency."""
    keep = min(draft_vocabulary, model.config.draft_vocabulary)
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    for name in ("head.unembedding.weight", "head.markov.weight", "draft_ids"):
        state[name] = state[name][:keep]
    positions = model._turns.shape[0]
    config = replace(model.config, draft_vocabulary=keep)
    copy = BlockDrafterModel(config, state["draft_ids"].cpu(), positions=positions)
    copy.load_state_dict(state)
    return copy.to(state["draft_ids"].device).eval().requires_grad_(False)


def rounded(model: BlockDrafterModel) -> BlockDrafterModel:
    """Return a copy whose weights went through int8, as exported ones do."""
    copy = reduced(model, model.config.draft_vocabulary)
    state = {name: tensor for name, tensor in copy.state_dict().items() if name != "draft_ids"}
    copy.load_state_dict(restore(quantise(state)) | {"draft_ids": copy.draft_ids})
    return copy


def evaluate(
    target: DenseTarget,
    model: BlockDrafterModel,
    prompts: PromptSet,
    sequences: Sequences,
    dtype: torch.dtype,
    vocabularies: Iterable[int],
    exported: int,
) -> dict[str, object]:
    """Return every number of the card.

    Args:
        target: the target.
        model: the trained drafter with its training vocabulary, float32.
        prompts: where ``sequences`` began.
        sequences: of the splits validation and ``HELD_OUT``, greedy and sampled.
        dtype: the drafter runs in.
        vocabularies: sizes to compare.
        exported: size of the vocabulary that ships.
    """
    splits = prompts.split[sequences.prompt]
    shipped = rounded(reduced(model, exported)).to(dtype)
    result: dict[str, object] = {
        "written": WRITTEN,
        "block": model.config.block,
        "draft_vocabulary": exported,
    }
    for regime, name in enumerate(REGIMES):
        own = sequences.greedy == (name == "greedy")

        def rows(split: str, own: np.ndarray = own) -> np.ndarray:
            return np.flatnonzero(own & (splits == SPLITS.index(split)))

        fitted = steps_of(target, shipped, sequences, rows("validation"), regime)
        temperatures = measure.fit_temperatures(fitted)
        sets = {split: steps_of(target, shipped, sequences, rows(split), regime) for split in HELD_OUT}
        pooled = measure.Steps.join(list(sets.values()))
        halves = _crossed(pooled)
        result[name] = {
            "temperatures": [round(float(value), 4) for value in temperatures],
            **{split: measure.report(steps, temperatures) for split, steps in sets.items()},
            "pooled": measure.report(pooled, temperatures),
            "validation": measure.report(fitted, temperatures),
            "ece_same_domain": halves,
        }
    greedy = {split: np.flatnonzero(sequences.greedy & (splits == SPLITS.index(split))) for split in HELD_OUT}
    sizes = [model.config.draft_vocabulary, *vocabularies]
    variants = {f"float, {size} ids": reduced(model, size).to(dtype) for size in sizes}
    variants[f"int8, {exported} ids"] = shipped
    result["variants"] = {
        label: {
            split: round(steps_of(target, variant, sequences, chosen, 0).accepted_length, 4)
            for split, chosen in greedy.items()
        }
        for label, variant in variants.items()
    }
    result["loss"] = _loss(result["variants"])  # type: ignore[arg-type]
    return result


def _crossed(steps: measure.Steps) -> list[float]:
    # Temperatures from one half of the prompts, error on the other, both ways: no shift of domain.
    halves = [steps.take(steps.group % 2 == half) for half in (0, 1)]
    errors = [
        measure.report(halves[1 - half], measure.fit_temperatures(halves[half]))["ece"] for half in (0, 1)
    ]
    return [round(float(np.mean(pair)), 4) for pair in zip(*errors, strict=True)]  # type: ignore[arg-type]


def _loss(variants: dict[str, dict[str, float]]) -> dict[str, float]:
    # The first variant is the whole one, the last the shipped one.
    whole, shipped = next(iter(variants.values())), list(variants.values())[-1]
    return {split: round(1 - shipped[split] / whole[split], 4) for split in whole}
