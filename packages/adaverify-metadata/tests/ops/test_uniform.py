"""The uniform strategy on batches worked by hand."""

from __future__ import annotations

import pytest

from adaverify_contracts import LayoutError, Limits
from adaverify_metadata import uniform_rows

LIMITS = Limits(max_requests=4, draft_tokens=3, max_model_len=13, page_size=4)


def test_the_worked_example(kit):
    """Three requests of three tokens and one padding request, 11 padded tokens."""
    rows = uniform_rows(kit.batch([10, 7, 12, 0], [3, 3, 3, 0], 11, LIMITS, uniform=3), LIMITS)
    assert rows.row_lens.tolist() == [[8, 9, 10], [5, 6, 7], [10, 11, 12], [0, 0, 0]]
    assert rows.schedule_lens.tolist()[3] == [1, 1, 1]
    assert rows.row_token.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [-1, -1, -1]]
    assert rows.row_request.tolist() == [0, 1, 2, 7]
    assert rows.token_slot.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9]


def test_flatten_and_uniform_agree_on_a_uniform_batch(kit):
    """The ragged path is right for uniform batches too: same lengths, slot for slot."""
    batch = kit.batch([10, 7, 12], [4, 4, 4], 12, LIMITS, uniform=4)
    uniform = uniform_rows(batch, LIMITS)
    builder = kit.builders["flatten"]("flatten", LIMITS, kit.device, backend="torch")
    assert uniform.row_lens.flatten().tolist() == builder.build(batch).row_lens.flatten().tolist()


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("uniform", [None, 5])
def test_a_batch_that_is_not_uniform_is_refused(kit, backend, uniform):
    """Lengths that do not make equal blocks (sglang #39173) and lengths above K + 1."""
    builder = kit.builders["uniform"]("uniform", LIMITS, kit.device, backend=backend)
    lens = [2, 3] if uniform is None else [5, 5]
    with pytest.raises(LayoutError, match=r"uniform_query_len in 1 \.\. 4"):
        builder.build(kit.batch([9, 9], lens, 10, LIMITS, uniform=uniform) if uniform is None else _wide(kit))


def _wide(kit):
    limits = Limits(max_requests=4, draft_tokens=4, max_model_len=12, page_size=4)
    return kit.batch([9, 9], [5, 5], 10, limits, uniform=5)
