"""Every kernel compiles ahead of time for every target, with 64-bit page offsets and 16-byte copies."""

from __future__ import annotations

import textwrap

import pytest

TARGETS = [
    ["cuda", 90, 32],
    ["cuda", 100, 32],
    ["cuda", 120, 32],
    ["hip", "gfx942", 64],
    ["hip", "gfx950", 64],
]
KERNELS = ["flatten", "paired", "uniform", "tail_heavy", "head_heavy", "paired_units", "mask_logits"]

# A process of its own, since in this one the interpreter stands in for the compiler.
CHILD = textwrap.dedent(
    """
    import json, re, sys
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from adaverify_metadata._jit import load

    ROWS = dict(REQUESTS=256, ROWS=1, COLUMNS=2048, ROW_STRIDE=2048, WIDTH=2048, PAGE=64, RATIO=4,
                CP_SIZE=2, CP_RANK=1, CP_INTERLEAVE=16)
    CONSTANTS = {
        "flatten": {k: v for k, v in ROWS.items() if k != "REQUESTS"} | {"QUERY": 8, "WHOLE_REQUEST": True},
        "paired": ROWS,
        "uniform": ROWS | {"SLOTS": 8},
        "tail_heavy": dict(ROWS=2048, SPLIT=256, ATOMS=1, CUT=True),
        "head_heavy": dict(ROWS=2048, SPLIT=256, ROW_GROUP=4, RUNS=True),
        "paired_units": dict(ROWS=2048, SPLIT=256),
        "mask_logits": dict(COLUMNS=4096),
    }
    SCALARS = {"table_stride", "stride", "requests", "tokens", "rows", "width", "slots"}
    report = {}
    for name, constants in CONSTANTS.items():
        kernel = getattr(load(f"adaverify_metadata.ops.{name}.kernel"), name + "_kernel")
        names = kernel.arg_names
        kinds = dict.fromkeys(names, "*i32") | dict.fromkeys(SCALARS & set(names), "i32")
        kinds |= dict.fromkeys(constants, "constexpr") | ({"logits": "*fp32"} if "logits" in names else {})
        aligned = {a for a in names if kinds[a] == "*i32" or a == "table_stride"}
        for backend, arch, warp in json.loads(sys.argv[1]):
            source = ASTSource(
                kernel,
                kinds,
                constexprs={(names.index(a),): value for a, value in constants.items()},
                attrs={(names.index(a),): [["tt.divisibility", 16]] for a in aligned},
            )
            made = triton.compile(source, target=GPUTarget(backend, arch, warp), options={"num_warps": 4})
            ttir = made.asm["ttir"]
            wide = "table|row_table|logits"
            offsets = re.findall(rf"tt.addptr %(?:{wide}), [^:]*: !tt.ptr<[a-z0-9]+>, (i\\d+)", ttir)
            report[f"{name} {backend} {arch}"] = {
                "binary": len(made.asm["cubin" if backend == "cuda" else "hsaco"]),
                "wide": made.asm.get("ptx", "").count("ld.global.v4.b32"),
                "target": re.findall(r"^[.]target (\\S+)", made.asm.get("ptx", ""), re.M),
                "table_offsets": offsets,
                "layout_changes": made.asm["ttgir"].count("ttg.convert_layout"),
            }
    print(json.dumps(report))
    """
)


@pytest.fixture(scope="module")
def report(triton_compiler):
    """Compile all kernels for all targets once."""
    return triton_compiler.run(CHILD, TARGETS)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target[1]))
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_compiles_for_a_target(report, kernel, target):
    """A binary comes out, without a GPU of that kind."""
    assert report[f"{kernel} {target[0]} {target[1]}"]["binary"] > 0


@pytest.mark.parametrize(
    ("architecture", "word"), [(90, "sm_90a"), (100, "sm_100a"), (120, "sm_120a")], ids=str
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_code_names_its_target(report, kernel, architecture, word):
    """What was compiled is for that chip, not for an older one it could also run."""
    assert report[f"{kernel} cuda {architecture}"]["target"] == [word]


@pytest.mark.parametrize("kernel", ["flatten", "paired", "uniform", "mask_logits"])
def test_table_offsets_are_64_bit_in_the_compiled_kernel(report, kernel):
    """Request times stride in 32 bits overflows on large tables (DeepGEMM #425)."""
    facts = report[f"{kernel} cuda 90"]
    assert facts["table_offsets"]
    assert set(facts["table_offsets"]) == {"i64"}


@pytest.mark.parametrize("kernel", ["flatten", "paired", "uniform"])
def test_page_copies_are_16_bytes_wide_and_values_stay_in_their_layout(report, kernel):
    """What the launch parameters were chosen for: four loads in flight, no moves between register layouts."""
    facts = report[f"{kernel} cuda 90"]
    assert facts["wide"] >= 4
    assert facts["layout_changes"] == 0
