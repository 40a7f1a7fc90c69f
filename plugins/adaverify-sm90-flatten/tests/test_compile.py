"""The gather compiles ahead of time, with 64-bit offsets."""

from __future__ import annotations

import textwrap

import pytest

CHILD = textwrap.dedent(
    """
    import json, re
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from adaverify_sm90_flatten.ops.gather_slots.launch import gather_kernel

    INTS, FLOATS = "*i32", "*fp32"
    CASES = {
        "gather": (
            gather_kernel(),
            [INTS, INTS, FLOATS, INTS, FLOATS],
            {"WORDS": 2048, "HEADS": 64},
            ["query", "weights", "slot_query", "slot_weights"],
        ),
    }
    report = {}
    for name, (kernel, types, constants, wide) in CASES.items():
        kinds = dict(zip(kernel.arg_names, [*types, *["constexpr"] * len(constants)], strict=True))
        places = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
        source = ASTSource(kernel, kinds, constexprs=places)
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
        ttir = made.asm["ttir"]
        offsets = {
            pointer: re.findall(rf"tt.addptr %{pointer}, [^:]*: !tt.ptr<[a-z0-9]+>, (i\\d+)", ttir)
            for pointer in wide
        }
        report[name] = {"binary": len(made.asm["cubin"]), "offsets": offsets}
    print(json.dumps(report))
    """
)


@pytest.fixture(scope="module")
def report(triton_compiler):
    """Compile once."""
    return triton_compiler.run(CHILD)


def test_the_kernel_compiles_with_wide_offsets(report):
    """262144 tokens of 64 heads x 128 bytes lie past 2^31 (DeepGEMM #425)."""
    name = "gather"
    assert report[name]["binary"] > 0
    for pointer, widths in report[name]["offsets"].items():
        assert widths and set(widths) == {"i64"}, pointer
