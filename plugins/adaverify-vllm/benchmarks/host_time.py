"""Host time of a step's decode path: vLLM's own manager and ours in one process, on vLLM's real classes.

Usage, where vLLM is installed: python plugins/adaverify-vllm/benchmarks/host_time.py [--json FILE]

Both managers are given the same confidences and prices; budgets and boundaries are compared before anything
is timed. What is timed is what the host does before the model's forward can start: get_num_tokens,
compact_batch and the host part of reallocate_drafts. The assignment itself is the device's work, so on this
machine, whose only device is the host, it is taken out of both: vLLM's compiled
`_assign_draft_token_budget` and our `BatchAssigner.assign`, which is one launch. What vLLM computes on the
device around its assignment stays in its time: each piece of it is a call of torch's that ours does not make.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import random
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent))

K = 7
REQUESTS = (16, 64, 256)
PARTS = ("get_num_tokens", "compact_batch", "reallocate_drafts", "record_confidences")
TIERS = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16), *range(544, 2049, 32)]
# How a step's batch differs from the one before: not at all, by one request, with a prompt's chunk beside it
# as before, with one of another size, with one in every other step, with one that no graph holds.
BATCHES = (
    "the same",
    "another request",
    "a prompt's chunk",
    "another chunk",
    "a chunk every other step",
    "another chunk past the graphs",
)
CHUNK, LARGE = 256, 3000
STEPS = 100


def prepare(vllm, maker, count):
    """Return a case whose budgets read the same confidences, with its requests' names."""
    import numpy as np
    from _vllm_host import Case

    made = Case(vllm, maker, slots=count + 2, drafts=K, most_tokens=8192)
    names = [f"request-{i}" for i in range(count + 1)]
    for name in names:
        made.add(name)
    made.add("prompt", prompt=4000, computed=0)
    made.price(lambda tokens: 10.0 + 0.05 * tokens, TIERS)
    drawn = np.random.default_rng(count).uniform(0.3, 0.99, (len(names), K)).astype(np.float32)
    made.know(names, drawn)
    return made, names


def check(found):
    """Require equal budgets and boundaries.

    Raises:
        SystemExit: they differ.
    """
    import torch

    theirs, ours = found
    same = ours.budget == theirs.budget and ours.total == theirs.total
    same = same and torch.equal(ours.logits, theirs.logits)
    same = same and torch.equal(ours.boundaries, theirs.boundaries)
    if not same or not 0 < ours.budget < K * len(ours.drafted):
        sys.exit(f"values differ, nothing was timed: budgets {theirs.budget} and {ours.budget}")


def chunk_of(kind, turn):
    """Return the tokens of the prompt's chunk in a step, 0 without one."""
    if kind == "a prompt's chunk":
        return CHUNK
    if kind == "a chunk every other step":
        return CHUNK + turn % 50 if turn % 2 else 0
    if kind == "another chunk":
        return CHUNK + turn % 50
    return LARGE + turn % 50 if kind.endswith("graphs") else 0


class Step:
    """What the scheduler and the model runner pass in one step."""

    def __init__(self, made, names, kind, turn):
        import numpy as np
        import torch

        left_out = turn % len(names) if kind == "another request" else len(names) - 1
        chosen = [name for i, name in enumerate(names) if i != left_out]
        self.tokens = dict.fromkeys(chosen, K + 1)
        self.drafts = {name: [-1] * K for name in chosen}
        self.names = list(chosen)
        drafted = [K] * len(chosen)
        if chunk := chunk_of(kind, turn):
            self.tokens["prompt"] = chunk
            self.names.append("prompt")
            drafted.append(0)
        self.drafted = np.array(drafted, dtype=np.int32)
        self.scheduled = np.array(list(self.tokens.values()), dtype=np.int32)
        self.offsets = np.concatenate([[0], np.cumsum(self.drafted + 1)]).astype(np.int32)
        slots = [made.state.req_id_to_index[name] for name in self.names]
        self.rows = torch.tensor(slots, dtype=torch.int64)
        self.batch = SimpleNamespace(
            num_reqs=len(slots), idx_mapping=self.rows, idx_mapping_np=np.array(slots)
        )


