"""The kernel that reads the device's clock compiles ahead of time, without a device."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from adaverify_contracts import CapabilityError
from adaverify_engine.ops.stamp.launch import stamp

# A process of its own, since in this one the interpreter may stand in for the compiler.
CHILD = textwrap.dedent(
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from adaverify_engine.ops.stamp.kernel import stamp_kernel

    source = ASTSource(
        stamp_kernel,
        {"times": "*i64", "counts": "*i64", "place": "i32", "CAPACITY": "constexpr"},
        constexprs={(3,): 1024},
        attrs={(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]]},
    )
    print(triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1}).asm["ptx"])
    """
)


def test_a_row_of_times_starts_again_at_the_left():
    times, counts = torch.zeros((2, 3), dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    for _ in range(4):
        stamp(times, counts, 1)
    assert counts.tolist() == [0, 4]
    assert times[0].tolist() == [0, 0, 0]
    assert 0 < times[1, 1] <= times[1, 2] <= times[1, 0]


def test_a_clock_that_no_kernel_reads_is_refused():
    times = torch.zeros((1, 1), dtype=torch.int64, device="meta")
    with pytest.raises(CapabilityError, match="clock cannot be read"):
        stamp(times, times[0], 0)


def test_the_clock_is_read_once_and_written(tmp_path):
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("%globaltimer") == 1
    assert done.stdout.count("st.global") == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_replay_stamps_again():
    """Two places around a product in a graph: the clock moves between them, and from replay to replay."""
    device = torch.device("cuda")
    times = torch.zeros((4, 64), dtype=torch.int64, device=device)
    counts = torch.zeros(4, dtype=torch.int64, device=device)
    values = torch.randn(4096, 4096, device=device)

    def work():
        stamp(times, counts, 1)
        _ = values @ values
        stamp(times, counts, 2)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        work()
    counts.zero_()
    for _ in range(5):
        graph.replay()
    assert counts.tolist() == [0, 5, 5, 0]
    begins, ends = times[1, :5], times[2, :5]
    assert bool((ends > begins).all())
    assert bool((begins[1:] >= ends[:-1]).all())
