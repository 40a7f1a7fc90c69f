"""Fill the model card from measured numbers."""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import Any

from drafter_training.corpus import SOURCES

_TEMPLATE = Path(__file__).with_name("MODEL_CARD.template.md")
_SETS = {"human-eval": "HumanEval, raw", "human-eval-chat": "HumanEval, chat form", "prose": "prose"}


def write_card(card: dict[str, Any], path: Path) -> None:
    """Write the card as Markdown to ``path``; every number comes from ``card``, the content of card.json."""
    numbers, training = card["evaluation"], card["training"]
    sources = "\n".join(f"- `{source.requirement}` ({source.licence})" for source in SOURCES)
    values = {
        **{name: str(value) for name, value in training.items()},
        **{name: str(value) for name, value in card["config"].items()},
        "files": ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in card["files"].items()),
        "sources": sources,
        "written": str(numbers["written"]),
        "lengths": _lengths(numbers),
        "survival": _positions(numbers["greedy"], "survival"),
        "auc": _positions(numbers["greedy"], "auc"),
        "ece": _positions(numbers["greedy"], "ece", more=("pooled",)),
        "ece_raw": _positions(numbers["greedy"], "ece_raw", more=("pooled",)),
        "ece_same": _row("half against half", numbers["greedy"]["ece_same_domain"]),
        "sampled_ece": _positions(numbers["sampled"], "ece", more=("pooled",)),
        "sampled_auc": _positions(numbers["sampled"], "auc"),
        "temperatures_greedy": str(numbers["greedy"]["temperatures"]),
        "temperatures_sampled": str(numbers["sampled"]["temperatures"]),
        "variants": _variants(numbers),
    }
    path.write_text(Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(values), encoding="utf-8")


def _lengths(numbers: dict[str, Any]) -> str:
    lines = ["| prompts | greedy | at temperature 1 |", "|---|---|---|"]
    for split, label in _SETS.items():
        greedy, sampled = (numbers[regime][split]["accepted_length"] for regime in ("greedy", "sampled"))
        lines.append(f"| {label} | {greedy:.2f} | {sampled:.2f} |")
    return "\n".join(lines)


def _positions(numbers: dict[str, Any], key: str, more: tuple[str, ...] = ()) -> str:
    labels = _SETS | dict.fromkeys(more, "all three")
    rows = [_row(label, numbers[split][key]) for split, label in labels.items()]
    block = len(numbers["pooled"][key])
    head = "| position | " + " | ".join(str(k + 1) for k in range(block)) + " |"
    return "\n".join([head, "|---" * (block + 1) + "|", *rows])


def _row(label: str, values: list[float]) -> str:
    return f"| {label} | " + " | ".join(f"{value:.3f}" for value in values) + " |"


def _variants(numbers: dict[str, Any]) -> str:
    lines = ["| weights | " + " | ".join(_SETS.values()) + " |", "|---" * (len(_SETS) + 1) + "|"]
    for label, lengths in numbers["variants"].items():
        lines.append(f"| {label} | " + " | ".join(f"{lengths[split]:.3f}" for split in _SETS) + " |")
    loss = " | ".join(f"{numbers['loss'][split]:.1%}" for split in _SETS)
    return "\n".join([*lines, f"| lost by the last against the first | {loss} |"])
