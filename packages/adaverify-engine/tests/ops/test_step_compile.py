"""Every kernel around a captured step compiles ahead of time for every target, without a device."""

from __future__ import annotations

import textwrap

import pytest

# Every target costs 4 to 5 seconds; all but one run with nox -s slow only.
SOON = [["cuda", 90, 32]]
LATER = [["cuda", 100, 32], ["cuda", 120, 32], ["hip", "gfx942", 64], ["hip", "gfx950", 64]]
TARGETS = [*SOON, *(pytest.param(target, marks=pytest.mark.slow) for target in LATER)]
KERNELS = ["gather", "chunk", "row", "advance", "lookup", "gather recorded", "accept recorded", "store"]

# A process of its own, since in this one the interpreter may stand in for the compiler.
CHILD = textwrap.dedent(
    """
    import json, re, sys
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from adaverify_engine.ops.advance.kernel import advance_kernel
    from adaverify_engine.ops.gather_rows.kernel import gather_rows_kernel
    from adaverify_engine.ops.lookup.kernel import lookup_kernel
    from adaverify_engine.ops.pick.kernel import chunk_kernel, row_kernel
    from adaverify_engine.ops.recorded.kernel import accept_recorded_kernel, gather_recorded_kernel
    from adaverify_engine.ops.store_kv.kernel import store_kv_kernel
    from adaverify_engine.ops.store_kv.launch import WARPS

    CASES = {
        "gather": (
            gather_rows_kernel,
            dict(COLUMNS=1032, DRAFTS=7, WIDTH=2048, BLOCK_DRAFTS=8, BLOCK_WIDTH=1024, DRAFTING=True),
            4,
        ),
        "chunk": (chunk_kernel, dict(CHUNKS=12, CHUNK=4096), 8),
        "row": (row_kernel, dict(CHUNKS=12, BLOCK_CHUNKS=16, CHUNK=4096), 8),
        "advance": (advance_kernel, dict(MEMORY=0.85, DRAFTS=7, BLOCK=16), 1),
        "lookup": (
            lookup_kernel, dict(DRAFTS=7, BLOCK_DRAFTS=16, BLOCK=256, LONGEST=16, OCCURRENCES=8), 8
        ),
        "gather recorded": (
            gather_recorded_kernel,
            dict(DRAFTS=7, WIDTH=2048, BLOCK_DRAFTS=8, BLOCK_WIDTH=1024),
            4,
        ),
        "accept recorded": (
            accept_recorded_kernel, dict(START=2048, BOUND=2559, DRAFTS=7, BLOCK=8), 1
        ),
        "store": (store_kv_kernel, dict(HEADS=3, DIM=64, BLOCK_HEADS=4, BLOCK_DIM=64), WARPS),
    }
    SCALARS = {"logits_stride", "vocabulary", "positions", "history_stride", "pool", "key_stride",
               "key_head_stride", "value_stride", "value_head_stride"}
    HALVES = {"key", "value", "keys", "values"}
    REALS = {"logits", "temperature", "top_p", "chunk_best", "chunk_second", "gaps", "hits", "trials",
             "scores", "out_gap", "out_gaps", "row_scores", "out_scores"}
    WIDE = {"noise", "chunk_mass"}
    LONG = {"certain", "row_drafts", "slots", "row_slots"}
    report = {}
    for name, (kernel, constants, warps) in CASES.items():
        kinds = {
            a: "constexpr" if a in constants else "i32" if a in SCALARS
            else "*fp64" if a in WIDE else "*i64" if a in LONG else "*bf16" if a in HALVES
            else "*fp32" if a in REALS else "*i32"
            for a in kernel.arg_names
        }
        aligned = [i for i, a in enumerate(kernel.arg_names) if kinds[a][0] == "*" or a in SCALARS]
        for backend, arch, warp in json.loads(sys.argv[1]):
            source = ASTSource(
                kernel, kinds, constexprs={(kernel.arg_names.index(a),): v for a, v in constants.items()},
                attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
            )
            made = triton.compile(source, target=GPUTarget(backend, arch, warp), options={"num_warps": warps})
            rows = r"tt.addptr %(?:logits|history|noise|tables)[_0-9]*, [^:]*: !tt.ptr<f?i?[0-9]+>, (i[0-9]+)"
            report[f"{name} {backend} {arch}"] = {
                "binary": len(made.asm["cubin" if backend == "cuda" else "hsaco"]),
                "shared": made.metadata.shared,
                "wide": made.asm.get("ptx", "").count("ld.global.v4.b32"),
                "offsets": re.findall(rows, made.asm["ttir"]),
                "stack": "local_depot" in made.asm.get("ptx", ""),
            }
    print(json.dumps(report))
    """
)


@pytest.fixture(scope="module")
def report(triton_compiler):
    """Compile all kernels for the first target once."""
    return triton_compiler.run(CHILD, SOON)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target[1]))
def test_every_kernel_compiles_for_a_target(report, triton_compiler, target):
    """A binary comes out, within the shared memory that every target has."""
    found = report if target in SOON else triton_compiler.run(CHILD, [target])
    for kernel in KERNELS:
        facts = found[f"{kernel} {target[0]} {target[1]}"]
        assert facts["binary"] > 0
        assert facts["shared"] <= 48 * 1024


@pytest.mark.parametrize("kernel", ["gather", "chunk", "row", "lookup", "gather recorded"])
def test_row_offsets_are_64_bit_in_the_compiled_kernel(report, kernel):
    """Token times vocabulary, and slot times history length, overflow 32 bits on large steps."""
    facts = report[f"{kernel} cuda 90"]
    assert facts["offsets"]
    assert set(facts["offsets"]) == {"i64"}


def test_logits_are_read_16_bytes_at_a_time(report):
    """What the launch parameters were chosen for: four loads in flight a thread."""
    assert report["chunk cuda 90"]["wide"] >= 4
    assert not report["chunk cuda 90"]["stack"]
