"""The sparse decoder's kernels compile ahead of time at its default sizes, without a device."""

from __future__ import annotations

import textwrap

import pytest

# Attention's launch is for this target's shared memory and matrix instructions; another needs its own.
TARGETS = [["cuda", 90, 32]]
KERNELS = ["place", "store", "queries", "select", "select-widest", "attend", "attend-split", "attend-all"]
KERNELS += ["combine", "route", "dispatch", "gated", "join", "join-routed"]

# A process of its own, since in this one the interpreter may stand in for the compiler.
CHILD = textwrap.dedent(
    """
    import json, pathlib, re, subprocess, sys, tempfile
    import triton
    import triton.backends.nvidia as nvidia
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from adaverify_engine.sparse_moe import SparseMoeSizes
    from adaverify_engine.sparse_moe.ops.attend_selected import kernel as attend, launch as attend_launch
    from adaverify_engine.sparse_moe.ops.gated import kernel as gated, launch as gated_launch
    from adaverify_engine.sparse_moe.ops.join_residual import kernel as join, launch as join_launch
    from adaverify_engine.sparse_moe.ops.place_tokens import kernel as place, launch as place_launch
    from adaverify_engine.sparse_moe.ops.route_tokens import kernel as route, launch as route_launch
    from adaverify_engine.sparse_moe.ops.select_entries import kernel as select, launch as select_launch
    from adaverify_engine.sparse_moe.ops.shape_queries import kernel as queries, launch as queries_launch
    from adaverify_engine.sparse_moe.ops.store_entries import kernel as store, launch as store_launch

    S, how = SparseMoeSizes(), attend_launch.AttendLaunch()
    FACTORS = dict(E4M3_MAX=448.0, AMAX_FLOOR=1e-4)
    def attending(splits, listed):
        return dict(HEADS=S.heads, LINES=S.heads, LATENT=S.latent, ROPE=S.rope, PAGE=64, SELECTED=S.selected,
                    SPLITS=splits, SPAN=S.selected // splits, BLOCK_SPAN=S.selected // splits,
                    BLOCK=how.block, LISTED=listed, WIDEN=False)
    CASES = {
        "place": (place.place_tokens_kernel, dict(RATIO=4, PAGE=64, VOCABULARY=S.vocabulary,
                  POSITION_STEP=7919, REQUEST_STEP=104729, BLOCK=place_launch.BLOCK), 1),
        "store": (store.store_entries_kernel, FACTORS | dict(RANK=S.query_rank, BLOCK_RANK=1024,
                  LATENT=S.latent, ROPE=S.rope, INDEX=S.index_dim, BLOCK_PLAIN=64, PAGE=64, EPSILON=1e-6),
                  store_launch.WARPS),
        "queries": (queries.shape_queries_kernel, FACTORS | dict(HEADS=S.heads, KEY=S.key,
                    INDEX_HEADS=S.index_heads, INDEX=S.index_dim, ROPE=S.rope, BLOCK_PLAIN=64,
                    GROUP=queries_launch.GROUP), queries_launch.WARPS),
        "attend": (attend.attend_selected_kernel, attending(1, True), how.num_warps),
        "attend-split": (attend.attend_selected_kernel, attending(8, True), how.num_warps),
        "attend-all": (attend.attend_selected_kernel, attending(2, False), how.num_warps),
        "combine": (attend.combine_selected_kernel, dict(HEADS=S.heads, LATENT=S.latent, SPLITS=8), 4),
        "select": (select.select_entries_kernel, dict(SELECTED=S.selected, BLOCK=2048), 4),
        "select-widest": (select.select_entries_kernel, dict(SELECTED=S.selected, BLOCK=select_launch.WIDEST),
                         select_launch.MOST_WARPS),
        "route": (route.route_kernel, dict(EXPERTS=S.experts, BLOCK=256, ACTIVE=S.active_experts,
                  BLOCK_ACTIVE=8, LOCAL=S.local_experts), route_launch.ROUTE_WARPS),
        "dispatch": (route.dispatch_kernel, dict(HIDDEN=S.hidden, BLOCK=route_launch.COPY_BLOCK,
                     ACTIVE=S.active_experts, LOCAL=S.local_experts, BLOCK_LOCAL=64),
                     route_launch.COPY_WARPS),
        "gated": (gated.gated_kernel, dict(SHARED=S.shared_width, ROUTED=S.expert_width,
                  LOCAL=S.local_experts, BLOCK=gated_launch.BLOCK), gated_launch.WARPS),
        "join": (join.join_residual_kernel, dict(HIDDEN=S.hidden, BLOCK=4096, ACTIVE=0, EPSILON=1e-6),
                 join_launch.WARPS),
        "join-routed": (join.join_residual_kernel, dict(HIDDEN=S.hidden, BLOCK=4096, ACTIVE=6,
                        EPSILON=1e-6), join_launch.WARPS),
    }
    INTEGERS = {"token_request", "token_offset", "kv_lens", "table", "ids", "position", "visible",
                "token_slot", "lens", "picked", "experts", "ranks", "counts", "ends", "places"}
    LONG, REALS = {"cell", "cells"}, {"scores", "cosine", "sine", "scales", "partial", "extremes"}
    SCALARS = {"tokens", "width", "scale", "factor"}
    report = {}
    for name, (kernel, constants, warps) in CASES.items():
        kinds = {}
        for a in kernel.arg_names:
            weights = "*fp32" if a == "weights" else None
            kinds[a] = ("constexpr" if a in constants else weights or (
                "fp32" if a in ("scale", "factor") else "i32" if a in SCALARS or a.endswith("_stride")
                else "*i32" if a in INTEGERS else "*i64" if a in LONG else "*fp32" if a in REALS
                else "*fp8e4nv" if a == "codes" else "*bf16"))
        aligned = [i for i, a in enumerate(kernel.arg_names) if kinds[a][0] == "*" or a.endswith("_stride")]
        stages = how.num_stages if name.startswith("attend") else 3
        for backend, arch, warp in json.loads(sys.argv[1]):
            source = ASTSource(
                kernel, kinds, constexprs={(kernel.arg_names.index(a),): v for a, v in constants.items()},
                attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
            )
            made = triton.compile(source, target=GPUTarget(backend, arch, warp),
                                  options={"num_warps": warps, "num_stages": stages})
            with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
                file.write(made.asm["cubin"])
                file.flush()
                tool = pathlib.Path(nvidia.__file__).parent / "bin" / "cuobjdump"
                usage = subprocess.run([str(tool), "--dump-resource-usage", file.name], check=True,
                                       capture_output=True, text=True).stdout
            ptx = made.asm["ptx"]
            # A tile's cells in attention, one entry's start in the store.
            cells = (r"tt.addptr %latents[_0-9]*, [^:]*: !tt.ptr<bf16>, (i\\d+)" if name == "store"
                     else r"tt.addptr [^:]*: tensor<32x!tt.ptr<bf16>>, tensor<32x(i\\d+)>")
            report[f"{name} {arch}"] = {
                "shared": made.metadata.shared,
                "registers": int(re.search(r"REG:(\\d+)", usage).group(1)),
                "stack": int(re.search(r"STACK:(\\d+)", usage).group(1)),
                "matrix": ptx.count("wgmma.mma_async"),
                "narrow": ptx.count("mma.sync"),
                "copies": len(re.findall(r"cp.async.cg.shared.global [^,]*, [^,]*, 0x10", ptx)),
                "wide": ptx.count("ld.global.v4.b32"),
                "fp8": "e4m3x2" in ptx,
                "offsets": re.findall(cells, made.asm["ttir"]),
            }
    print(json.dumps(report))
    """
)


