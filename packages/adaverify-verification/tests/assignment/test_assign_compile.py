"""The assignment kernel compiles ahead of time for every target, without a device."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

COMPILE = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from adaverify_verification.assignment.kernel import assign_kernel
from adaverify_verification.assignment.launch import COMPILE_OPTIONS, launch_for

pointers = ["scheduled", "kv_lens", "budget", "admitted", "query_start_loc", "seq_lens", "token_request",
            "token_offset"]
signature = {"confidences": "*fp32"} | {name: "*i32" for name in pointers}
signature |= {name: "i32" for name in ("confidence_stride", "requests", "padded_tokens")}
names = ("DRAFTS", "POSITION_BITS", "BLOCK_REQUESTS", "BLOCK_TAIL")
signature |= {name: "constexpr" for name in names}
found = []
for backend, arch, warp, requests, drafts, fusion in json.loads(sys.argv[1]):
    p = launch_for(requests, drafts)
    values = dict(zip(names, (drafts, p.position_bits, p.block_requests, p.block_tail)))
    compiled = triton.compile(
        ASTSource(assign_kernel, signature, values),
        target=GPUTarget(backend, arch, warp),
        options={"num_warps": p.num_warps} | ({} if fusion else COMPILE_OPTIONS),
    )
    text = compiled.asm["ptx" if backend == "cuda" else "amdgcn"]
    found.append([arch, compiled.metadata.shared, text.count("fma.rn.f32"), len(text)])
print(json.dumps(found))
"""


def compile_all(cases: list[list[object]], cache: str) -> list[list[object]]:
    """Compile in a child process, since Triton reads TRITON_INTERPRET when a kernel is imported."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = cache
    child = subprocess.run(
        [sys.executable, "-c", COMPILE, json.dumps(cases)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    result: list[list[object]] = json.loads(child.stdout)
    return result


def test_kernel_compiles_for_every_target(tmp_path):
    """Every target builds it, in shared memory that each of them has, and no product is fused with a sum."""
    pytest.importorskip("triton")
    targets = [
        ["cuda", 90, 32],
        ["cuda", 100, 32],
        ["cuda", 120, 32],
        ["hip", "gfx942", 64],
        ["hip", "gfx950", 64],
    ]
    cases = [[*target, 64, 7, False] for target in targets]
    cases += [[*targets[0], 1024, 15, False]]
    # The last case shows that the flag matters: with fusion allowed the quantisation is one instruction.
    found = compile_all([*cases, [*targets[0], 16, 1, True]], str(tmp_path))
    assert [row[0] for row in found[:-1]] == [case[1] for case in cases]
    for _, shared, fused, size in found[:-1]:
        assert shared <= 48 * 1024 and fused == 0 and size > 1000
    assert found[-1][2] > 0
