"""Modes side by side: the same prompts, interleaved rounds, tokens per second, and identity of the tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import inf
from statistics import median
from time import perf_counter
from typing import Any

from adaverify_contracts import EngineError
from adaverify_engine.engine import Engine
from adaverify_engine.options import Sampling
from adaverify_engine.request import Completion, FinishReason
from adaverify_engine.stats import EngineStats

NEAR_TIE = 1e-4
"""Two logits closer than this may swap when a matrix product changes shape, float32 rounding being near
1e-6."""

TURN = 0.5
"""Seconds of a turn: a few steps, and less than the times for which a shared machine is slower or faster."""

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where a mode's tokens leave the baseline's, of a request that is greedy or trim-invariant.

    Attributes:
        mode: the mode that differs; prompt: index of the prompt; position: first differing output token.
        gap: best minus second-best logit there, in the baseline; NaN where the token was drawn.
        near_tie: whether the gap is below the comparison's threshold, so that rounding explains it.
    """

    mode: str
    prompt: int
    position: int
    gap: float
    near_tie: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that ended as failed in some round, the warm-up's included.

    Attributes:
        mode: where; prompt: index of the prompt.
        error: why, of the first such round.
    """

    mode: str
    prompt: int
    error: str


@dataclass(frozen=True, slots=True)
class ModeResult:
    """One mode over all recorded rounds.

    Attributes:
        mode: its name, for instance ``none``, ``fixed`` or ``adaptive``.
        tokens_per_second: median over rounds; lowest and highest: the spread.
        rounds: tokens per second of each round.
        stats: counters of the recorded rounds, as ``EngineStats.as_dict`` gives them.
    """

    mode: str
    tokens_per_second: float
    lowest: float
    highest: float
    rounds: tuple[float, ...]
    stats: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Modes compared on one set of prompts.

    Attributes:
        baseline: mode that the others are held against.
        results: by mode.
        compared: greedy and trim-invariant prompts, whose tokens were compared, for each mode but the
            baseline; 0 where one mode ran. A prompt that failed in any mode is not compared in any.
        divergences: all differences; those that are no near-tie are failures.
        threshold: gap below which a difference counts as a near-tie.
        completions: of the baseline's last round, in prompt order.
        by_mode: the same of every mode.
        failed: every prompt that failed, by mode.
    """

    baseline: str
    results: dict[str, ModeResult]
    compared: int
    divergences: tuple[Divergence, ...]
    threshold: float
    completions: tuple[Completion, ...] = field(repr=False)
    by_mode: Mapping[str, tuple[Completion, ...]] = field(repr=False)
    failed: tuple[Failure, ...] = ()

    @property
    def near_ties(self) -> int:
        """Differences that start where the two best logits nearly tie."""
        return sum(difference.near_tie for difference in self.divergences)

    @property
    def failures(self) -> tuple[Divergence, ...]:
        """Differences that rounding does not explain: wrong tokens."""
        return tuple(difference for difference in self.divergences if not difference.near_tie)

    @property
    def identical(self) -> bool | None:
        """Whether every compared token is the same, near-ties excepted; None when nothing was compared."""
        return not self.failures if self.compared else None

    def speedup(self, mode: str, over: str) -> float:
        """Return the ratio of medians of tokens per second."""
        return self.results[mode].tokens_per_second / self.results[over].tokens_per_second

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary; completions are left out."""
        return {
            "baseline": self.baseline,
            "results": {mode: asdict(result) for mode, result in self.results.items()},
            "compared": self.compared,
            "identical": self.identical,
            "near_ties": self.near_ties,
            "threshold": self.threshold,
            "divergences": [asdict(difference) for difference in self.divergences],
            "failed": [asdict(failure) for failure in self.failed],
        }


def compare(
    engines: Mapping[str, Engine],
    prompts: Sequence[Sequence[int]],
    sampling: Sampling | Sequence[Sampling],
    *,
    rounds: int = 3,
    warmup: int = 1,
    threshold: float = NEAR_TIE,
    progress: Progress | None = None,
) -> Comparison:
    """Run every engine over the same prompts, round by round, and compare speed and tokens.

    In each round every mode runs once, in an order that rotates. Engines that run their steps eagerly take
    turns within the round too, half a second each, so that a machine that slows down slows all of them; only
    an engine's own turns count for it. Steps launched ahead would run on in another's turn, so engines with
    captured steps run one after the other. Concurrency is the engines' ``max_requests``. Warm-up rounds are
    run alike and not recorded; what adaptive verification learns in them stays learnt, as in a server.

    Args:
        engines: by mode name, all idle and of the same sizes, K excepted; the first is the baseline.
        prompts: token ids, at least one prompt.
        sampling: for all prompts, or one for each.
        rounds: recorded rounds, at least 1.
        warmup: rounds before the first recorded one.
        threshold: largest gap of a near-tie. In bfloat16 logits move by their own rounding (about 1/128 of
            their size), so a float32 threshold finds differences there that say nothing about verification.
        progress: called as ``progress(done, total, mode)`` as each mode ends its round, warm-up included.

    Raises:
        EngineError: no engine, no prompt, different sizes, or rounds below 1.
    """
    asked = [sampling] * len(prompts) if isinstance(sampling, Sampling) else list(sampling)
    _check(engines, prompts, asked, rounds, warmup)
    # Nobody reads the pieces here; decoding them would be timed as part of every mode.
    asked = [replace(one, stream=False) for one in asked]
    speeds: dict[str, list[float]] = {mode: [] for mode in engines}
    latest: dict[str, list[Completion]] = {}
    differences: dict[tuple[str, int], Divergence] = {}
    failed: dict[tuple[str, int], Failure] = {}
    modes = list(engines)
    done, total = 0, (rounds + warmup) * len(modes)
    for turn in range(rounds + warmup):
        if turn == warmup:
            for engine in engines.values():
                engine.reset_stats()
        shift = turn % len(modes)
        order = modes[shift:] + modes[:shift]
        for mode, speed, latest[mode] in _round({mode: engines[mode] for mode in order}, prompts, asked):
            if turn >= warmup:
                speeds[mode].append(speed)
            for prompt, one in enumerate(latest[mode]):
                if one.reason is FinishReason.FAILED:
                    failed.setdefault((mode, prompt), Failure(mode, prompt, one.error))
            done += 1
            if progress is not None:
                progress(done, total, mode)
        for difference in _differences(modes, latest, asked, threshold):
            differences.setdefault((difference.mode, difference.prompt), difference)
    lost = {prompt for _, prompt in failed}
    kept = [one for prompt, one in enumerate(asked) if prompt not in lost]
    return Comparison(
        baseline=modes[0],
        results={mode: _result(mode, speeds[mode], engines[mode].stats) for mode in modes},
        compared=sum(not one.trim_sensitive for one in kept) if len(modes) > 1 else 0,
        divergences=tuple(one for one in differences.values() if one.prompt not in lost),
        threshold=threshold,
        completions=tuple(latest[modes[0]]),
        by_mode={mode: tuple(latest[mode]) for mode in modes},
        failed=tuple(failed.values()),
    )


def first_difference(baseline: Completion, other: Completion) -> int | None:
    """Return the first output position at which two completions differ, None when they are equal."""
    for position, (one, two) in enumerate(zip(baseline.tokens, other.tokens, strict=False)):
        if one != two:
            return position
    shorter = min(len(baseline.tokens), len(other.tokens))
    return None if len(baseline.tokens) == len(other.tokens) else shorter


def _round(
    engines: Mapping[str, Engine], prompts: Sequence[Sequence[int]], sampling: Sequence[Sampling]
) -> Iterator[tuple[str, float, list[Completion]]]:
    """Run each engine over the prompts; yield mode, tokens per second and completions as each one ends."""
    eager = all(engine.pipeline is None for engine in engines.values())
    turn = TURN if eager else inf
    runs = deque((mode, _Run(engine, prompts, sampling)) for mode, engine in engines.items())
    while runs:
        mode, run = runs.popleft()
        if run.go_on(turn):
            yield mode, *run.result()
        else:
            runs.append((mode, run))


class _Run:
    """One engine's way through the prompts, in turns."""

    def __init__(
        self, engine: Engine, prompts: Sequence[Sequence[int]], sampling: Sequence[Sampling]
    ) -> None:
        self._engine, self._prompts, self._sampling = engine, prompts, sampling
        self._ids: list[int] = []
        self._seconds = 0.0

    def go_on(self, seconds: float) -> bool:
        """Step for ``seconds``, one step at least; return whether nothing is left."""
        begin = perf_counter()
        if not self._ids:
            self._ids = [
                self._engine.add(prompt, one)
                for prompt, one in zip(self._prompts, self._sampling, strict=True)
            ]
        while not self._engine.idle:
            self._engine.step()
            if perf_counter() - begin >= seconds:
                break
        self._seconds += perf_counter() - begin
        return self._engine.idle

    def result(self) -> tuple[float, list[Completion]]:
        """Return tokens per second and completions in prompt order."""
        done = self._engine.take()
        completions = [done[request] for request in self._ids]
        return sum(len(completion.tokens) for completion in completions) / self._seconds, completions


