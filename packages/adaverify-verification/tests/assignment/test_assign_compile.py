"""The assignment kernel compiles ahead of time for every target, without a device."""

from __future__ import annotations

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


def test_kernel_compiles_for_every_target(triton_compiler):
    """Every target builds it, in shared memory that each of them has, and no product is fused with a sum."""
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
    found = triton_compiler.run(COMPILE, [*cases, [*targets[0], 16, 1, True]])
    assert [row[0] for row in found[:-1]] == [case[1] for case in cases]
    for _, shared, fused, size in found[:-1]:
        assert shared <= 48 * 1024 and fused == 0 and size > 1000
    assert found[-1][2] > 0
