"""What cannot be staged is refused with a typed error before anything is written."""

import numpy as np
import pytest
import torch

from adaverify_contracts import ClosedError, LayoutError, PlanError


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"scheduled": [3]}, LayoutError, "plan or the limits"),
        ({"kv_lens": [3, 4, 5]}, LayoutError, "plan or the limits"),
        ({"padded_requests": 1}, LayoutError, "plan or the limits"),
        ({"padded_requests": 5}, LayoutError, "plan or the limits"),
        ({"scheduled": [3, 1]}, PlanError, "fewer drafts than its plan"),
        ({"padded_tokens": 99}, LayoutError, "static buffers"),
        ({"padded_tokens": 7}, LayoutError, "does not hold the step"),
        ({"block_table": torch.zeros((2, 3), dtype=torch.int64)}, LayoutError, "block table"),
        ({"block_table": torch.zeros((1, 17), dtype=torch.int32)}, LayoutError, "block table"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_before_anything_runs(kit, verifier, change, error, words):
    """One less, one more, another width: a typed error, never rows that read elsewhere."""
    checker = verifier(mode="fixed")
    plan = checker.plan(kit.state(1, [3, 3]))
    scheduled, kv_lens = kit.tensors(change.get("scheduled", [3, 3]), change.get("kv_lens", [4, 4]))
    padded = {name: change[name] for name in ("padded_requests", "padded_tokens") if name in change}
    with pytest.raises(error, match=words):
        checker.stage(plan, scheduled, kv_lens, change.get("block_table", kit.table()), **padded)


@pytest.mark.parametrize("dtype", [np.int64, np.float32, torch.int64, torch.float32])
@pytest.mark.parametrize("which", ["scheduled", "kv_lens"])
def test_lengths_of_another_dtype_are_refused_and_never_wrapped(kit, verifier, which, dtype):
    """2**32 + 100 cast to int32 is 100: the rows of another sequence."""
    checker = verifier(mode="fixed")
    plan = checker.plan(kit.state(1, [3, 3]))
    values = {"scheduled": np.array([3, 3], np.int32), "kv_lens": np.array([4, 4], np.int32)}
    made = torch.tensor([3, 3]).to(dtype) if isinstance(dtype, torch.dtype) else np.array([3, 3], dtype)
    values[which] = made
    with pytest.raises(LayoutError, match=f"{which} has the wrong dtype"):
        checker.stage(plan, values["scheduled"], values["kv_lens"], kit.table())


@pytest.mark.parametrize("length", [-1, 10**6])
def test_kv_lengths_past_the_table_are_refused_on_the_host(kit, verifier, length):
    """A row of such a length would read table entries that are not there."""
    checker = verifier(mode="fixed")
    plan = checker.plan(kit.state(1, [3, 3]))
    with pytest.raises(LayoutError, match="KV length"):
        checker.stage(plan, *kit.tensors([3, 3], [4, length]), kit.table())


def good(kit, **changes):
    """Arguments of ``stage`` that fit a plan of two requests with three drafts each."""
    values = {
        "scheduled": np.array([3, 3], np.int32),
        "kv_lens": np.array([4, 9], np.int32),
        "block_table": kit.table(),
        **changes,
    }
    return values["scheduled"], values["kv_lens"], values["block_table"]


def whole(rows=4, width=17):
    return torch.arange(rows * width, dtype=torch.int32).view(rows, width)


WRONG = {
    "a list of drafts": {"scheduled": [3, 3]},
    "no drafts": {"scheduled": None},
    "drafts in words": {"scheduled": "33"},
    "a column of drafts": {"scheduled": np.array([[3], [3]], np.int32)},
    "one number of drafts": {"scheduled": torch.tensor(3, dtype=torch.int32)},
    "drafts on the meta device": {"scheduled": torch.zeros(2, dtype=torch.int32, device="meta")},
    "a padding request among real ones": {"scheduled": np.array([7, -1], np.int32)},
    "more drafts than K": {"scheduled": np.array([4, 2], np.int32)},
    "a list of lengths": {"kv_lens": [4, 9]},
    "no lengths": {"kv_lens": None},
    "lengths on the meta device": {"kv_lens": torch.zeros(2, dtype=torch.int32, device="meta")},
    "a float table": {"block_table": whole().float()},
    "a bfloat16 table": {"block_table": whole().bfloat16()},
    "a bool table": {"block_table": whole() > 0},
    "an int16 table": {"block_table": whole().short()},
    "a NumPy table": {"block_table": whole().numpy()},
    "a list of pages": {"block_table": whole().tolist()},
    "no table": {"block_table": None},
    "a table on the meta device": {"block_table": whole().to("meta")},
    "a flat table": {"block_table": whole().flatten()},
    "a table of a table": {"block_table": whole()[None]},
    "a narrow table": {"block_table": whole(width=16)},
    "a wide table": {"block_table": whole(width=18)},
    "a short table": {"block_table": whole(rows=1)},
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("padded", [None, 3])
def test_inputs_of_another_type_are_refused_and_write_nothing(kit, verifier, name, padded):
    """Lists, NumPy and meta tables, floats that were cut to pages: each has its error, and no trace."""
    checker = verifier(mode="fixed")
    plan = checker.plan(kit.state(1, [3, 3]))
    inputs = checker._parts.inputs.buffers
    before = {key: value.clone() for key, value in inputs.items()}
    with pytest.raises(LayoutError) as caught:
        checker.stage(plan, *good(kit, **WRONG[name]), padded_requests=padded)
    assert caught.value.allowed
    assert caught.value.remedy
    assert all(torch.equal(inputs[key], value) for key, value in before.items())
    assert checker.stage(plan, *good(kit)).rows.row_lens.shape == (2, 4)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("request_", "column"), [(0, 0), (0, 1), (1, 0), (1, 3)])
def test_a_negative_page_that_the_step_reads_is_refused(kit, verifier, dtype, request_, column):
    """8 and 13 tokens in pages of 4 read 2 and 4 columns; a kernel would read before the pool."""
    checker = verifier(mode="fixed")
    plan = checker.plan(kit.state(1, [3, 3]))
    table = kit.table().to(dtype)
    table[request_, column] = -1
    with pytest.raises(LayoutError, match="page id") as caught:
        checker.stage(plan, *good(kit, block_table=table))
    assert caught.value.arrived == {"request": request_, "column": column, "page": -1}


def test_filler_behind_the_last_page_is_ordinary(kit, verifier):
    """Engines mark free columns with -1; rows of nobody, and columns that nothing reads, may hold it."""
    checker = verifier(mode="fixed")
    plan = checker.plan(kit.state(1, [3, 3]))
    table = kit.table()
    table[0, 2:], table[1, 4:], table[2:] = -1, -1, -1
    staged = checker.stage(plan, *good(kit, block_table=table))
    assert staged.rows.row_lens.tolist() == [[5, 6, 7, 8], [10, 11, 12, 13]]


def test_a_page_that_does_not_fit_int32_is_refused(kit, verifier):
    """2**32 + 5 copied to int32 is page 5: another request's."""
    checker = verifier(mode="fixed")
    plan = checker.plan(kit.state(1, [3, 3]))
    table = kit.table().long()
    table[1, 0] = 2**32 + 5
    with pytest.raises(LayoutError, match="page id"):
        checker.stage(plan, *good(kit, block_table=table))


@pytest.mark.parametrize("plan", [None, 3, "plan", {"budget": 1}])
def test_what_is_no_plan_cannot_be_executed(kit, verifier, plan):
    """``stage(None)`` was an AttributeError, and so was ``plan(None)``."""
    checker = verifier(mode="fixed")
    for call in (checker.stage, checker.replay):
        with pytest.raises(PlanError, match="no plan"):
            call(plan, *good(kit))
    with pytest.raises(PlanError, match="no step"):
        checker.plan(plan)


@pytest.mark.parametrize("name", ["padded_requests", "padded_tokens"])
@pytest.mark.parametrize("value", [4.0, "4", True, -1, 10**9])
def test_padding_that_is_no_number_of_the_limits_is_refused(kit, verifier, name, value):
    """Half a request ended inside a slice."""
    checker = verifier(mode="fixed")
    plan = checker.plan(kit.state(1, [3, 3]))
    with pytest.raises(LayoutError):
        checker.stage(plan, *good(kit), **{name: value})


def test_a_closed_verifier_is_refused_by_name(kit, verifier):
    """A publication after ``close`` went to a relay that had been released."""
    checker = verifier(mode="fixed")
    state = kit.state(1, [3, 3])
    plan = checker.plan(state)
    staged = checker.stage(plan, *good(kit))
    checker.close()
    checker.close()
    for call in (
        lambda: checker.publish(2, state.slots, state.generations, torch.zeros(2, 3)),
        lambda: checker.plan(state),
        lambda: checker.stage(plan, *good(kit)),
        lambda: checker.replay(plan, *good(kit)),
        lambda: checker.capture(lambda staged, key: None),
    ):
        with pytest.raises(ClosedError, match="used after close") as caught:
            call()
        assert caught.value.remedy
    # A late outcome is still taken, once, and reaches observers at once; another step's is not.
    seen = []
    checker.add_observer("late", seen.append)
    record = checker.observe(kit.outcome(state, plan, staged), plan)
    assert (record.fallbacks, seen) == ((), [record])
    with pytest.raises(ClosedError, match="used after close"):
        checker.observe(kit.outcome(state, plan, staged), plan)


def test_a_plan_older_than_the_last_executed_one_is_refused(kit, verifier):
    """Its rows would have been built from confidences and buffers that have gone on."""
    checker = verifier(mode="fixed")
    plans = [checker.plan(kit.state(step, [3, 3])) for step in (1, 2, 3)]
    checker.stage(plans[1], *good(kit))
    before = {name: tensor.clone() for name, tensor in checker.inputs.buffers.items()}
    for call in (checker.stage, checker.replay):
        with pytest.raises(PlanError, match="older than one that was executed") as caught:
            call(plans[0], *good(kit, kv_lens=np.array([1, 1], dtype=np.int32)))
        assert caught.value.arrived == 1
    with pytest.raises(PlanError, match="older than one that was executed"):
        checker.launch(plans[0], kit.state(1, [3, 3]))
    assert all(torch.equal(before[name], tensor) for name, tensor in checker.inputs.buffers.items())
    # The same step once more, as after a miss, and the next are ordinary.
    checker.stage(plans[1], *good(kit))
    checker.stage(plans[2], *good(kit))
    # So is a host that numbers its steps anew, and one that plans the missed step again.
    checker.stage(checker.plan(kit.state(1, [3, 3])), *good(kit))
