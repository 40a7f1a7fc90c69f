"""``adaverify bench endtoend``: stages and cases, in an order that shares captures; what is there is kept."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from adaverify.bench.endtoend import ladders, paired
from adaverify.bench.endtoend.arms_stage import measure_arms
from adaverify.bench.endtoend.baseline import BodyGraphs
from adaverify.bench.endtoend.curve import measure_curve, table_of
from adaverify.bench.endtoend.deck import Deck
from adaverify.bench.endtoend.figures import draw
from adaverify.bench.endtoend.gaps import measure_gaps
from adaverify.bench.endtoend.ground import Ground, open_ground, require_settings
from adaverify.bench.endtoend.origins import Case, Origin, kept_words, require_steps
from adaverify.bench.endtoend.places import FOLDER, STORE
from adaverify.bench.endtoend.proof import prove_steps
from adaverify.bench.endtoend.shares import OURS, THEIRS, measure_shares
from adaverify.bench.endtoend.store import NotKeptError, Store
from adaverify.bench.endtoend.tables import result_of
from adaverify.bench.unfinished import UnfinishedError
from adaverify.hooks import STAGES
from adaverify_contracts import AdaverifyError, BenchmarkOptions, BenchmarkResult

PER_REQUESTS = ("curve", "arms", "shares")


def run(options: BenchmarkOptions) -> BenchmarkResult:
    """Run the stages that were asked for, each case after it was compared with the records, and keep each.

    A case that fails does not keep the others from being measured; the first failure is raised at the end.

    Raises:
        WrongValueError: a case is not what the records say; what was kept stays.
        UnfinishedError: everything was measured, and the plots cannot be drawn; has the result.
        AdaverifyError: the folder holds results of something else, or takes no more.
    """
    ground = open_ground(options)
    folder = FOLDER if options.folder is None else options.folder
    stages = options.stages or STAGES
    cases = list(_cases(ground, stages))
    store = Store(folder / STORE, ground.identity, shown_only=not cases)
    origin = Origin.of(options)
    if cases:
        require_settings(ground)
        require_steps(store, origin, [] if options.again else cases)
    from_file = bool(store.as_dict()["stages"])
    bench = _Bench(ground, store, origin)
    for words in ground.notes:
        bench.tell(words)
    failures = _measure(bench, cases)
    unplotted = _plot(bench, folder, from_file) if "plot" in stages else None
    if failures:
        raise failures[0]
    with _blaming(store, from_file):
        result = result_of(store, ground, origin, bench.fresh, unplotted)
    if unplotted is not None:
        raise UnfinishedError(unplotted, result)
    return result


def _measure(bench: _Bench, cases: list[Case]) -> list[Exception]:
    """Measure and keep what is not there; return what failed.

    Raises:
        NotKeptError: a case cannot be kept, so no other is measured.
    """
    options, store = bench.ground.options, bench.store
    failures: list[Exception] = []
    try:
        for done, (stage, case) in enumerate(cases):
            options.progress(done, len(cases), f"{stage} {case}")
            kept = store.get(stage, case)
            if kept is not None and not options.again:
                bench.tell(f"{stage} {case}: kept from before{kept_words(bench.origin, stage, kept)}")
                continue
            bench.tell(f"{stage} {case}")
            try:
                bench.keep(stage, case, bench.measure(stage, case))
            except NotKeptError:
                raise
            except (AdaverifyError, RuntimeError) as error:
                typed = isinstance(error, AdaverifyError)
                words = f"{type(error).__name__}: {error}" if typed else traceback.format_exc()
                bench.tell(f"{stage} {case} failed: {words}")
                failures.append(_without_frames(error))
                bench.close()
    finally:
        bench.close()
    return failures


def _plot(bench: _Bench, folder: Path, from_file: bool) -> AdaverifyError | None:
    """Draw what is kept; return what kept it from being drawn, which costs no figure."""
    try:
        with _blaming(bench.store, from_file):
            for path in draw(bench.store, folder):
                bench.tell(f"plot: {path}")
    except AdaverifyError as error:
        bench.tell(f"plot failed: {type(error).__name__}: {error}")
        return error
    return None


@contextmanager
def _blaming(store: Store, from_file: bool) -> Iterator[None]:
    """Blame the file for figures that cannot be shown, where this run did not measure all: it was edited.

    Raises:
        AdaverifyError: they cannot be shown.
    """
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        if not from_file:
            raise
        raise store.refused(f"figures that cannot be shown: {type(error).__name__}: {error}") from error


def _without_frames(error: Exception) -> Exception:
    """Return an error that no longer holds the frames it passed, and with them the model and its graphs."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


