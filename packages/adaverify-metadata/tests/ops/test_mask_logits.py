"""The mask: kernel and reference agree bit for bit, and no cell below a length is touched."""

from __future__ import annotations

import pytest
import torch

from adaverify_contracts import LayoutError
from adaverify_metadata.ops.mask_logits.launch import COLUMNS, mask_logits
from adaverify_metadata.ops.mask_logits.reference import mask_logits_reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("width", [1, 7, 300, COLUMNS, COLUMNS + 1])
@pytest.mark.parametrize(("tokens", "dtype"), [(1, torch.float32), (2, torch.float32), (1, torch.bfloat16)])
def test_kernel_equals_reference(width, tokens, dtype):
    """Rows of a wider buffer, lengths at both ends and beyond the width; the slack stays as it was."""
    lens = torch.tensor(
        [[0] * tokens, [1] * tokens, [width] * tokens, [width // 2] * tokens, [width + 5] * tokens]
    )
    lens = lens.int().to(DEVICE)
    buffer = torch.full((5 * tokens, width + 3), float("nan"), device=DEVICE, dtype=dtype)
    other = buffer.clone()
    mask_logits(buffer[:, :width], lens)
    mask_logits_reference(other[:, :width], lens)
    assert torch.equal(buffer == float("-inf"), other == float("-inf"))
    assert bool(buffer[buffer != float("-inf")].isnan().all())
    assert (buffer == float("-inf")).sum(1).tolist() == (width - lens.flatten().clamp(max=width)).tolist()


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_nothing_to_mask(shape):
    logits = torch.empty(shape, device=DEVICE)
    assert mask_logits(logits, torch.zeros(shape[0], dtype=torch.int32, device=DEVICE)).shape == shape


@pytest.mark.parametrize(
    ("logits", "lens"),
    [
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.int32)),
        (torch.zeros(2, 3), torch.zeros(2)),
        (torch.zeros(2, 3).double(), torch.zeros(2, dtype=torch.int32)),
        (torch.zeros(3, 2).t(), torch.zeros(2, dtype=torch.int32)),
        (torch.zeros(2, 3), torch.zeros(4, dtype=torch.int32)[::2]),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
    ],
)
def test_misfits_are_refused(logits, lens):
    with pytest.raises(LayoutError, match="cannot be masked"):
        mask_logits(logits, lens)
