"""The paged prefill kernel compiles ahead of time for every target and dtype, without a device."""

from __future__ import annotations

import pytest

TARGETS = [
    ["cuda", 90, 32],
    ["hip", "gfx942", 64],
    ["cuda", 100, 32],
    ["cuda", 120, 32],
    ["hip", "gfx950", 64],
]
# Dtype, query heads a KV head, elements of a head: SmolLM2's in both dtypes, and the widest.
KINDS = [[dtype, group, dim] for group, dim in ((3, 64), (4, 128), (1, 256)) for dtype in ("bf16", "fp32")]
SOON = [[target, kind] for target in TARGETS[:2] for kind in KINDS[:2]]
# The others run with nox -s slow only: these show soon that the kernel builds.
LATER = [[target, kind] for target in TARGETS for kind in KINDS if [target, kind] not in SOON]
CASES = [*SOON, *(pytest.param(case, marks=pytest.mark.slow) for case in LATER)]
SHARED = {"hip": 64 * 1024, "cuda": 99 * 1024}
"""Bytes of shared memory that every target of the kind gives a program."""

# A process of its own, since in this one the interpreter stands in for the compiler.
CHILD = r"""
import json, os, re, subprocess, sys, tempfile
os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from adaverify_engine.ops.paged_prefill.kernel import paged_prefill_kernel
from adaverify_engine.ops.paged_prefill.launch import shape_of

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def build(dtype, group, dim, target):
    shape = shape_of(group, dim, DTYPES[dtype])
    constants = dict(GROUP=group, DIM=dim, LINES=shape.lines, PAGE=16, BLOCK=shape.block, WIDEN=False)
    names, kinds = paged_prefill_kernel.arg_names, {}
    for name in names:
        if name in constants:
            kinds[name] = "constexpr"
        elif name in ("tiles", "table"):
            kinds[name] = "*i32"
        elif name in ("query", "keys", "values", "out"):
            kinds[name] = "*" + dtype
        else:
            kinds[name] = "fp32" if name == "scale" else "i32"
    aligned = [a for a in names if kinds[a][0] == "*" or (a.endswith("_stride") and a != "table_stride")]
    source = ASTSource(paged_prefill_kernel, kinds,
                       constexprs={(names.index(a),): v for a, v in constants.items()},
                       attrs={(names.index(a),): [["tt.divisibility", 16]] for a in aligned})
    options = dict(num_warps=shape.num_warps, num_stages=shape.num_stages)
    return triton.compile(source, target=GPUTarget(*target), options=options), shape


def spilled(ptx):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "kernel.ptx")
        with open(path, "w") as file:
            file.write(ptx)
        command = [triton.knobs.nvidia.ptxas.path, "-v", "-arch=sm_90a", path, "-o", path + ".cubin"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return [int(count) for count in re.findall(r"(\d+) bytes spill", told)]


report = {}
for target, (dtype, group, dim) in json.loads(sys.argv[1]):
    made, shape = build(dtype, group, dim, target)
    binary = "cubin" if target[0] == "cuda" else "hsaco"
    facts = {"binary": len(made.asm[binary]), "shared": made.metadata.shared}
    ttir, ptx = made.asm["ttir"], made.asm.get("ptx", "")
    for name, lines in (("pool", shape.block), ("lines", shape.lines)):
        pattern = rf"tt.addptr [^:]*: tensor<{lines}x1x!tt.ptr<\w+>>, tensor<{lines}x1x(i\d+)>"
        facts[name] = re.findall(pattern, ttir)
    facts["table"] = re.findall(r"tt.addptr %table, [^:]*: !tt.ptr<i32>, (i\d+)", ttir)
    facts["tf32"] = "tf32" in made.asm["ttgir"]
    facts["wide"] = len(re.findall(r"cp.async.cg.shared.global [^,]*, [^,]*, 0x10|ld.global.v4.b32", ptx))
    facts["spilled"] = spilled(ptx) if target[:2] == ["cuda", 90] else []
    report[f"{target[0]} {target[1]} {dtype} {dim}"] = facts
print(json.dumps(report))
"""


@pytest.fixture(scope="module")
def report(triton_compiler):
    """Compile all cases that run soon once."""
    return triton_compiler.run(CHILD, SOON)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1][0]}-{case[1][2]}-{case[0][1]}")
def test_the_kernel_compiles_for_a_target(report, triton_compiler, case):
    """A binary comes out, in shared memory that every target has; nothing is spilled, float32 stays exact."""
    target, kind = case
    found = report if case in SOON else triton_compiler.run(CHILD, [case])
    facts = found[f"{target[0]} {target[1]} {kind[0]} {kind[2]}"]
    assert facts["binary"] > 0
    assert 0 < facts["shared"] <= SHARED[target[0]]
    assert not facts["tf32"]
    assert not any(facts["spilled"])
    assert len(facts["spilled"]) == (2 if target[:2] == ["cuda", 90] else 0)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_pool_query_and_table_offsets_are_64_bit(report, dtype):
    """Page times page size times token stride passes 2^31 in a pool of a few GiB (DeepGEMM #425)."""
    facts = report[f"cuda 90 {dtype} 64"]
    for name, least in (("pool", 2), ("lines", 2), ("table", 1)):
        assert len(facts[name]) >= least
        assert set(facts[name]) == {"i64"}, name


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_keys_and_values_are_read_16_bytes_at_once(report, dtype):
    """Strides that are multiples of 16 elements keep the loads as wide as the hardware's."""
    assert report[f"cuda 90 {dtype} 64"]["wide"] >= 4