def once(manager, step, confidences):
    """Run one step and return the seconds of its parts."""
    clock = time.perf_counter
    begun = clock()
    manager.get_num_tokens(step.tokens, step.drafts)
    sized = clock()
    manager.compact_batch(step.drafted, step.scheduled, step.offsets)
    compacted = clock()
    manager.reallocate_drafts(step.names, step.rows)
    assigned = clock()
    manager.record_confidences(confidences, step.batch)
    return sized - begun, compacted - sized, assigned - compacted, clock() - assigned


def without_device_work(vllm, managers):
    """Take the assignment itself out of both managers."""
    vllm.adaptive._assign_draft_token_budget_compiled = lambda *_: None
    managers["adaverify"]._assigner.assign = lambda *_: None


def measure(vllm, count, rounds):
    """Return microseconds by batch, manager and part: median, lowest and highest of the rounds' medians."""
    import torch
    from _vllm_host import ours, theirs

    # Step times here are those of no model: learning from them would leave every price behind.
    plain = {"margin": 0.0, "hysteresis": 0.0, "explore_share": 0.0, "online": False}
    made = {
        "vllm": prepare(vllm, theirs(vllm), count),
        "adaverify": prepare(vllm, ours(vllm, **plain), count),
    }
    drafts = dict.fromkeys([f"request-{i}" for i in range(count)], K)
    check([case.step(*case.schedule(drafts)) for case, _ in made.values()])
    without_device_work(vllm, {name: case.manager for name, (case, _) in made.items()})
    confidences = torch.rand((count + 2, K), generator=torch.Generator().manual_seed(count)) * 0.7 + 0.3
    samples = {(kind, name): [] for kind in BATCHES for name in made}
    order = list(samples)
    for turn in range(rounds):
        random.Random(turn).shuffle(order)
        for kind, name in order:
            case, names = made[name]
            steps = [Step(case, names, kind, i) for i in range(STEPS)]
            found = [once(case.manager, step, confidences) for step in steps]
            samples[kind, name].append([1e6 * statistics.median(part) for part in zip(*found, strict=True)])
    return {
        kind: {
            name: {part: summary([row[i] for row in samples[kind, name]]) for i, part in enumerate(PARTS)}
            | {"decode path": summary([sum(row[:3]) for row in samples[kind, name]])}
            for name in made
        }
        for kind in BATCHES
    }


def summary(values):
    """Return median, lowest and highest."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def main():
    """Measure, print, and write the raw figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    chosen = parser.parse_args()
    if importlib.util.find_spec("vllm") is None:
        print("not measured: vLLM is not installed here")
        return
    import numpy
    import torch
    from _vllm_host import load

    from adaverify_vllm.seams import vllm_version

    vllm = load()
    original = vllm.adaptive._assign_draft_token_budget_compiled
    rows = {}
    for count in REQUESTS:
        vllm.adaptive._assign_draft_token_budget_compiled = original
        rows[count] = measure(vllm, count, chosen.rounds)
        for kind, found in rows[count].items():
            paths = [found[name]["decode path"]["median"] for name in ("vllm", "adaverify")]
            print(
                f"{count} requests, {kind}: {paths[0]:.1f} and {paths[1]:.1f} us, {paths[1] / paths[0]:.3f}"
            )
            for part in PARTS:
                print(f"  {part}: " + ", ".join(f"{n} {v[part]['median']:.1f}" for n, v in found.items()))
    setup = {
        "vllm": vllm_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "rounds": chosen.rounds,
        "steps a round": STEPS,
        "K": K,
    }
    if chosen.json:
        chosen.json.write_text(json.dumps({"setup": setup, "microseconds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
