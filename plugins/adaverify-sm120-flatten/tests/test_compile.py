"""The strategy's kernel compiles at the very launch that the strategy uses, and its code names the chip."""

from __future__ import annotations

import textwrap

import pytest

# A process of its own, since elsewhere the interpreter stands in for the compiler.
CHILD = textwrap.dedent(
    """
    import json, re
    import torch, triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from adaverify_contracts import Limits
    from adaverify_metadata._jit import load
    from adaverify_metadata.ops.flatten.launch import flatten_constants
    from adaverify_sm120_flatten.hooks import launch_config

    config = launch_config()
    limits = Limits(max_requests=64, draft_tokens=7, max_model_len=131065, page_size=64)
    table = torch.zeros(1, limits.table_width, dtype=torch.int32)
    constants = flatten_constants(limits, config, {"block_table": table})
    kernel = load("adaverify_metadata.ops.flatten.kernel").flatten_kernel
    names = kernel.arg_names
    kinds = dict.fromkeys(names, "*i32") | dict.fromkeys(("table_stride", "requests", "tokens"), "i32")
    kinds |= dict.fromkeys(constants, "constexpr")
    places = {(names.index(name),): value for name, value in constants.items()}
    report = {}
    for target in (("cuda", 120, 32),):
        made = triton.compile(
            ASTSource(kernel, kinds, constexprs=places),
            target=GPUTarget(*target),
            options={"num_warps": config.num_warps},
        )
        report[str(target[1])] = {
            "binary": len(made.asm["cubin"]),
            "target": re.findall(r"^[.]target (\\S+)", made.asm["ptx"], re.M),
            "threads": re.findall(r"[.]reqntid (\\d+)", made.asm["ptx"], re.M),
        }
    print(json.dumps(report))
    """
)


@pytest.fixture(scope="module")
def report(triton_compiler):
    """Compile once for every chip that the strategy accepts."""
    return triton_compiler.run(CHILD)


def test_the_kernel_compiles_and_names_its_chip(report):
    """Four warps of 32 threads."""
    assert report["120"]["binary"] > 0
    assert report["120"]["target"] == ["sm_120a"]
    assert report["120"]["threads"] == ["128"]