def _differences(
    modes: Sequence[str],
    latest: Mapping[str, Sequence[Completion]],
    sampling: Sequence[Sampling],
    threshold: float,
) -> list[Divergence]:
    found = []
    for mode in modes[1:]:
        for prompt, one in enumerate(sampling):
            baseline = latest[modes[0]][prompt]
            position = first_difference(baseline, latest[mode][prompt])
            if position is None or one.trim_sensitive:
                continue
            # Equal tokens and unequal lengths have no gap to excuse them.
            gap = baseline.gaps[position] if position < len(baseline.tokens) else float("inf")
            found.append(Divergence(mode, prompt, position, gap, gap < threshold))
    return found


def _result(mode: str, speeds: Sequence[float], stats: EngineStats) -> ModeResult:
    return ModeResult(mode, median(speeds), min(speeds), max(speeds), tuple(speeds), stats.as_dict())


def _check(
    engines: Mapping[str, Engine],
    prompts: Sequence[Sequence[int]],
    sampling: Sequence[Sampling],
    rounds: int,
    warmup: int,
) -> None:
    if not engines or not prompts or rounds < 1 or warmup < 0 or len(sampling) != len(prompts):
        raise EngineError(
            "there is nothing to compare",
            arrived={
                "engines": len(engines),
                "prompts": len(prompts),
                "sampling": len(sampling),
                "rounds": rounds,
                "warmup": warmup,
            },
            allowed="at least one engine, prompt and round; one Sampling a prompt",
            remedy="pass prompts and at least one recorded round",
        )
    if len({replace(engine.options, draft_tokens=0) for engine in engines.values()}) > 1:
        raise EngineError(
            "the engines to compare differ in their sizes",
            arrived={mode: engine.options for mode, engine in engines.items()},
            allowed="equal EngineOptions but for draft_tokens; verifiers and drafters may differ",
            remedy="build every engine from one EngineOptions",
        )
    busy = [mode for mode, engine in engines.items() if not engine.idle]
    if busy:
        raise EngineError(
            "an engine to compare is busy",
            arrived=busy,
            allowed="idle engines",
            remedy="let run() finish first",
        )
