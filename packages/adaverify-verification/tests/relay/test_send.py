"""Confidences stored in a ring entry that a device scalar names."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from adaverify_contracts import LayoutError, Limits
from adaverify_verification.relay import CpuRelay
from adaverify_verification.relay.send.launch import send
from adaverify_verification.relay.send.reference import send_reference

POISON = -7.0
COMPILE = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from adaverify_verification.relay.send.kernel import send_kernel
from adaverify_verification.relay.send.launch import BLOCK, NUM_WARPS

signature = {"confidences": "*fp32", "entry": "*i32", "ring": "*fp32"}
signature |= {name: "i32" for name in ("rows", "confidence_stride", "entry_elements", "last_entry")}
signature |= {name: "constexpr" for name in ("DRAFTS", "BLOCK")}
found = []
for backend, arch, warp in json.loads(sys.argv[1]):
    compiled = triton.compile(
        ASTSource(send_kernel, signature, {"DRAFTS": 7, "BLOCK": BLOCK}),
        target=GPUTarget(backend, arch, warp),
        options={"num_warps": NUM_WARPS},
    )
    text = compiled.asm["ptx" if backend == "cuda" else "amdgcn"]
    found.append([arch, compiled.metadata.shared, len(text)])
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("rows", "most", "drafts"), [(0, 2, 3), (1, 1, 1), (3, 5, 7), (2, 4, 0), (64, 64, 15), (150, 200, 7)]
)
@pytest.mark.parametrize("entry", [0, 2, 4, -1, 5, 2**31 - 1])
def test_the_kernel_equals_the_reference(kernel_device, rows, most, drafts, entry):
    """Only the rows sent change, only in the entry named; an index out of range is the last one, the bin."""
    values = torch.rand(rows, drafts, generator=torch.Generator().manual_seed(rows))
    if rows > 2:
        values[0, 0], values[1, -1] = float("nan"), float("inf")
    chosen = torch.tensor([entry], dtype=torch.int32)
    want = torch.full((5, most, drafts), POISON)
    where = entry if 0 <= entry < 5 else 4
    want[where, :rows] = values
    reference = torch.full_like(want, POISON)
    send_reference(values, chosen, reference)
    kernel = torch.full_like(want, POISON).to(kernel_device)
    send(values.to(kernel_device), chosen.to(kernel_device), kernel)
    torch.testing.assert_close(reference, want, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(kernel.cpu(), want, rtol=0, atol=0, equal_nan=True)


def test_rows_may_be_a_view_with_a_wider_stride(kernel_device):
    """The row stride is the tensor's own."""
    values = torch.arange(24.0).reshape(4, 6).to(kernel_device)[:, 1:4]
    ring = torch.zeros(2, 4, 3, device=kernel_device)
    send(values, torch.zeros(1, dtype=torch.int32, device=kernel_device), ring)
    assert torch.equal(ring[0], values) and not ring[1].any()


def test_the_host_relay_sends_too():
    """On a CPU a step taken apart is the same as a publication, and the bin is not read."""
    relay = CpuRelay(Limits(4, 2, 128, 16), depth=2)
    entry = torch.zeros(1, dtype=torch.int32)
    for step in range(5):
        index = relay.begin(step, np.arange(2), np.full(2, step))
        entry.fill_(index)
        relay.send(torch.full((4, 2), float(step)), entry)
        relay.launched(index)
        assert relay.latest().step == step and relay.latest().confidences.tolist() == [[step, step]] * 2
    relay.send(torch.full((4, 2), POISON), entry.fill_(relay.bin))
    assert [(relay.latest(n).confidences == n).all() for n in (3, 4)] == [True, True]


@pytest.mark.parametrize(
    ("shape", "dtype", "entry"),
    [
        ((5, 2), torch.float32, torch.zeros(1, dtype=torch.int32)),
        ((2, 3), torch.float32, torch.zeros(1, dtype=torch.int32)),
        ((2,), torch.float32, torch.zeros(1, dtype=torch.int32)),
        ((2, 2), torch.float64, torch.zeros(1, dtype=torch.int32)),
        ((2, 2), torch.float32, torch.zeros((), dtype=torch.int32)),
        ((2, 2), torch.float32, torch.zeros(1, dtype=torch.int64)),
        ((2, 2), torch.float32, torch.zeros(1, dtype=torch.int32, device="meta")),
    ],
)
def test_what_does_not_fit_is_refused(shape, dtype, entry):
    with pytest.raises(LayoutError, match="arrived"):
        CpuRelay(Limits(4, 2, 128, 16)).send(torch.zeros(shape, dtype=dtype), entry)


def test_begin_checks_its_lengths():
    for slots, generations in ((2, 1), (5, 5)):
        with pytest.raises(LayoutError, match="arrived"):
            CpuRelay(Limits(4, 2, 128, 16)).begin(0, np.arange(slots), np.arange(generations))


def test_kernel_compiles_for_every_target(triton_compiler):
    """Ahead of time, without a device."""
    targets = [
        ["cuda", 90, 32],
        ["cuda", 100, 32],
        ["cuda", 120, 32],
        ["hip", "gfx942", 64],
        ["hip", "gfx950", 64],
    ]
    found = triton_compiler.run(COMPILE, targets)
    assert [row[0] for row in found] == [target[1] for target in targets]
    assert all(shared == 0 and size > 500 for _, shared, size in found)
