"""Steps of R requests over the records, priced by a cost table, once for each arm."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from adaverify_contracts import CostTableError, Limits, Plan, RecordsError, StepOutcome
from adaverify_replay.records import AcceptanceRecords
from adaverify_replay.simulate.arms import Arm, Planning, arm_names, make_arm
from adaverify_replay.simulate.clock import Clock
from adaverify_replay.simulate.cursors import Cursors
from adaverify_replay.simulate.result import ArmResult, Tally
from adaverify_verification import CostTable

WARMUP = 256
"""Steps before the first that counts: the default signal has 32 of them to get labels, and refits on."""
LEAST_STEPS = 256
_PAGE = 64
# Kernels count the tokens of a step in 32 bits.
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Scene:
    """What every arm meets alike.

    Attributes:
        records: the truth.
        table: measured step times; they are the time that passes and, online corrections aside, what plans
            read.
        requests: R.
        tiers: captured token counts, rising; a batch executes at the next one. Empty where steps run eagerly.
        context: KV length at the start of each sequence; as recorded when None.
        seed: of the order of the sequences.
        warmup: steps that do not count.
        tokens: tokens that are counted at least; one pass over the records when None. At least 256 steps
            count.
        bare: request counts of captured steps that draft nothing, rising; empty where there are none.
    """

    records: AcceptanceRecords
    table: CostTable
    requests: int
    tiers: tuple[int, ...] = ()
    context: int | None = None
    seed: int = 0
    warmup: int = WARMUP
    tokens: int | None = None
    bare: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        lowest = {"requests": 1, "context": 1, "seed": 0, "warmup": 0, "tokens": 1}
        for name, bound in lowest.items():
            value = getattr(self, name)
            optional = value is None and name in ("context", "tokens")
            if not optional and (not isinstance(value, int) or isinstance(value, bool) or value < bound):
                raise RecordsError(
                    f"the {name} of a simulation is out of range",
                    arrived=value,
                    allowed=f"an int >= {bound}",
                    remedy=f"choose {name} >= {bound}",
                )
        for ladder in (self.tiers, self.bare):
            _require_ladder(ladder)
        if not isinstance(self.table, CostTable):
            raise CostTableError(
                "a simulation has no step times",
                arrived=self.table,
                allowed="a CostTable",
                remedy="measure one with `adaverify profile`",
            )

    @property
    def limits(self) -> Limits:
        """The smallest limits that hold every step."""
        longest = int(self.records.lengths.max()) + self.records.draft_tokens
        begun = int(self.records.contexts.max()) if self.context is None else self.context
        return Limits(self.requests, self.records.draft_tokens, begun + longest + 1, _PAGE)

    @property
    def wanted(self) -> int:
        """Tokens that are counted at least."""
        return self.records.positions if self.tokens is None else self.tokens


def _require_ladder(tiers: tuple[int, ...]) -> None:
    listed = isinstance(tiers, tuple) and all(type(count) is int for count in tiers)
    if not listed or list(tiers) != sorted({*tiers}) or not all(1 <= count <= _MOST for count in tiers):
        raise RecordsError(
            "the tiers of a simulation are no ladder",
            arrived=tiers,
            allowed=f"a tuple of rising ints in 1 .. {_MOST}",
            remedy="pass captured token counts, or () for steps that run eagerly",
        )


def simulate(
    scene: Scene,
    arms: Iterable[str] | None = None,
    planning: Planning | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, ArmResult]:
    """Return what each arm does in a scene.

    All arms begin the same sequences in the same order and run until each has emitted as many tokens, so that
    they meet the same text. A step takes what the table says its executed tokens take, drafting included
    where drafts are scheduled.

    Args:
        scene: records, prices and sizes.
        arms: names of ``arm_names``; every one when None.
        planning: what managers are made of.
        progress: called as ``progress(done, total)`` after each arm.

    Raises:
        DescriptorError: there is no such arm.
        CalibrationError: the calibration does not fit.
    """
    names = tuple(arm_names(scene.records.draft_tokens) if arms is None else arms)
    planning = Planning() if planning is None else planning
    runs = [_Run(scene, name, planning) for name in names]
    found = {}
    for done, run in enumerate(runs, start=1):
        found[run.name] = run.result()
        if progress is not None:
            progress(done, len(runs))
    return found


class _Run:
    """One arm in one scene."""

    def __init__(self, scene: Scene, name: str, planning: Planning) -> None:
        self.name, self._scene = name, scene
        self._clock = Clock(scene.table, scene.tiers, scene.bare)
        order = np.random.default_rng(scene.seed).permutation(scene.records.sequences)
        self._cursors = Cursors(scene.records, order, scene.requests)
        self._arm: Arm = make_arm(
            name,
            scene.records.header,
            scene.limits,
            scene.table,
            scene.tiers,
            planning=planning,
            clock=self._clock,
            bare=scene.bare,
        )
        # What a host that launches one ahead has not read yet.
        self._unread: list[tuple[StepOutcome, Plan | None]] = []
        self._ahead = int(planning.lag > 0)

    def result(self) -> ArmResult:
        """Run to the end and return the totals."""
        warmup, tally = self._scene.warmup, Tally(self.name, self._scene.requests)
        for step in range(warmup):
            self._step(step, None)
        while tally.tokens < self._scene.wanted or tally.steps < LEAST_STEPS:
            self._step(warmup + tally.steps, tally)
        return tally.result(self._arm.counters)

    def _step(self, step: int, tally: Tally | None) -> None:
        batch = self._cursors.batch(self._scene.context)
        chosen = self._arm.choose(step, batch)
        drafted, admitted = chosen.drafted, chosen.admitted
        accepted = self._cursors.advance(admitted)
        seconds = self._clock.spent(batch, admitted, accepted, drafting=drafted > 0)
        outcome = StepOutcome(
            step=step,
            slots=batch.slots,
            generations=batch.generations,
            drafted=np.full(batch.requests, drafted),
            admitted=admitted,
            accepted=accepted,
            scores=batch.scores_of(drafted),
            learn=np.ones(batch.requests, dtype=bool),
            sampled=batch.sampled,
            emitted=batch.requests + int(accepted.sum()),
            seconds=seconds,
            keys=batch.sequences,
        )
        if tally is not None:
            executed = self._clock.executed(batch.requests + int(admitted.sum()), drafting=drafted > 0)
            tally.count(outcome, chosen.plan, executed, seconds)
        self._unread.append((outcome, chosen.plan))
        while len(self._unread) > self._ahead:
            self._arm.observe(*self._unread.pop(0))
