"""The mask kernel compiles ahead of time, with 64-bit offsets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

CHILD = textwrap.dedent(
    """
    import json, re
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from adaverify_sm90_flatten.ops.mask_logits.launch import mask_kernel

    kernel = mask_kernel()
    kinds = {"logits": "*fp32", "lens": "*i32", "stride": "i32", "width": "i32", "COLUMNS": "constexpr"}
    assert list(kinds) == kernel.arg_names
    source = ASTSource(kernel, kinds, constexprs={(4,): 4096})
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    offsets = re.findall(r"tt.addptr %logits, [^:]*: !tt.ptr<f32>, (i\\d+)", made.asm["ttir"])
    print(json.dumps({"binary": len(made.asm["cubin"]), "offsets": offsets}))
    """
)


def test_the_mask_kernel_compiles_with_wide_offsets(tmp_path):
    """512 rows of 2^22 columns lie past 2^31 (DeepGEMM #425)."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["binary"] > 0
    assert report["offsets"] and set(report["offsets"]) == {"i64"}