@pytest.fixture(scope="module")
def report(triton_compiler):
    """Compile all kernels once."""
    return triton_compiler.run(CHILD, TARGETS)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target[1]))
def test_every_kernel_compiles_without_spilling(report, target):
    """Within the shared memory of a processor, no register on the stack."""
    for name in KERNELS:
        facts = report[f"{name} {target[1]}"]
        assert facts["shared"] <= 227 * 1024, (name, facts)
        assert facts["stack"] == 0, (name, facts)
        assert facts["registers"] <= 255, (name, facts)


@pytest.mark.slow
def test_attention_runs_on_warp_group_instructions_over_asynchronous_copies(report):
    """What layout and stages are for: three tiles beside the queries, copied 16 bytes at once."""
    tile = 32 * 576 * 2
    for name in ("attend", "attend-split", "attend-all"):
        facts = report[f"{name} 90"]
        assert facts["matrix"] > 0
        assert facts["copies"] >= 16
        assert facts["shared"] >= 4 * tile


@pytest.mark.slow
def test_offsets_into_the_latent_pool_are_64_bit(report):
    """Four million entries of 576 elements pass 2^31 in one layer."""
    for name in ("attend", "attend-all", "store"):
        offsets = report[f"{name} 90"]["offsets"]
        # Of the block's shape are cells and the rotated lanes of the token itself; only cells need the width.
        assert "i64" in offsets, name


@pytest.mark.slow
def test_rows_move_16_bytes_at_a_time_and_codes_by_the_hardwares_conversion(report):
    for name in ("join", "join-routed", "dispatch", "gated"):
        assert report[f"{name} 90"]["wide"] >= 2, name
    assert report["store 90"]["fp8"]
    assert report["queries 90"]["fp8"]
