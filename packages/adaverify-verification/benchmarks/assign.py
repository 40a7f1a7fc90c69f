"""Assignment and relay on an accelerator: values first, then times, as JSON on standard output.

Run with the package sources of contracts and verification on PYTHONPATH; needs torch with CUDA, Triton and
NumPy:

    python packages/adaverify-verification/benchmarks/assign.py [--rounds 200]

Gated by tests/assignment/test_assign.py: no time is printed before the kernel equals the reference here too.
GPU times are medians over events with the queue kept full in front of them; the cache is warm; confidences
are uniform ** 0.3 (mean 0.77) and budgets uniform over what is scheduled.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton

from adaverify_contracts import Limits, StepOutcome
from adaverify_verification.assignment import Assigner, Assignment
from adaverify_verification.assignment.reference import assign_reference
from adaverify_verification.relay import make_relay
from adaverify_verification.signals import builtin_signals

DRAFTS = 7
SIZES = (1, 16, 64, 256, 512)
DEVICE = torch.device("cuda")
# Some 0.5 ms at 2 GHz: longer than the host needs to enqueue what is timed.
FILL_CYCLES = 1_000_000
GRAPH_REPEATS = 20


def make_case(requests: int, drafts: int, seed: int, levels: int | None = None) -> list[torch.Tensor]:
    """Return confidences, scheduled, kv_lens and budget on the device; ``levels`` makes ties."""
    generator = torch.Generator().manual_seed(seed)
    confidences = torch.rand(requests, drafts, generator=generator) ** 0.3
    if levels:
        confidences = torch.ceil(confidences * levels) / levels
        confidences[0, 0] = float("nan")
    scheduled = torch.full((requests,), drafts, dtype=torch.int32)
    if requests > 4:
        scheduled[1], scheduled[2], scheduled[-1] = 0, drafts // 2, -1
    kv_lens = torch.randint(1, 4000, (requests,), generator=generator, dtype=torch.int32)
    total = int(scheduled.clamp(min=0).sum())
    budget = torch.randint(0, total + 1, (1,), generator=generator, dtype=torch.int32)
    return [tensor.to(DEVICE) for tensor in (confidences, scheduled, kv_lens, budget)]


def require_equal(found: Assignment, case: list[torch.Tensor], tokens: int, what: str) -> None:
    """Stop with the field's name when an integer differs from the reference."""
    for name, expected in assign_reference(*case, tokens)._asdict().items():
        value = getattr(found, name)
        if not torch.equal(value, expected):
            wrong = int((value != expected).sum())
            raise SystemExit(
                f"{what}: {name} differs from the reference in {wrong} of {value.numel()} values"
            )


def check_values() -> int:
    """Compare the kernel with the reference over sizes, ties and budgets; return how often."""
    count = 0
    for requests, drafts in [(size, DRAFTS) for size in SIZES] + [(1024, 15), (5, 1), (3, 0)]:
        assigner = Assigner(Limits(requests, drafts, 8192, 64), DEVICE, backend="triton")
        tokens = requests * (drafts + 1)
        for seed in range(12):
            case = make_case(requests, drafts, seed, levels=(None, 2, 5)[seed % 3] if drafts else None)
            if seed == 3:
                case[3].fill_(10**6)
            for buffer in assigner.buffers.values():
                buffer.fill_(-7777)
            require_equal(assigner.assign(*case, tokens), case, tokens, f"{requests} x {drafts}, seed {seed}")
            count += 1
    return count


def capture(run: Callable[[], Any], repeats: int) -> torch.cuda.CUDAGraph:
    """Warm up on a side stream and capture ``repeats`` calls."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            run()
    return graph


def check_replay(requests: int) -> int:
    """Capture once, replay with other confidences and budgets; return the number of comparisons."""
    assigner = Assigner(Limits(requests, DRAFTS, 8192, 64), DEVICE, backend="triton")
    tokens = requests * (DRAFTS + 1)
    static = make_case(requests, DRAFTS, 0)
    kept: list[Assignment] = []
    graph = capture(lambda: kept.append(assigner.assign(*static, tokens)), 1)
    for seed in range(1, 9):
        case = make_case(requests, DRAFTS, seed, levels=3 if seed % 2 else None)
        for target, source in zip(static, case, strict=True):
            target.copy_(source)
        graph.replay()
        require_equal(kept[-1], case, tokens, f"replay of {requests}, seed {seed}")
    return 8


def torch_formulation(case: list[torch.Tensor], budget: int, tokens: int) -> Callable[[], Any]:
    """Return the obvious formulation: products, topk with a host budget, scatter, cumsum, row maps."""
    confidences, scheduled, kv_lens, _ = case
    requests, drafts = confidences.shape
    position = torch.arange(drafts, device=DEVICE)
    token = torch.arange(tokens, device=DEVICE, dtype=torch.int32)

    def run() -> Any:
        survival = torch.cumprod(confidences.nan_to_num(0.0).clamp(0, 1), dim=1)
        survival = survival.masked_fill(position >= scheduled[:, None], -1.0)
        best = torch.topk(survival.flatten(), budget).indices
        admitted = torch.zeros(requests, dtype=torch.int32, device=DEVICE)
        admitted.scatter_add_(0, best // max(drafts, 1), torch.ones_like(best, dtype=torch.int32))
        lens = torch.where(scheduled >= 0, admitted + 1, 0)
        starts = torch.nn.functional.pad(lens.cumsum(0, dtype=torch.int32), (1, 0))
        owner = torch.searchsorted(starts[1:], token, right=True, out_int32=True)
        inside = token < starts[-1]
        offset = token - starts[owner.clamp(max=requests - 1)]
        seq_lens = torch.where(scheduled >= 0, kv_lens + lens, 0)
        return seq_lens, torch.where(inside, owner, -1), torch.where(inside, offset, -1)

    return run


def gpu_us(run: Callable[[], Any], rounds: int) -> float:
    """Return the median device time of one call in us, the queue kept full before it."""
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(FILL_CYCLES)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return round(statistics.median(times), 2)


def host_us(run: Callable[[], Any], rounds: int) -> float:
    """Return the median host time of one call in us on an idle queue."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e6)
    return round(statistics.median(times), 2)


