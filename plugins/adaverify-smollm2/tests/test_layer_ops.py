"""A layer's small operations: Triton's launches against torch, and both in a whole model.

Without a GPU the kernels run in Triton's interpreter; the choice is made before any kernel is imported.
"""

from __future__ import annotations

import os
import textwrap

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import CapabilityError, ModelOptions
from adaverify_smollm2 import load_model_file
from adaverify_smollm2.layer_ops import FusedOps, PlainOps, choose_layer_ops
from adaverify_smollm2.rope import rotary_table

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = (torch.float32, torch.bfloat16)
# In float32: sums of squares in another order, an exponential of another library, some roundings. In bfloat16
# one rounding, which the interpreter makes towards zero, of a value that torch may have rounded by itself.
TOLERANCE = {torch.float32: (3e-6, 3e-6), torch.bfloat16: (2**-7, 1e-6)}
POSITIONS = 100
EPS = 1e-5


def both(dim):
    turns = rotary_table(POSITIONS, dim, 1e5, DEVICE)
    return PlainOps(turns, EPS), FusedOps(turns, EPS)


def random(shape, dtype, seed=0, scale=1.0):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    return values.to(DEVICE, dtype)


def close(found, expected):
    rtol, atol = TOLERANCE[expected.dtype]
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol, equal_nan=True)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 5), st.tuples(st.integers(1, 5), st.integers(0, 3)), st.data())
def test_heads_turn_where_they_lie_and_values_stay(tokens, heads, data):
    turned, left = heads
    dim, dtype = data.draw(st.sampled_from([2, 6, 16, 64])), data.draw(st.sampled_from(DTYPES))
    plain, fused = both(dim)
    mixed = random((tokens, turned + left, dim), dtype)
    untouched = mixed[:, turned:].clone()
    positions = torch.arange(tokens, device=DEVICE) * 7 % POSITIONS
    expected = plain.turn(mixed.clone(), plain.located(positions), turned)
    found = fused.turn(mixed, fused.located(positions), turned)
    close(found, expected)
    assert torch.equal(mixed[:, turned:], untouched)
    assert found.data_ptr() == mixed.data_ptr()


def test_positions_need_not_lie_together():
    plain, fused = both(16)
    mixed = random((4, 3, 16), torch.float32)
    positions = torch.arange(8, device=DEVICE).view(4, 2)[:, 1]
    expected = plain.turn(mixed.clone(), plain.located(positions), 2)
    close(fused.turn(mixed, fused.located(positions), 2), expected)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 5), st.sampled_from([1, 3, 64, 576]), st.sampled_from(DTYPES))
def test_a_join_is_the_sum_and_its_norm(tokens, width, dtype):
    plain, fused = both(16)
    hidden, added = random((tokens, width), dtype, 1, 30.0), random((tokens, width), dtype, 2)
    weight = random((width,), dtype, 3)
    before = hidden.clone(), added.clone()
    joined, normed = fused.join(hidden, added, weight)
    sums, _ = plain.join(hidden, added, weight)
    if dtype == torch.float32 or DEVICE.type == "cuda":
        assert torch.equal(joined, sums)
    else:
        # The interpreter cuts bfloat16 off where a device rounds to the nearest.
        close(joined, sums)
    close(normed, plain.norm(joined, weight))
    assert torch.equal(hidden, before[0])
    assert torch.equal(added, before[1])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 5), st.sampled_from([1, 96, 512, 513, 1536]), st.sampled_from(DTYPES))
def test_a_gate_is_silu_times_up(tokens, inner, dtype):
    plain, fused = both(16)
    gate_up = random((tokens, 2 * inner), dtype, scale=3.0)
    found, exact = fused.gate(gate_up), plain.gate(gate_up.float())
    rtol, atol = TOLERANCE[dtype]
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), exact, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", DTYPES)
def test_extremes_come_out_as_in_torch(dtype):
    """A row of zeros, of huge values, with infinity and with NaN; no row touches another."""
    plain, fused = both(16)
    rows = torch.zeros(5, 64)
    rows[1], rows[2, 3], rows[3, 5], rows[4] = 1e18, float("inf"), float("nan"), -90.0
    rows = rows.to(DEVICE, dtype)
    weight = torch.ones(64, device=DEVICE, dtype=dtype)
    nothing = torch.zeros_like(rows)
    expected = plain.join(rows, nothing, weight)
    # The interpreter computes in NumPy, which warns.
    with np.errstate(all="ignore"):
        joined, normed = fused.join(rows, nothing, weight)
        gated = fused.gate(rows.repeat(1, 2))
    close(joined, expected[0])
    close(normed, expected[1])
    close(gated, plain.gate(rows.repeat(1, 2)))


