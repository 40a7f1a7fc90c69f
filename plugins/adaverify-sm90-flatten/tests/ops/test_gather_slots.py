"""The gather: kernel and reference agree bit for bit, and flattened rows are not copied."""

from __future__ import annotations

import pytest
import torch

from adaverify_contracts import CapabilityError, LayoutError, Limits
from adaverify_metadata import flatten_rows, paired_rows, uniform_rows
from adaverify_sm90_flatten.ops.decorated import require_device
from adaverify_sm90_flatten.ops.gather_slots.launch import gather_slots

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LIMITS = Limits(max_requests=4, draft_tokens=7, max_model_len=300, page_size=64)


def values(tokens, heads):
    made = torch.Generator().manual_seed(tokens)
    query = torch.randn(tokens, heads, 128, generator=made).to(torch.float8_e4m3fn).to(DEVICE)
    return query, torch.randn(tokens, heads, generator=made).to(DEVICE)


@pytest.mark.parametrize("heads", [32, 64])
@pytest.mark.parametrize("lens", [[3, 1, 4, 0], [1, 1, 1], [8], [0, 0]])
def test_kernel_equals_reference_for_pairs(kit, heads, lens):
    """Odd queries leave their front slot empty; padding rows are empty."""
    rows = paired_rows(kit.batch(lens, [20] * len(lens), 10, LIMITS, device=DEVICE), LIMITS)
    query, weights = values(10, heads)
    found = gather_slots(query, weights, rows)
    want = gather_slots(query, weights, rows, backend="torch")
    assert torch.equal(found[0].view(torch.uint8), want[0].view(torch.uint8))
    assert torch.equal(found[1], want[1])
    token = rows.row_token.flatten()
    held = token >= 0
    assert torch.equal(want[1][held], weights[token[held].long()])


def test_flattened_rows_are_views(kit):
    rows = flatten_rows(kit.batch([3, 1], [20, 20], 6, LIMITS, device=DEVICE), LIMITS)
    query, weights = values(6, 64)
    by_slot, slot_weights = gather_slots(query, weights, rows)
    assert by_slot.shape == (6, 1, 64, 128)
    assert (by_slot.data_ptr(), slot_weights.data_ptr()) == (query.data_ptr(), weights.data_ptr())


def test_single_token_rows_of_another_strategy_follow_their_map(kit):
    """Uniform rows of length 1 with a request without tokens in front: row 1 holds token 0."""
    batch = kit.batch([0, 1, 1], [0, 20, 30], 3, LIMITS, device=DEVICE, uniform=1)
    rows = uniform_rows(batch, LIMITS)
    query, weights = values(3, 64)
    _, slot_weights = gather_slots(query, weights, rows)
    assert torch.equal(slot_weights[1:], weights[:2])


@pytest.mark.parametrize(
    ("shape", "weights"),
    [((5, 64, 128), (5, 64)), ((6, 48, 128), (6, 48)), ((6, 64), (6, 64)), ((6, 64, 128), (6, 32))],
)
def test_misfits_are_refused(kit, shape, weights):
    rows = paired_rows(kit.batch([3, 1], [20, 20], 6, LIMITS, device=DEVICE), LIMITS)
    query = torch.zeros(shape, device=DEVICE).to(torch.float8_e4m3fn)
    with pytest.raises(LayoutError, match="by slot"):
        gather_slots(query, torch.zeros(weights, device=DEVICE), rows)


def test_a_compiled_kernel_refuses_a_cpu():
    """Triton itself speaks of a pointer argument at 0."""
    kernel = type("JITFunction", (), {})()
    with pytest.raises(CapabilityError, match="backend='torch'"):
        require_device(kernel, torch.device("cpu"))
    require_device(kernel, torch.device("cuda"))
