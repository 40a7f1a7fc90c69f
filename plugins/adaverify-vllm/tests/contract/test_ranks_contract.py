"""Two processes in vLLM's own tensor-parallel group, over gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

RANK = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from _vllm_host import Case, load, ours

rank, address = int(sys.argv[2]), sys.argv[3]
vllm = load(rank, 2, address)
from adaverify_vllm.ranks import vllm_ranks

report = {"absent": vllm_ranks().absent()}
for agreement, wobble in (("rank0", 1e-3), ("digest", 0.0), ("digest", 0.2)):
    ranks = vllm_ranks()
    plain = {"margin": 0.0, "hysteresis": 0.0, "explore_share": 0.0, "online": False}
    made = Case(vllm, ours(vllm, ranks=ranks, agreement=agreement, **plain))
    names = [f"r{i}" for i in range(12)]
    for name in names:
        made.add(name)
    made.price(lambda tokens: (4.0 + 0.2 * tokens) * (1 + rank), [1, 2, 4, 8, 16, 24, 32, 48, 64, 96])
    rng = np.random.default_rng(3)
    totals = []
    for step in range(12):
        running = names[: 12 - step]
        drawn = np.clip(rng.uniform(0.3, 0.95, (12, 7)) - wobble * rank, 0, 1)[: len(running)]
        found = made.step(*made.schedule(dict.fromkeys(running, 7)))
        totals.append([found.total, int(found.boundaries[len(running)])])
        made.record(running, drawn)
    report[f"{agreement} {wobble}"] = [totals, dict(made.manager.counters)]
print(json.dumps(report))
"""


@pytest.mark.timeout(500)
def test_two_ranks_agree_while_their_confidences_differ(tmp_path):
    """Rank 0's budget on both; equal digests trim; different ones verify everything; nothing hangs."""
    sys.path.insert(0, str(BENCHMARKS))
    from _vllm_host import free_address

    address = free_address()
    command = [sys.executable, "-c", RANK, str(BENCHMARKS)]
    logs = [(tmp_path / f"rank{rank}.txt").open("w+") for rank in range(2)]
    started = [
        subprocess.Popen([*command, str(rank), address], stdout=subprocess.PIPE, stderr=logs[rank], text=True)
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=450)[0] for process in started]
    for process, log in zip(started, logs, strict=True):
        log.seek(0)
        assert process.returncode == 0, log.read()[-3000:]
        log.close()
    first, second = (json.loads(output.splitlines()[-1]) for output in outputs)
    assert first.pop("absent") == second.pop("absent") == []
    for case in first:
        assert first[case][0] == second[case][0], case
        assert all(total == end for total, end in first[case][0])
    full = [8 * (12 - step) for step in range(12)]
    for case in ("rank0 0.001", "digest 0.0"):
        assert any(total < most for (total, _), most in zip(first[case][0], full, strict=True))
        assert "ranks-disagree" not in first[case][1]
    assert first["digest 0.2"][1]["ranks-disagree"] > 0