def time_assignment(requests: int, rounds: int) -> dict[str, Any]:
    """Return times of the kernel and of the torch formulation, interleaved three times, medians."""
    assigner = Assigner(Limits(requests, DRAFTS, 8192, 64), DEVICE, backend="triton")
    tokens = requests * (DRAFTS + 1)
    case = make_case(requests, DRAFTS, 1)

    def ours() -> Assignment:
        return assigner.assign(*case, tokens)

    theirs = torch_formulation(case, int(case[3]), tokens)
    our_graph, their_graph = capture(ours, GRAPH_REPEATS), capture(theirs, GRAPH_REPEATS)
    result: dict[str, list[float]] = {}
    for _ in range(3):
        for name, value in (
            ("gpu_us_in_graph", gpu_us(our_graph.replay, rounds) / GRAPH_REPEATS),
            ("torch_gpu_us_in_graph", gpu_us(their_graph.replay, rounds) / GRAPH_REPEATS),
            ("gpu_us_launched", gpu_us(ours, rounds)),
            ("torch_gpu_us_launched", gpu_us(theirs, rounds)),
            ("host_us", host_us(ours, rounds)),
            ("torch_host_us", host_us(theirs, rounds)),
        ):
            result.setdefault(name, []).append(value)
    medians = {name: round(statistics.median(values), 2) for name, values in result.items()}
    return {"requests": requests, "draft_tokens": DRAFTS, "budget": int(case[3]), **medians}


def time_relay(requests: int, rounds: int) -> dict[str, Any]:
    """Return host times of publish and latest while the device is busy, and whether anything synchronised."""
    relay = make_relay(Limits(requests, DRAFTS, 8192, 64), DEVICE)
    slots, generations = np.arange(requests), np.zeros(requests, np.int64)
    confidences = torch.rand(requests, DRAFTS, device=DEVICE)
    publish, latest = [], []
    step = 0
    for _ in range(rounds):
        torch.cuda.synchronize()
        torch.cuda._sleep(20 * FILL_CYCLES)
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(2):
            start = time.perf_counter()
            relay.publish(step, slots, generations, confidences)
            between = time.perf_counter()
            relay.latest(at_most=step - 1)
            latest.append((time.perf_counter() - between) * 1e6)
            publish.append((between - start) * 1e6)
            step += 1
        torch.cuda.set_sync_debug_mode("default")
        if torch.cuda.current_stream().query():
            raise SystemExit("the relay waited: the busy queue in front of it is empty")
        confidences.uniform_()
    relay.publish(step, slots, generations, confidences)
    kept = confidences.clone()
    confidences.fill_(-1.0)
    torch.cuda.synchronize()
    snapshot = relay.latest()
    if (
        snapshot is None
        or snapshot.step != step
        or not np.array_equal(snapshot.confidences, kept.cpu().numpy())
    ):
        raise SystemExit("the relay's newest snapshot is not what was published")
    return {
        "requests": requests,
        "publish_host_us": round(statistics.median(publish), 2),
        "publish_host_us_p90": round(float(np.quantile(publish, 0.9)), 2),
        "latest_host_us": round(statistics.median(latest), 2),
        "dropped": relay.dropped,
    }


def check_no_sync(requests: int) -> dict[str, Any]:
    """Run signals, assignment and relay under sync debug mode; return device allocations made."""
    limits = Limits(requests, DRAFTS, 8192, 64)
    assigner = Assigner(limits, DEVICE, backend="triton")
    relay = make_relay(limits, DEVICE)
    case = make_case(requests, DRAFTS, 1)
    scores, slots = torch.randn(requests, DRAFTS, device=DEVICE), torch.arange(requests, device=DEVICE)
    signals = {d.name: d.factory(limits, DEVICE) for d in builtin_signals()}
    full = np.full(requests, DRAFTS)
    outcome = StepOutcome(
        0,
        np.arange(requests),
        np.zeros(requests, np.int64),
        full,
        full,
        np.full(requests, 3),
        np.zeros((requests, DRAFTS), np.float32),
        np.ones(requests, bool),
        np.zeros(requests, bool),
        0,
        None,
    )

    def step(number: int) -> None:
        for signal in signals.values():
            confidences = signal.confidences(scores, slots)
            relay.publish(number, np.arange(requests), np.zeros(requests, np.int64), confidences)
            assigner.assign(confidences, *case[1:], requests * (DRAFTS + 1))
            relay.latest()

    for number in range(3):
        step(number)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    for number in range(3, 20):
        step(number)
    allocated = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    for signal in signals.values():
        for _ in range(17):
            signal.learn(outcome)
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    return {"requests": requests, "device_allocations": allocated, "synchronised": False}


def clocks() -> str:
    """Return SM and memory clocks as found, or why they are unknown."""
    query = ["nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,power.draw", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as cause:
        return f"unknown: {type(cause).__name__}"


def main() -> None:
    """Check, then time, then print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    compared = check_values() + sum(check_replay(size) for size in SIZES)
    report = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "clocks_before": clocks(),
        "compared_with_reference": compared,
        "no_sync": [check_no_sync(size) for size in (16, 256)],
        "assignment": [time_assignment(size, rounds) for size in SIZES],
        "relay": [time_relay(size, max(rounds // 4, 10)) for size in (16, 256)],
        "clocks_after": clocks(),
    }
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
