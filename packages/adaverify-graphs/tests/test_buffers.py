"""A buffer that moves or is resized raises its generation, announced or not."""

import pytest
import torch

from adaverify_contracts import GraphError
from adaverify_graphs import BufferSet


def _set():
    return BufferSet({"lens": torch.arange(4, dtype=torch.int32), "table": torch.ones(2, 3)})


def test_writing_values_changes_no_generation():
    buffers = _set()
    before, epoch = buffers.generations(), buffers.epoch
    buffers["lens"].fill_(9)
    buffers["table"][0, 0] = 5
    assert buffers.changed(before) == ()
    assert buffers.epoch == epoch == 0


def test_a_resize_keeps_the_common_part_and_zeroes_the_rest():
    buffers = _set()
    before = buffers.generations()
    grown = buffers.resize("table", (3, 2))
    assert torch.equal(grown, torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]))
    assert grown is buffers["table"]
    assert buffers.changed(before) == ("table",)
    assert (buffers.generation("table"), buffers.generation("lens")) == (1, 0)


def test_a_move_copies_even_to_the_same_device():
    buffers = _set()
    old = buffers["lens"].data_ptr()
    new = buffers.move("lens", "cpu")
    assert new.data_ptr() != old
    assert torch.equal(new, torch.arange(4, dtype=torch.int32))
    assert buffers.generation("lens") == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: tensor.resize_(100_000),
        lambda tensor: tensor.resize_(2),
        lambda tensor: tensor.set_(torch.zeros(4, dtype=torch.int32)),
        lambda tensor: tensor.t_() if tensor.dim() == 2 else tensor.unsqueeze_(0),
    ],
)
def test_a_change_behind_the_sets_back_is_noticed_once(change):
    buffers = _set()
    before = buffers.generations()
    change(buffers["lens"])
    assert buffers.changed(before) == ("lens",)
    assert buffers.generation("lens") == 1
    assert buffers.generation("lens") == 1


def test_buffers_added_later_do_not_invalidate_what_was_before():
    buffers = _set()
    before = buffers.generations()
    buffers.add("late", torch.zeros(1))
    assert buffers.changed(before) == ()
    assert set(buffers) == {"lens", "table", "late"}
    assert len(buffers) == 3


def test_wrong_names_and_shapes_are_errors_that_list_what_exists():
    buffers = _set()
    with pytest.raises(GraphError, match="exists already"):
        buffers.add("lens", torch.zeros(1))
    for action in (lambda: buffers["other"], lambda: buffers.replace("other", torch.zeros(1))):
        with pytest.raises(GraphError) as caught:
            action()
        assert caught.value.allowed == "lens, table"
    with pytest.raises(GraphError, match="dimensions"):
        buffers.resize("lens", (2, 2))
    assert "other" not in buffers
