"""By what a case was measured: kept with it, so that a later run does not show it as its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from adaverify.bench.endtoend import curve, ladders
from adaverify.bench.endtoend.store import Store
from adaverify.bench.surroundings import commit
from adaverify_contracts import AdaverifyError, BenchmarkOptions

Case = tuple[str, str]
"""Stage and case."""
COLUMNS = ("rounds", "threads", "commit")
_UNKNOWN = "not recorded"


@dataclass(frozen=True, slots=True)
class Origin:
    """What a run measures by.

    Attributes:
        commit: of the source tree; None where an installed package runs.
        threads: of torch on the host.
        steps: of a round of the arms, as asked for; None leaves them to the benchmark.
        repeat: rounds that were asked for.
    """

    commit: str | None
    threads: int
    steps: int | None
    repeat: int

    @classmethod
    def of(cls, options: BenchmarkOptions) -> Origin:
        """Return what this process measures by."""
        return cls(commit(), torch.get_num_threads(), options.steps, options.repeat)

    def as_dict(self) -> dict[str, Any]:
        """Return what is kept with a case, JSON-ready; each case has its rounds."""
        return {"commit": self.commit, "threads": self.threads, "steps": self.steps}

    def rounds(self, stage: str) -> int:
        """Return the rounds of a stage, at most."""
        return min(curve.ROUNDS, self.repeat) if stage == "curve" else self.repeat

    def measures(self, stage: str, found: Mapping[str, Any]) -> bool:
        """Return whether this run would have measured a case as it was measured."""
        kept, rounds = found.get("measured"), found.get("rounds")
        if kept is None or rounds is None:
            return False
        # Captures end early where they take long.
        least = min(ladders.LEAST_ROUNDS, self.repeat) if stage == "capture" else self.rounds(stage)
        same = kept["commit"] == self.commit and kept["threads"] == self.threads
        steps = stage != "arms" or kept["steps"] == self.steps
        return same and steps and least <= rounds <= self.rounds(stage)


def recorded(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``COLUMNS`` of a case, each None where it was not recorded."""
    kept = found.get("measured") or {}
    return {"rounds": found.get("rounds"), "threads": kept.get("threads"), "commit": kept.get("commit")}


def kept_words(origin: Origin, stage: str, found: Mapping[str, Any]) -> str:
    """Return how a case that is not measured again was measured, as far as that differs, in words."""
    rounds, would = found.get("rounds"), origin.rounds(stage)
    if rounds == would:
        return ""
    most = "at most " if stage == "capture" else ""
    return f", rounds: {_UNKNOWN if rounds is None else rounds}; --again measures {most}{would}"


def origin_notes(store: Store, origin: Origin, fresh: set[Case]) -> Iterator[str]:
    """Yield a note for kept cases that were measured by something else than this run measures by."""
    alike: dict[str, list[str]] = {}
    for stage, cases in store.as_dict()["stages"].items():
        for case, found in cases.items():
            if (stage, case) not in fresh and not origin.measures(stage, found):
                alike.setdefault(_words(stage, found), []).append(f"{stage} {case}")
    for words, named in alike.items():
        yield f"kept from another run, {', '.join(named)}: {words}"
    if alike:
        own = f"commit {_short(origin.commit)}, {_count(origin.threads, 'thread')}"
        yield f"this run: {own}, {_count(origin.repeat, 'round')}"


def require_steps(store: Store, origin: Origin, named: list[Case]) -> None:
    """Refuse kept arms whose rounds are not of the steps that this run asks for.

    Raises:
        AdaverifyError: says which.
    """
    if origin.steps is None:
        return
    for stage, case in named:
        found = store.get(stage, case)
        if stage != "arms" or found is None:
            continue
        kept = found.get("measured")
        steps = _UNKNOWN if kept is None else kept["steps"] or "the benchmark's own number of"
        if steps != origin.steps:
            raise AdaverifyError(
                f"arms of {case} requests are kept with other rounds than --steps asks for",
                arrived=f"rounds of {steps} steps kept, {origin.steps} asked for",
                allowed=f"the same number of steps, in {store.path}",
                remedy="measure them again with --again, choose another folder with --out, or no --steps",
            )


def _words(stage: str, found: Mapping[str, Any]) -> str:
    kept, rounds = found.get("measured"), found.get("rounds")
    words = f"{_UNKNOWN if rounds is None else rounds} rounds"
    if kept is None:
        return f"{words}, commit and threads {_UNKNOWN}"
    steps = f", rounds of {kept['steps']} steps" if stage == "arms" and kept["steps"] else ""
    return f"commit {_short(kept['commit'])}, {_count(kept['threads'], 'thread')}, {words}{steps}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _short(name: str | None) -> str:
    """Return a commit as people write it, its mark of changed files kept."""
    if name is None:
        return "unknown"
    return name[:12] + ("+" if name.endswith("+") else "")
