"""What captured steps launch: one graph each, and no call that waits but the one for results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from adaverify.bench.whole import periodic_prompts
from adaverify_contracts import WrongValueError
from adaverify_engine import Engine, Sampling

STEPS = 100
# Blocks of prompts tried until enough steps were seen.
_BLOCKS = 200
# Results are waited for by event, so the first of these is expected and the others are not.
COUNTED = (
    "cudaGraphLaunch",
    "cudaEventSynchronize",
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaMemcpy",
    "cudaLaunchKernel",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cudaLaunchKernelExC",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
)
FORBIDDEN = ("cudaStreamSynchronize", "cudaMemcpy")
_REMEDY = "do not trust captured steps here; no time was taken"


def check_launches(engine: Engine, requests: int, sampling: Sampling, steps: int = STEPS) -> dict[str, float]:
    """Run captured steps with synchronising calls an error and return the calls a step by name.

    Empty when the profiler records no runtime calls at all on this machine.

    Args:
        engine: captured, idle, on a CUDA device.
        requests: requests that decode together.
        sampling: for all of them.
        steps: steps to count.

    Raises:
        WrongValueError: a call synchronised, or a step is not one graph launch.
    """
    counts: Counter[str] = Counter()
    launched = 0
    for block in range(_BLOCKS):
        for prompt in periodic_prompts(requests, block):
            engine.add(prompt, sampling)
        done, calls = _profiled(engine, steps - launched)
        engine.run()
        counts.update(calls)
        launched += done
        if launched >= steps:
            break
    if not counts and launched >= steps:
        # The profiler sees no runtime calls in some containers; that says nothing about the steps.
        return {}
    require_launches(counts, launched, steps)
    return {name: round(counts[name] / launched, 3) for name in COUNTED if counts[name]}


def require_launches(counts: Mapping[str, int], launched: int, wanted: int) -> None:
    """Require one graph launch for each of ``launched`` steps, and nothing that waits.

    Raises:
        WrongValueError: lists what was counted.
    """
    waits = {name: counts[name] for name in FORBIDDEN if counts.get(name, 0)}
    graphs = counts.get("cudaGraphLaunch", 0)
    if launched < wanted or graphs != launched or waits:
        raise WrongValueError(
            "captured steps are not one graph launch each without a wait",
            arrived={"steps": launched, "graph launches": graphs, **waits},
            allowed=f"{wanted} steps or more, as many graph launches, none of {', '.join(FORBIDDEN)}",
            remedy=_REMEDY,
        )


def _profiled(engine: Engine, most: int) -> tuple[int, Counter[str]]:
    """Return how many steps were launched in a stretch of replays, and the runtime calls they made."""
    pipeline = engine.pipeline
    assert pipeline is not None  # noqa: S101 - the caller has asked
    # Prompts first, until steps are under way and one more has been read.
    while not engine.idle and not pipeline.under_way:
        engine.step()
    if engine.idle or any(event.finished is not None for event in engine.step()):
        return 0, Counter()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    before, read = pipeline.under_way, 0
    with torch.profiler.profile(activities=activities) as profile:
        with synchronising_is_an_error():
            while read < most and not engine.idle:
                known = engine.stats.steps
                try:
                    events = engine.step()
                except RuntimeError as error:
                    raise WrongValueError(
                        "a captured step made a synchronising call",
                        arrived=str(error),
                        allowed="none but the wait for the event behind its results",
                        remedy=_REMEDY,
                    ) from error
                read += engine.stats.steps - known
                if any(event.finished is not None for event in events):
                    break
        launched = read + pipeline.under_way - before
    calls = Counter({event.key: event.count for event in profile.key_averages() if event.key in COUNTED})
    return launched, calls


@contextmanager
def synchronising_is_an_error() -> Iterator[None]:
    """Make synchronising calls of torch raise within."""
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)