def _cases(ground: Ground, stages: tuple[str, ...]) -> Iterator[Case]:
    """Yield (stage, case), one number of requests after the other: its graphs serve all its stages."""
    for requests in ground.requests:
        for stage in PER_REQUESTS:
            if stage in stages:
                yield stage, str(requests)
    # These take minutes a size: several only where the stage was asked for.
    named = ground.options.requests if ground.options.stages else ()
    if "capture" in stages:
        for requests in named or (ladders.REQUESTS[ground.kind],):
            yield "capture", str(requests)
    if "paired" in stages:
        yield from (("paired", case) for case in paired.paired_cases(named, ground.kind))


class _Bench:
    """Holds the captured steps of one number of requests at a time."""

    def __init__(self, ground: Ground, store: Store, origin: Origin) -> None:
        self.ground, self.store, self.origin = ground, store, origin
        self.fresh: set[Case] = set()
        self._deck: Deck | None = None
        self._graphs: BodyGraphs | None = None
        self._begun = perf_counter()

    def tell(self, words: str) -> None:
        """Say a line of progress at once: a run that is cut off has said where it was."""
        sys.stderr.write(f"[{perf_counter() - self._begun:7.1f} s] {words}\n")
        sys.stderr.flush()

    def measure(self, stage: str, case: str) -> dict[str, Any]:
        """Return one case, measured now."""
        begun = perf_counter()
        if stage == "paired":
            self.close()
            requests, context = paired.parsed(case)
            value = paired.measure_paired(self.ground, requests, context)
        elif stage == "capture":
            self.close()
            value = ladders.measure_capture(self.ground, int(case))
        else:
            value = _PER_REQUESTS[stage](self, int(case))
        return {**value, "took_seconds": perf_counter() - begun}

    def keep(self, stage: str, case: str, value: dict[str, Any]) -> None:
        """Keep a case that was measured now, with what it was measured by."""
        self.store.keep(stage, case, {**value, "measured": self.origin.as_dict()})
        self.fresh.add((stage, case))

    def curve(self, requests: int) -> dict[str, Any]:
        """Return the cost curve; the bench keeps nothing else of it."""
        return measure_curve(self.deck(requests))

    def arms(self, requests: int) -> dict[str, Any]:
        """Return all arms."""
        return measure_arms(self.deck(requests), self.graphs(requests), self._curve_of(requests), self.tell)

    def shares(self, requests: int) -> dict[str, Any]:
        """Return equal budgets, the proof that a step is one launch, and the stretches between steps."""
        deck, measured = self.deck(requests), self._curve_of(requests)
        found = measure_shares(deck, measured)
        for budget, one in found["budgets"].items():
            beside = [f"{name} {one[name]['beside_model_us']:.0f} us" for name in (OURS, *THEIRS)]
            ratios = ", ".join(f"{one[name]['step_ratio']['median']:.4f}" for name in THEIRS)
            self.tell(f"budget {budget}: step ratios {ratios}, beside the model {', '.join(beside)}")
        gaps = measure_gaps(deck, table_of(deck, measured))
        if gaps is not None:
            self.tell(f"between steps: {gaps['gap_us']:.0f} us, longest {gaps['longest_gap_us']:.0f} us")
        return {**found, "gaps": gaps, "proof": prove_steps(deck)}

    def deck(self, requests: int) -> Deck:
        """Return captured steps of ``requests``; others are given up."""
        if self._deck is None or self._deck.requests != requests:
            self.close()
            begun = perf_counter()
            self._deck = Deck(self.ground, requests)
            taken, graphs = perf_counter() - begun, len(self._deck.verifier.tiers)
            self.tell(f"{graphs} whole steps of {requests} requests captured in {taken:.1f} s")
        return self._deck

    def graphs(self, requests: int) -> BodyGraphs:
        """Return the model alone, captured for ``requests``."""
        deck = self.deck(requests)
        if self._graphs is None:
            begun = perf_counter()
            self._graphs = BodyGraphs(deck)
            self._graphs.capture()
            taken = perf_counter() - begun
            self.tell(f"{len(deck.tiers)} sizes of the model alone captured in {taken:.1f} s")
        return self._graphs

    def close(self) -> None:
        """Give up what is captured."""
        self._graphs = None
        if self._deck is not None:
            self._deck.close()
            self._deck = None

    def _curve_of(self, requests: int) -> dict[str, Any]:
        kept = self.store.get("curve", str(requests))
        if kept is None:
            self.tell(f"curve {requests}: the arms need it")
            kept = self.measure("curve", str(requests))
            self.keep("curve", str(requests), kept)
        sizes = [point["tokens"] for point in kept["points"]]
        if sizes != list(self.deck(requests).tiers):
            raise self.store.refused(
                f"a curve of {requests} requests at other sizes than are captured: {sizes}"
            )
        return kept


_PER_REQUESTS: dict[str, Callable[[_Bench, int], dict[str, Any]]] = {
    "curve": _Bench.curve,
    "arms": _Bench.arms,
    "shares": _Bench.shares,
}
