"""Every kernel that the strategy and the adapter launch compiles for both chips, and its code names them."""

from __future__ import annotations

import textwrap

import pytest

CHILD = textwrap.dedent(
    """
    import json, re
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from adaverify_metadata._jit import load

    ROWS = dict(QUERY=8, ROWS=1, COLUMNS=512, ROW_STRIDE=512, WIDTH=512, PAGE=64, RATIO=1, CP_SIZE=1,
                CP_RANK=0, CP_INTERLEAVE=1, WHOLE_REQUEST=True)
    CASES = {
        "flatten": ("flatten", ROWS, "*fp32"),
        "head": ("head_heavy", dict(ROWS=512, SPLIT=256, ROW_GROUP=0, RUNS=True), "*fp32"),
        "paired": ("paired_units", dict(ROWS=512, SPLIT=256), "*fp32"),
        "newer": ("head_heavy", dict(ROWS=512, SPLIT=384, ROW_GROUP=4, RUNS=True), "*fp32"),
        "mask": ("mask_logits", dict(COLUMNS=4096), "*fp32"),
        "mask-bf16": ("mask_logits", dict(COLUMNS=4096), "*bf16"),
    }
    SCALARS = {"table_stride", "stride", "requests", "tokens", "rows", "width", "slots"}
    report = {}
    for name, (module, constants, logits) in CASES.items():
        kernel = getattr(load(f"adaverify_metadata.ops.{module}.kernel"), module + "_kernel")
        names = kernel.arg_names
        kinds = dict.fromkeys(names, "*i32") | dict.fromkeys(SCALARS & set(names), "i32")
        kinds |= dict.fromkeys(constants, "constexpr") | ({"logits": logits} if "logits" in names else {})
        places = {(names.index(a),): value for a, value in constants.items()}
        for arch in (100, 103):
            source = ASTSource(kernel, kinds, constexprs=places)
            made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": 4})
            target = re.findall(r"^[.]target (\\S+)", made.asm["ptx"], re.M)
            report[f"{name} {arch}"] = [len(made.asm["cubin"]), target]
    print(json.dumps(report))
    """
)


@pytest.fixture(scope="module")
def report(triton_compiler):
    """Compile once for both chips."""
    return triton_compiler.run(CHILD)


@pytest.mark.parametrize("architecture", [100, 103])
@pytest.mark.parametrize("name", ["flatten", "head", "paired", "newer", "mask", "mask-bf16"])
def test_a_kernel_compiles_and_names_its_target(report, name, architecture):
    size, target = report[f"{name} {architecture}"]
    assert size > 0
    assert target == [f"sm_{architecture}a"]
