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

sys.path.insert(0, str(Path(__file__).resolve().parent))

K = 7
REQUESTS = (16, 64, 256)
PARTS = ("get_num_tokens", "compact_batch", "reallocate_drafts", "record_confidences")
TIERS = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16), *range(544, 2049, 32)]


def prepare(vllm, maker, count):
    """Return a case whose budgets read the same confidences, and its step's arguments."""
    import numpy as np
    from _vllm_host import Case

    made = Case(vllm, maker, slots=max(count, 16), drafts=K, most_tokens=8192)
    names = [f"request-{i}" for i in range(count)]
    for name in names:
        made.add(name)
    made.price(lambda tokens: 10.0 + 0.05 * tokens, TIERS)
    confidences = np.random.default_rng(count).uniform(0.3, 0.99, (count, K)).astype(np.float32)
    made.know(names, confidences)
    return made, names, made.schedule(dict.fromkeys(names, K))


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
    if not same or not 0 < ours.budget < K * len(ours.names):
        sys.exit(f"values differ, nothing was timed: budgets {theirs.budget} and {ours.budget}")


def arguments(made, names, schedule):
    """Return what the model runner passes to the second and third call."""
    import numpy as np
    import torch

    tokens, drafts = schedule
    count = len(names)
    drafted = np.full(count, K, dtype=np.int32)
    scheduled = drafted + 1
    offsets = np.arange(count + 1, dtype=np.int32) * (K + 1)
    slots = [made.state.req_id_to_index[name] for name in names]
    return tokens, drafts, drafted, scheduled, offsets, torch.tensor(slots, dtype=torch.int64)


def once(made, names, given, confidences, batch):
    """Run one step and return the seconds of its parts."""
    tokens, drafts, drafted, scheduled, offsets, rows = given
    clock, manager = time.perf_counter, made.manager
    # The scheduler makes new dictionaries for every step, in an order of its own.
    tokens, drafts = dict(tokens), dict(drafts)
    begun = clock()
    manager.get_num_tokens(tokens, drafts)
    sized = clock()
    manager.compact_batch(drafted, scheduled, offsets)
    compacted = clock()
    manager.reallocate_drafts(names, rows)
    assigned = clock()
    manager.record_confidences(confidences, batch)
    return sized - begun, compacted - sized, assigned - compacted, clock() - assigned


def without_device_work(vllm, managers):
    """Take the assignment itself out of both managers."""
    vllm.adaptive._assign_draft_token_budget_compiled = lambda *_: None
    managers["adaverify"]._assigner.assign = lambda *_: None


def measure(vllm, count, rounds):
    """Return microseconds by manager and part: median, lowest and highest of the rounds' medians."""
    from types import SimpleNamespace

    import numpy as np
    import torch
    from _vllm_host import ours, theirs

    plain = {"margin": 0.0, "hysteresis": 0.0, "explore_share": 0.0}
    made = {
        "vllm": prepare(vllm, theirs(vllm), count),
        "adaverify": prepare(vllm, ours(vllm, **plain), count),
    }
    check([case.step(*schedule) for case, _, schedule in made.values()])
    without_device_work(vllm, {name: case.manager for name, (case, _, _) in made.items()})
    drawn = np.random.default_rng(count).uniform(0.3, 0.99, (count, K)).astype(np.float32)
    confidences = torch.from_numpy(drawn)
    samples = {name: [] for name in made}
    order = list(made)
    for _ in range(rounds):
        random.Random(len(samples["vllm"])).shuffle(order)
        for name in order:
            case, names, schedule = made[name]
            given = arguments(case, names, schedule)
            slots = given[-1].numpy()
            batch = SimpleNamespace(num_reqs=count, idx_mapping=given[-1], idx_mapping_np=slots)
            steps = [once(case, names, given, confidences, batch) for _ in range(200)]
            samples[name].append([1e6 * statistics.median(part) for part in zip(*steps, strict=True)])
    return {
        name: {part: summary([row[i] for row in rows]) for i, part in enumerate(PARTS)}
        | {"decode path": summary([sum(row[:3]) for row in rows])}
        for name, rows in samples.items()
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
        paths = [rows[count][name]["decode path"]["median"] for name in ("vllm", "adaverify")]
        print(f"{count} requests: {paths[0]:.1f} us and {paths[1]:.1f} us, ratio {paths[1] / paths[0]:.3f}")
        for part in PARTS:
            print(f"  {part}: " + ", ".join(f"{n} {v[part]['median']:.1f}" for n, v in rows[count].items()))
    setup = {
        "vllm": vllm_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "rounds": chosen.rounds,
        "steps a round": 200,
        "K": K,
    }
    if chosen.json:
        chosen.json.write_text(json.dumps({"setup": setup, "microseconds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