def test_a_row_does_not_depend_on_the_others():
    """Bit for bit: the modes verify different rows together."""
    _, fused = both(16)
    hidden, added, weight = (
        random((7, 96), torch.float32, 1),
        random((7, 96), torch.float32, 2),
        random((96,), torch.float32),
    )
    joined, normed = fused.join(hidden, added, weight)
    gated = fused.gate(hidden)
    for row in range(7):
        one = slice(row, row + 1)
        alone = fused.join(hidden[one], added[one], weight)
        assert torch.equal(alone[0], joined[one])
        assert torch.equal(alone[1], normed[one])
        assert torch.equal(fused.gate(hidden[one]), gated[one])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_whole_model_gives_what_it_gives_in_torch(tiny_path, dense_attend, dtype):
    model = load_model_file(tiny_path, ModelOptions(dtype=dtype), name="tiny").model
    tokens, positions = torch.tensor([1, 7, 260, 19, 2]), torch.arange(5)
    hidden, features = model.forward_tapped(tokens, positions, dense_attend(), (1, 2))
    assert model.layer_ops_kind == "plain"
    if DEVICE.type == "cuda":
        pytest.skip("a model on a CPU needs the interpreter")
    model._ops = FusedOps(model._ops._turns, EPS)
    assert model.layer_ops_kind == "fused"
    found = model.forward_tapped(tokens, positions, dense_attend(), (1, 2))
    for one, other in zip(found, (hidden, features), strict=True):
        if dtype == "float32":
            torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)
        else:
            assert ((one - other).float().norm() / other.float().norm()).item() < 0.02


def test_a_cpu_runs_torch_and_compiled_kernels_are_refused_there(monkeypatch):
    turns = rotary_table(4, 16, 1e5, torch.device("cpu"))
    assert choose_layer_ops(turns, EPS).kind == "plain"
    from adaverify_smollm2.layer_ops import kernel

    class Compiled:
        __name__ = "turn_kernel"

    monkeypatch.setattr(kernel, "turn_kernel", Compiled())
    with pytest.raises(CapabilityError, match="cannot run on a CPU"):
        FusedOps(turns, EPS)


# A process of its own, since in this one the interpreter may stand in for the compiler.
CHILD = textwrap.dedent(
    """
    import json, sys
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from adaverify_smollm2.layer_ops import fused, kernel

    CASES = {
        "turn": (kernel.turn_kernel, dict(HEADS=12, HALF=32, BLOCK_HEADS=16, BLOCK_HALF=32)),
        "join": (kernel.join_kernel, dict(HIDDEN=576, BLOCK=1024)),
        "gate": (kernel.gate_kernel, dict(INNER=1536, BLOCK=fused.GATE_BLOCK)),
    }
    KINDS = {"positions": "*i64", "turns": "*fp32", "mixed_stride": "i32", "eps": "fp32"}
    report = {}
    for name, (made, constants) in CASES.items():
        kinds = {a: "constexpr" if a in constants else KINDS.get(a, "*bf16") for a in made.arg_names}
        aligned = [i for i, a in enumerate(made.arg_names) if kinds[a][0] == "*" or a == "mixed_stride"]
        for backend, arch, warp in json.loads(sys.argv[1]):
            source = ASTSource(
                made, kinds, constexprs={(made.arg_names.index(a),): v for a, v in constants.items()},
                attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
            )
            built = triton.compile(source, target=GPUTarget(backend, arch, warp),
                                   options={"num_warps": fused.WARPS})
            report[f"{name} {arch}"] = {
                "binary": len(built.asm["cubin" if backend == "cuda" else "hsaco"]),
                "wide": "ld.global.v2.b32" in built.asm.get("ptx", ""),
                "stack": "local_depot" in built.asm.get("ptx", ""),
            }
    print(json.dumps(report))
    """
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "target",
    [["cuda", 90, 32], ["cuda", 100, 32], ["cuda", 120, 32], ["hip", "gfx942", 64], ["hip", "gfx950", 64]],
    ids=lambda target: str(target[1]),
)
def test_the_kernels_compile_for_every_target(triton_compiler, target):
    report = triton_compiler.run(CHILD, [target])
    assert len(report) == 3
    for name, made in report.items():
        assert made["binary"] > 1000, name
        assert not made["stack"], name
    if target[0] == "cuda":
        assert report[f"gate {target[1]}"]["wide"]
