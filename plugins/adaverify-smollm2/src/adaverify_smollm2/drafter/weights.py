"""The drafter's weights: three files beside this module, and how they become a module."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from adaverify_contracts import ModelFileError
from adaverify_smollm2.drafter.config import DrafterConfig
from adaverify_smollm2.drafter.model import BlockDrafterModel
from adaverify_smollm2.drafter.quantise import quantise, restore
from adaverify_smollm2.drafter.tensor_file import read_tensors, write_tensors

FOLDER = Path(__file__).with_name("weights")
CARD = "card.json"
_PARTS = {"table": ("table.",), "head": ("head.", "draft_ids"), "backbone": ()}
_DRAFT_IDS = "draft_ids"


def weights_present(folder: Path = FOLDER) -> bool:
    """Tell whether trained weights lie in ``folder``."""
    return all((folder / f"{part}.safetensors").is_file() for part in _PARTS)


def load_block_drafter(device: torch.device, dtype: torch.dtype, folder: Path = FOLDER) -> BlockDrafterModel:
    """Return the trained drafter for inference, its parameters in ``dtype`` on ``device``.

    Raises:
        ModelFileError: weights are absent, damaged, or of another shape than their configuration says.
    """
    if not weights_present(folder):
        raise ModelFileError(
            "the block drafter has no weights here",
            arrived=str(folder),
            allowed="backbone, head and table as safetensors files",
            remedy="train them (nox -s train_drafter), or choose another drafter",
        )
    packed: dict[str, torch.Tensor] = {}
    metadata: dict[str, str] = {}
    for part in _PARTS:
        tensors, metadata = read_tensors(folder / f"{part}.safetensors")
        packed.update(tensors)
    return assemble(DrafterConfig.parse(metadata.get("config", "")), packed).to(device, dtype)


def assemble(config: DrafterConfig, packed: dict[str, torch.Tensor]) -> BlockDrafterModel:
    """Return a float32 module on the CPU from tensors as ``save_block_drafter`` writes them.

    Raises:
        ModelFileError: a tensor is missing, unknown, has another shape, or holds values that are not finite.
    """
    tensors = restore(packed)
    broken = [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
    if broken:
        raise ModelFileError(
            "the drafter's weights are damaged",
            arrived=f"{len(broken)} tensors with values that are not finite, {broken[0]} first",
            allowed="finite weights",
            remedy="install the plugin again, or train the drafter again",
        )
    try:
        model = BlockDrafterModel(config, tensors[_DRAFT_IDS].to(torch.int64))
        tensors[_DRAFT_IDS] = tensors[_DRAFT_IDS].to(torch.int64)
        model.load_state_dict(tensors)
    except (KeyError, RuntimeError) as error:
        raise ModelFileError(
            "the drafter's weights do not fit their configuration",
            arrived=f"{type(error).__name__}: {error}",
            allowed="the tensors of this version",
            remedy="install matching versions of plugin and weights, or train the drafter again",
        ) from error
    return model.eval().requires_grad_(False)


def save_block_drafter(model: BlockDrafterModel, folder: Path) -> dict[str, int]:
    """Write the module's weights as int8 to ``folder``; return the size of each file in bytes."""
    state = dict(model.state_dict())
    state[_DRAFT_IDS] = state[_DRAFT_IDS].to(torch.int32)
    packed = quantise(state)
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {}
    for part in _PARTS:
        chosen = {name: tensor for name, tensor in packed.items() if _part(name) == part}
        path = folder / f"{part}.safetensors"
        write_tensors(path, chosen, {"format": "pt", "config": model.config.text()})
        sizes[path.name] = path.stat().st_size
    return sizes


def read_card(folder: Path = FOLDER) -> dict[str, Any]:
    """Return the measured numbers that were exported with the weights, temperatures among them."""
    card: dict[str, Any] = json.loads((folder / CARD).read_text(encoding="utf-8"))
    return card


def _part(name: str) -> str:
    for part, prefixes in _PARTS.items():
        if prefixes and name.startswith(prefixes):
            return part
    return "backbone"
