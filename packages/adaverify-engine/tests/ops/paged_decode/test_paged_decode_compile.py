"""The paged decode kernels compile ahead of time for every target and dtype, without a device."""

from __future__ import annotations

import pytest

TARGETS = [
    ["cuda", 90, 32],
    ["cuda", 100, 32],
    ["cuda", 120, 32],
    ["hip", "gfx942", 64],
    ["hip", "gfx950", 64],
]
# Dtype, whole, lines, block: bfloat16 as launched, in splits and with the combination; float32 whole and in a
# small tile, since exact float32 products are unrolled and take most of the compiler's time.
KINDS = [["bf16", False, 32, 64], ["fp32", True, 16, 16]]
# Float32 on the targets behind the first one runs with nox -s slow only: bfloat16 shows soon that they build.
SOON = [[target, KINDS[0]] for target in TARGETS] + [[TARGETS[0], KINDS[1]]]
LATER = [[target, KINDS[1]] for target in TARGETS[1:]]
CASES = [*SOON, *(pytest.param(case, marks=pytest.mark.slow) for case in LATER)]

# A process of its own, since in this one the interpreter stands in for the compiler.
CHILD = r"""
import json, os, re, sys
os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from adaverify_engine.ops.paged_decode.kernel import paged_decode_combine_kernel, paged_decode_kernel
from adaverify_engine.ops.paged_decode.launch import LOOK_BACK, PagedDecodeConfig

config = PagedDecodeConfig()
ATTEND = dict(SLOTS=1, GROUP=3, DIM=64, JOIN=8, BACK=LOOK_BACK, LINES=config.lines, LINE_BLOCKS=1, PAGE=16,
              SPLIT=config.split, BLOCK=config.block, WIDEN=False)
COMBINE = dict(SLOTS=1, DIM=64, SPLIT=config.split, CHUNK=8)
INTEGERS = {"row_lens", "row_token", "row_request", "token_slot", "table"}
FLOATS = {"partial", "extremes"}


def build(kernel, constants, dtype, target, warps):
    names = kernel.arg_names
    kinds = {}
    for name in names:
        if name in constants:
            kinds[name] = "constexpr"
        elif name in INTEGERS:
            kinds[name] = "*i32"
        elif name in FLOATS:
            kinds[name] = "*fp32"
        elif name in ("query", "keys", "values", "out"):
            kinds[name] = "*" + dtype
        else:
            kinds[name] = "fp32" if name == "scale" else "i32"
    aligned = [a for a in names if kinds[a][0] == "*" or (a.endswith("_stride") and a != "extremes_stride")]
    source = ASTSource(kernel, kinds, constexprs={(names.index(a),): v for a, v in constants.items()},
                       attrs={(names.index(a),): [["tt.divisibility", 16]] for a in aligned})
    stages = config.num_stages if warps > 1 else 2
    return triton.compile(source, target=GPUTarget(*target), options=dict(num_warps=warps, num_stages=stages))


report = {}
for target, (dtype, whole, lines, block) in json.loads(sys.argv[1]):
    binary = "cubin" if target[0] == "cuda" else "hsaco"
    constants = ATTEND | {"WHOLE": whole, "LINES": lines, "BLOCK": block}
    made = build(paged_decode_kernel, constants, dtype, target, config.num_warps)
    facts = {"binary": len(made.asm[binary]), "shared": made.metadata.shared}
    ttir = made.asm["ttir"]
    pattern = rf"tt.addptr [^:]*: tensor<{block}x1x!tt.ptr<\w+>>, tensor<{block}x1x(i\d+)>"
    facts["pool_offsets"] = re.findall(pattern, ttir)
    facts["table_offset"] = re.findall(r"tt.addptr %table, [^:]*: !tt.ptr<i32>, (i\d+)", ttir)
    facts["tf32"] = "tf32" in made.asm["ttgir"]
    facts["wide"] = len(re.findall(r"cp.async.cg.shared.global [^,]*, [^,]*, 0x10|ld.global.v4.b32",
                                   made.asm.get("ptx", "")))
    if not whole:
        both = build(paged_decode_combine_kernel, COMBINE, dtype, target, 1)
        facts["combine"] = len(both.asm[binary])
        block_of_drafts = constants | {"SLOTS": 7, "JOIN": 1}
        facts["seven"] = len(build(paged_decode_kernel, block_of_drafts, dtype, target, config.num_warps)
                             .asm[binary])
    report[f"{target[0]} {target[1]} {dtype}"] = facts
print(json.dumps(report))
"""


@pytest.fixture(scope="module")
def report(triton_compiler):
    """Compile both kernels for all cases that run soon once."""
    return triton_compiler.run(CHILD, SOON)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1][0]}-{case[0][1]}")
def test_the_kernels_compile_for_a_target(report, triton_compiler, case):
    """A binary comes out, in shared memory that every target has, and float32 stays exact."""
    target, kind = case
    found = report if case in SOON else triton_compiler.run(CHILD, [case])
    facts = found[f"{target[0]} {target[1]} {kind[0]}"]
    assert facts["binary"] > 0
    assert 0 < facts["shared"] <= 64 * 1024
    assert not facts["tf32"]
    if kind[0] == "bf16":
        assert facts["combine"] > 0
        assert facts["seven"] > 0


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
def test_pool_and_table_offsets_are_64_bit(report, kind):
    """Page times page size times token stride passes 2^31 in a pool of a few GiB (DeepGEMM #425)."""
    facts = report[f"cuda 90 {kind[0]}"]
    assert len(facts["pool_offsets"]) >= 2
    assert set(facts["pool_offsets"]) == {"i64"}
    assert facts["table_offset"] == ["i64"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
def test_keys_and_values_are_read_16_bytes_at_once(report, kind):
    """Strides that are multiples of 16 elements keep the loads as wide as the hardware's."""
    assert report[f"cuda 90 {kind[0]}"]["wide"] >= 4
