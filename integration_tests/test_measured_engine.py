"""The whole engine's figures on one H200, in README and on its page, are those of the committed data."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import workspace

FOLDER = workspace.ROOT / "docs/measurements"
PAGE = FOLDER / "2026-11-30-h200-block-drafter.md"
README = workspace.ROOT / "README.md"
RUNS = {
    1: ("every-k-replayed-prompts", "commit e355f11"),
    16: ("every-k-replayed-prompts", "commit e355f11"),
    64: ("every-k-replayed-prompts", "commit 0c3dacc"),
    256: ("every-k-replayed-prompts", "commit e355f11"),
    512: ("every-k", "commit 09d3687"),
}
"""Where the run of each size is kept."""


def arms(requests: int) -> dict[str, float]:
    """Return tokens a second of every arm, ``fixed`` being K = 7."""
    name, commit = RUNS[requests]
    kept = json.loads((FOLDER / "data" / f"2026-12-01-h200-{name}.json").read_text(encoding="utf-8"))
    run: dict[str, Any] = kept[commit][str(requests)]
    found = [*run["modes"].values(), *run["rivals"].values()] if run["rivals"] else run["modes"].values()
    assert run["tokens"]["identical"]
    return {arm["mode"]: arm["tokens_per_second"] for arm in found}


def best(found: dict[str, float]) -> tuple[str, float]:
    """Return K of the best arm but adaptive, and its tokens a second."""
    name = max((name for name in found if name != "adaptive"), key=lambda name: found[name])
    return {"fixed": "7", "none": "none"}.get(name, name.removeprefix("fixed-")), found[name]


@pytest.mark.parametrize("requests", RUNS)
def test_the_readme_gives_what_was_measured(requests):
    found = arms(requests)
    assert len(found) == 9
    which, most = best(found)
    line = (
        f"| {requests} | {found['none']:.0f} | {most:.0f} ({which}) | {found['fixed']:.0f} | "
        f"{found['adaptive']:.0f} | {found['adaptive'] / most:.3f} |"
    )
    assert line in README.read_text(encoding="utf-8")


@pytest.mark.parametrize("requests", [size for size, (name, _) in RUNS.items() if "prompts" in name])
def test_the_page_gives_what_was_measured(requests):
    """Every arm of the line of this size, rounded, and both ratios."""
    found, commit = arms(requests), RUNS[requests][1].removeprefix("commit ")
    text = PAGE.read_text(encoding="utf-8")
    text = text[text.index("## Every K by hand, with prompts replayed") :]
    (line,) = re.findall(rf"^\| {commit} \| {requests}, .*$", text, re.MULTILINE)
    cells = [re.sub(r"[*]|\(.*\)", "", cell).strip() for cell in line.strip("|").split("|")][2:]
    names = ["none", *(f"fixed-{k}" for k in range(1, 7)), "fixed", "adaptive"]
    ratios = [found["adaptive"] / best(found)[1], found["adaptive"] / found["fixed"]]
    assert cells == [f"{found[name]:.0f}" for name in names] + [f"{ratio:.3f}" for ratio in ratios]
