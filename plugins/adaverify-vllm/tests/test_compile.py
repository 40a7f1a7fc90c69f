"""The kernels compile ahead of time for Hopper, with 64-bit offsets into tables."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import textwrap

import pytest

CHILD = textwrap.dedent(
    """
    import json, re
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from adaverify_vllm.assignment.assigner import assign_kernel
    from adaverify_vllm.assignment.reference import HOPELESS
    from adaverify_vllm.rows.launch import rows_kernel

    INTS, LONGS, FLOATS = "*i32", "*i64", "*fp32"
    CASES = {
        "assign": (
            assign_kernel(),
            [FLOATS, LONGS, INTS, INTS, INTS, INTS, *["i32"] * 7],
            {"DRAFTS": 7, "POSITION_BITS": 3, "HOPELESS": HOPELESS, "BLOCK_REQUESTS": 64, "BLOCK_TAIL": 256},
            {"num_warps": 2, "enable_fp_fusion": False},
        ),
        "rows": (
            rows_kernel(),
            [*[INTS] * 6, *["i32"] * 3],
            {"REQUESTS": 64, "WIDTH": 2048, "COLUMNS": 1024},
            {"num_warps": 4},
        ),
    }
    report = {}
    for name, (kernel, types, constants, options) in CASES.items():
        kinds = dict(zip(kernel.arg_names, [*types, *["constexpr"] * len(constants)], strict=True))
        places = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
        source = ASTSource(kernel, kinds, constexprs=places)
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        ttir = made.asm["ttir"]
        offsets = {
            pointer: sorted(set(re.findall(rf"tt.addptr %{pointer}, [^:]*: !tt.ptr<[a-z0-9]+>, (i..)", ttir)))
            for pointer in ("table", "row_table")
        }
        ptx = made.asm["ptx"]
        fused = len(re.findall("fma.rn.f32", ptx))
        report[name] = {"binary": len(made.asm["cubin"]), "offsets": offsets, "fused": fused}
    print(json.dumps(report))
    """
)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Compile in a process of its own, since in this one the interpreter may stand in for the compiler."""
    try:
        importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("triton is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_rows_compile_with_wide_offsets(report):
    """A pool of tables may lie past 2^31 elements (DeepGEMM #425)."""
    assert report["rows"]["binary"] > 0
    assert report["rows"]["offsets"] == {"table": ["i64"], "row_table": ["i64"]}


def test_the_assignment_compiles_without_fused_arithmetic(report):
    """One rounding where the reference has two could move a survival by one, and with it a boundary."""
    assert report["assign"]["binary"] > 0
    assert report["assign"]["fused"] == 0
