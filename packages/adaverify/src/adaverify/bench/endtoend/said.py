"""What a reader is told beside the figures: what was checked, on what they were measured, and by what."""

from __future__ import annotations

from collections.abc import Iterator

from adaverify.bench.endtoend.ground import Ground
from adaverify.bench.endtoend.origins import Case, Origin, origin_notes
from adaverify.bench.endtoend.store import Store
from adaverify_contracts import AdaverifyError

_ACCEPT = (
    "accepted drafts are min(admitted, recorded) for each request, as many are verified as planned, and the "
    "device stands where the host follows it to"
)
_CHECKED = {
    "curve": f"steps of three sizes, before any was timed: {_ACCEPT}",
    "arms": (
        f"every arm, before it was timed: {_ACCEPT}; forced steps, the oracles', admit exactly what they "
        "were told, in every step"
    ),
    "shares": f"every arrangement, in every round before it was timed: {_ACCEPT}",
    "paired": f"every strategy at every size, before it was timed: {_ACCEPT}",
    "capture": "every size of both ladders was captured; their steps are compared with no records",
}
_NOTES = {
    "arms": (
        "arms, ratio: tokens a second against the fixed arm of all K, round by round, median",
        (
            "published: waits for the confidences of the drafts it verifies before it launches; "
            "published-ahead: launched one step ahead, by those of the last step that ended"
        ),
        "both oracles know the outcome: oracle-budget ranks by raw confidence, oracle wastes nothing",
    ),
    "capture": ("capture: time of a whole ladder under step us, in its unit; ratio: adaptive over fixed",),
    "shares": (
        "shares, ratio: step time of that form of the published arrangement over ours, same budget",
        "shares, beside_model_us: from the end of a step's model to the begin of the next, by the device",
    ),
}


def checks_of(store: Store, fresh: set[Case]) -> Iterator[str]:
    """Yield what was checked of each stage that is there, in this run or when its cases were kept."""
    for stage, words in _CHECKED.items():
        now = [case for case in store.stage(stage) if (stage, case) in fresh]
        before = [case for case in store.stage(stage) if (stage, case) not in fresh]
        parts = [("in this run", now), ("when it was kept", before)]
        when = "; ".join(f"{', '.join(cases)} {word}" for word, cases in parts if cases)
        if when:
            yield f"{stage} ({when}): {words}"


def data_of(store: Store, ground: Ground) -> str:
    """Return what the figures were measured on."""
    source = ground.text.source
    paired = set(store.as_dict()["stages"]) & {"paired"}
    own = "; of paired, as each case names it" if paired else ""
    return (
        f"records of {source.get('model')} with {source.get('drafter')}, K {ground.text.drafts}, "
        f"{len(ground.text.accepted)} positions; a sparse mixture-of-experts decoder with random "
        f"weights, whose text is meaningless and whose cost is real; context {ground.context}{own}"
    )


def notes_of(
    store: Store, ground: Ground, origin: Origin, fresh: set[Case], unplotted: AdaverifyError | None
) -> Iterator[str]:
    """Yield what a reader of the figures should know."""
    for stage, notes in _NOTES.items():
        if store.stage(stage):
            yield from notes
    yield "drafting is recorded and costs nothing in any arm"
    yield "model: " + ", ".join(f"{name} {value}" for name, value in ground.model.as_dict().items())
    yield from origin_notes(store, origin, fresh)
    if store.unrecorded:
        yield f"not recorded with the results: {', '.join(store.unrecorded)}"
    if unplotted is not None:
        yield f"no or not every plot was drawn: {unplotted.problem}"
