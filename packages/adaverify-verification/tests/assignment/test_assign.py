"""Reference against exhaustive search, NumPy and Triton against the reference, and public faults."""

from __future__ import annotations

import itertools
import math

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from adaverify_contracts import LayoutError, Limits, LimitsError
from adaverify_verification.assignment import Assigner, Assignment
from adaverify_verification.assignment.launch import block_for, launch_for
from adaverify_verification.assignment.reference import assign_reference
from adaverify_verification.quantise import scores

# Triton 3.6's interpreter turns loop bounds into ints in a way NumPy has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array with ndim:DeprecationWarning")

FIELDS = Assignment.__slots__
POISON = 123456
# Few distinct values make ties; the rest are the inputs nobody sends on purpose.
CONFIDENCES = st.sampled_from(
    [0.0, 1.0, 0.5, 0.25, 0.9, 0.999, 1e-6, 1e-42, -0.0, -3.0, 7.0, math.nan, math.inf, -math.inf]
) | st.floats(0, 1, width=32)


@st.composite
def cases(draw, max_requests=6, max_drafts=4):
    """Return confidences, scheduled, kv_lens, budget and padded_tokens that the contract allows."""
    requests = draw(st.integers(0, max_requests))
    drafts = draw(st.integers(0, max_drafts))
    values = draw(st.lists(CONFIDENCES, min_size=requests * drafts, max_size=requests * drafts))
    scheduled = draw(st.lists(st.integers(-1, drafts + 1), min_size=requests, max_size=requests))
    kv_lens = draw(st.lists(st.integers(0, 5000), min_size=requests, max_size=requests))
    budget = draw(st.integers(-2, requests * drafts + 2))
    padded = draw(st.integers(sum(count >= 0 for count in scheduled), requests * (drafts + 1)))
    return (
        torch.tensor(values, dtype=torch.float32).view(requests, drafts),
        torch.tensor(scheduled, dtype=torch.int32),
        torch.tensor(kv_lens, dtype=torch.int32),
        torch.tensor([budget], dtype=torch.int32),
        padded,
    )


def run(assigner: Assigner, case, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
    """Assign into poisoned buffers and return the fields on the host."""
    for buffer in assigner.buffers.values():
        buffer.fill_(POISON)
    *tensors, padded = case
    result = assigner.assign(*(tensor.to(device) for tensor in tensors), padded)
    return {name: getattr(result, name).cpu().clone() for name in FIELDS}


def reference(case) -> dict[str, torch.Tensor]:
    return dict(zip(FIELDS, assign_reference(*case), strict=True))


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name in FIELDS:
        assert found[name].dtype == torch.int32
        assert torch.equal(found[name], expected[name]), (name, found[name], expected[name])


def random_case(requests: int, drafts: int, seed: int, *, levels: int | None = None, padding: int = 0):
    """Return a random case; ``levels`` quantises confidences so that ties abound."""
    generator = torch.Generator().manual_seed(seed)
    confidences = torch.rand(requests, drafts, generator=generator) ** 0.3
    if levels:
        confidences = torch.ceil(confidences * levels) / levels
    scheduled = torch.randint(0, drafts + 1, (requests,), generator=generator, dtype=torch.int32)
    if padding:
        scheduled[-padding:] = -1
    kv_lens = torch.randint(1, 4000, (requests,), generator=generator, dtype=torch.int32)
    budget = torch.randint(0, int(scheduled.clamp(min=0).sum()) + 1, (1,), generator=generator)
    return confidences, scheduled, kv_lens, budget.int(), requests * (drafts + 1)


def limits(requests: int, drafts: int) -> Limits:
    return Limits(max(requests, 1), drafts, 8192, 64)


@hypothesis.given(cases(max_requests=3, max_drafts=3))
@hypothesis.settings(max_examples=150, deadline=None)
def test_reference_is_the_best_closed_set(case):
    """The admitted sum equals the best over every choice of prefixes of that size (maths section 2)."""
    confidences, scheduled, _, budget, padded = case
    q = scores(confidences).tolist()
    caps = [min(max(count, 0), confidences.shape[1]) for count in scheduled.tolist()]
    real = sum(count >= 0 for count in scheduled.tolist())
    size = max(0, min(int(budget), sum(caps), padded - real))
    best = max(
        sum(sum(q[r][:length]) for r, length in enumerate(choice))
        for choice in itertools.product(*(range(cap + 1) for cap in caps))
        if sum(choice) == size
    )
    admitted = reference(case)["admitted"].tolist()
    assert sum(admitted) == size
    assert all(count <= cap for count, cap in zip(admitted, caps, strict=True))
    assert sum(sum(q[r][:length]) for r, length in enumerate(admitted)) == best


@hypothesis.given(cases())
@hypothesis.settings(max_examples=150, deadline=None)
def test_reference_follows_the_total_order(case):
    """The admitted positions are the first B of (score descending, position, request), in plain Python."""
    confidences, scheduled, kv_lens, budget, padded = case
    q = scores(confidences).tolist()
    positions = [
        (-q[r][k], k, r) for r, count in enumerate(scheduled.tolist()) for k in range(min(count, len(q[r])))
    ]
    real = [count >= 0 for count in scheduled.tolist()]
    size = max(0, min(int(budget), len(positions), padded - sum(real)))
    chosen = sorted(positions)[:size]
    admitted = [sum(r == row for _, _, r in chosen) for row in range(len(real))]
    lengths = [count + 1 if is_real else 0 for count, is_real in zip(admitted, real, strict=True)]
    tokens = [(r, j) for r, length in enumerate(lengths) for j in range(length)]
    tokens += [(-1, -1)] * (padded - len(tokens))
    found = reference(case)
    assert found["admitted"].tolist() == admitted
    assert found["query_start_loc"].tolist() == [0, *itertools.accumulate(lengths)]
    assert found["seq_lens"].tolist() == [
        kv + length if is_real else 0
        for kv, length, is_real in zip(kv_lens.tolist(), lengths, real, strict=True)
    ]
    found_tokens = zip(found["token_request"].tolist(), found["token_offset"].tolist(), strict=True)
    assert list(found_tokens) == tokens


@hypothesis.given(cases())
@hypothesis.settings(max_examples=200, deadline=None)
def test_numpy_path_equals_the_reference(case):
    """The CPU's NumPy path and the torch reference agree in every integer."""
    assigner = Assigner(limits(*case[0].shape), "cpu", max_tokens=case[-1])
    assert_same(run(assigner, case), reference(case))


@hypothesis.given(cases())
@hypothesis.settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)
def test_kernel_equals_the_reference(kernel_device, case):
    """The Triton kernel and the torch reference agree in every integer, on every kind of input."""
    assigner = Assigner(limits(*case[0].shape), kernel_device, backend="triton", max_tokens=case[-1])
    assert_same(run(assigner, case, kernel_device), reference(case))


@pytest.mark.parametrize(
    ("requests", "drafts", "levels", "padding"),
    [
        (1, 7, None, 0),
        (17, 7, 3, 2),
        (64, 7, None, 0),
        (256, 7, 2, 5),
        (1024, 15, 4, 0),
        (1000, 15, None, 24),
    ],
)
def test_kernel_at_serving_sizes(kernel_device, requests, drafts, levels, padding):
    """Equal to the reference up to the stated limits, with ties and padding requests."""
    case = random_case(requests, drafts, seed=requests, levels=levels, padding=padding)
    assigner = Assigner(limits(requests, drafts), kernel_device, backend="triton")
    assert_same(run(assigner, case, kernel_device), reference(case))


@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("budget", [0, 1, 6, 11, 12, 10**6, -5])
def test_all_ties_admit_by_position_then_request(kernel_device, backend, budget):
    """With equal scores everywhere, whole columns are admitted in request order (maths M1)."""
    device = kernel_device if backend == "triton" else "cpu"
    case = (
        torch.ones(4, 3),
        torch.full((4,), 3, dtype=torch.int32),
        torch.zeros(4, dtype=torch.int32),
        torch.tensor([budget], dtype=torch.int32),
        16,
    )
    size = min(max(budget, 0), 12)
    found = run(Assigner(limits(4, 3), device, backend=backend), case, device)
    assert found["admitted"].tolist() == [(size + 3 - r) // 4 for r in range(4)]


def test_m1_position_one_wins_a_tie_with_position_two():
    """M1: c = (1, 1) and B = 1 admit position 1, so the set stays a prefix."""
    case = (torch.ones(1, 2), torch.tensor([2]).int(), torch.tensor([5]).int(), torch.tensor([1]).int(), 3)
    found = reference(case)
    assert found["admitted"].tolist() == [1]
    assert found["token_offset"].tolist() == [0, 1, -1]


@hypothesis.given(st.integers(0, 10**6), st.integers(0, 24))
@hypothesis.settings(max_examples=60, deadline=None)
def test_m18_budgets_are_nested(seed, size):
    """M18: plans for B and B + 1 differ by one position, the next in the total order."""
    confidences, _, kv_lens, _, padded = random_case(6, 4, seed, levels=3)
    scheduled = torch.full((6,), 4, dtype=torch.int32)
    small, large = (
        assign_reference(confidences, scheduled, kv_lens, torch.tensor([b]).int(), padded).admitted
        for b in (size, size + 1)
    )
    difference = (large - small).tolist()
    assert sorted(difference) == ([0] * 5 + [1] if size < 24 else [0] * 6)


@hypothesis.given(st.integers(0, 10**6))
@hypothesis.settings(max_examples=60, deadline=None)
def test_m18_permuting_requests_changes_only_ties(seed):
    """M18: after a permutation every request gets as much as before unless its score ties at the cut."""
    case = random_case(7, 3, seed, levels=3)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
    before = reference(case)["admitted"][order]
    moved = (case[0][order], case[1][order], case[2][order], case[3], case[4])
    after = reference(moved)["admitted"]
    q = scores(moved[0])
    differing = (before != after).nonzero().flatten().tolist()
    # The position that one of the two plans adds has the same (score, position) in all of them.
    cut = {(int(q[r, k]), k) for r in differing for k in [int(torch.minimum(before, after)[r])]}
    assert len(cut) <= 1 and int(before.sum()) == int(after.sum())
    assert all(abs(int(before[r] - after[r])) == 1 for r in differing)


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_repeated_runs_are_bitwise_equal_at_fixed_addresses(kernel_device, backend):
    """Same input, same integers, same buffers: what a captured graph relies on."""
    device = kernel_device if backend == "triton" else torch.device("cpu")
    assigner = Assigner(limits(12, 7), device, backend=backend)
    addresses = {name: buffer.data_ptr() for name, buffer in assigner.buffers.items()}
    case = random_case(12, 7, seed=3, levels=2)
    first = run(assigner, case, device)
    for _ in range(3):
        assert_same(run(assigner, case, device), first)
    assert {name: buffer.data_ptr() for name, buffer in assigner.buffers.items()} == addresses


def test_reference_reads_no_device_value():
    """It runs on the meta device, where any host read of a value raises."""
    meta = torch.device("meta")
    result = assign_reference(
        torch.empty(5, 3, device=meta),
        *(torch.empty(5, dtype=torch.int32, device=meta) for _ in range(2)),
        torch.empty(1, dtype=torch.int32, device=meta),
        14,
    )
    assert [tuple(tensor.shape) for tensor in result] == [(5,), (6,), (5,), (14,), (14,)]


def test_row_stride_of_confidences_is_free(kernel_device):
    """A view of a wider buffer is read with its own row stride."""
    case = random_case(5, 3, seed=9)
    wide = torch.full((5, 8), math.nan, device=kernel_device)
    wide[:, :3] = case[0].to(kernel_device)
    assigner = Assigner(limits(5, 3), kernel_device, backend="triton")
    result = assigner.assign(wide[:, :3], *(t.to(kernel_device) for t in case[1:4]), case[4])
    assert torch.equal(result.admitted.cpu(), reference(case)["admitted"])


# Public faults (faults.md sections 3 and 7).


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_fault_tail_of_a_larger_batch_is_rewritten(kernel_device, backend):
    """5 requests after a batch of 8 leave no stale tail and no phantom request.

    Reference: vllm #47066, vllm-ascend #14510.
    """
    device = kernel_device if backend == "triton" else "cpu"
    assigner = Assigner(limits(8, 1), device, backend=backend)

    def assign(scheduled: list[int], padded: int) -> Assignment:
        return assigner.assign(
            torch.ones(8, 1, device=device),
            torch.tensor(scheduled, dtype=torch.int32, device=device),
            torch.full((8,), 9, dtype=torch.int32, device=device),
            torch.tensor([8], dtype=torch.int32, device=device),
            padded,
        )

    assert assign([1] * 8, 16).token_request.tolist() == [r for r in range(8) for _ in range(2)]
    small = assign([1, 1, 0, 0, 0, -1, -1, -1], 12)
    assert small.query_start_loc.tolist() == [0, 2, 4, 5, 6, 7, 7, 7, 7]
    assert small.seq_lens.tolist() == [11, 11, 10, 10, 10, 0, 0, 0]
    assert small.token_request.tolist() == [0, 0, 1, 1, 2, 3, 4] + [-1] * 5
    assert small.token_offset.tolist() == [0, 1, 0, 1, 0, 0, 0] + [-1] * 5


def test_fault_boundaries_come_from_the_device():
    """B = 4 for 2 requests goes where the scores say, and the boundaries follow (vllm #52242, #52783)."""
    confidences = torch.tensor([[0.9] * 4, [0.1] * 4])
    lens = torch.tensor([4, 4], dtype=torch.int32)
    result = Assigner(limits(2, 4), "cpu").assign(confidences, lens, lens, torch.tensor([4]).int(), 6)
    assert result.query_start_loc.tolist() == [0, 5, 6]
    assert result.token_request.tolist() == [0, 0, 0, 0, 0, 1]


def test_fault_buffers_too_small_for_the_padded_count():
    """8 padded requests on buffers for 6 are refused before anything is written (vllm-ascend #16168)."""
    case = random_case(8, 2, seed=0)
    with pytest.raises(LayoutError, match="R <= 6"):
        Assigner(limits(6, 2), "cpu", max_tokens=24).assign(*case)


def test_fault_stale_budget_never_passes_the_padded_tail(kernel_device):
    """A replayed graph with a larger budget than its tier keeps every boundary inside (sglang #33412)."""
    case = (*random_case(6, 4, seed=1)[:3], torch.tensor([1000], dtype=torch.int32), 11)
    assigner = Assigner(limits(6, 4), kernel_device, backend="triton", max_tokens=11)
    found = run(assigner, case, kernel_device)
    assert_same(found, reference(case))
    assert int(found["query_start_loc"][-1]) <= 11


@pytest.mark.parametrize("requests", [0, 1, 2, 8, 255, 256])
def test_fault_two_ranks_agree_while_the_batch_drains(requests):
    """Equal bits give equal plans, from 256 requests to none, ties at B included (vllm #54011, #56831)."""
    case = random_case(requests, 3, seed=requests, levels=2)
    first, second = (run(Assigner(limits(requests, 3), "cpu"), case) for _ in range(2))
    assert_same(first, second)
    assert int(first["admitted"].sum()) == int(case[3])


def test_sizes_beyond_the_kernel_are_refused_by_name():
    """The Triton backend names the size it cannot serve; the torch backend serves it."""
    with pytest.raises(LimitsError, match=r"draft_tokens.*15 draft tokens"):
        Assigner(limits(4, 16), "cpu", backend="triton")
    with pytest.raises(LimitsError, match=r"max_requests.*1024 requests"):
        Assigner(limits(1025, 2), "cpu", backend="triton")
    case = random_case(3, 20, seed=4)
    assert_same(run(Assigner(limits(3, 20), "cpu"), case), reference(case))


@pytest.mark.parametrize("arguments", [{"backend": "cublas"}, {"max_tokens": -1}])
def test_construction_is_checked(arguments):
    """An unknown backend or a negative size is refused when the assigner is made."""
    with pytest.raises(LimitsError):
        Assigner(limits(2, 2), "cpu", **arguments)


@pytest.mark.parametrize("wrong", range(6))
def test_wrong_inputs_are_refused(wrong):
    """Every dtype or shape that the kernel would misread is an error that lists what arrived."""
    confidences, scheduled, kv_lens, budget, padded = random_case(3, 2, seed=5)
    variants = [
        (confidences.double(), scheduled, kv_lens, budget, padded),
        (confidences, scheduled.long(), kv_lens, budget, padded),
        (confidences, scheduled, kv_lens[:2], budget, padded),
        (confidences, scheduled, kv_lens, budget[0], padded),
        (confidences, scheduled, kv_lens, budget, padded + 1),
        (confidences.T.contiguous().T, scheduled, kv_lens, budget, padded),
    ]
    with pytest.raises(LayoutError, match="float32"):
        Assigner(limits(3, 2), "cpu").assign(*variants[wrong])


@pytest.mark.parametrize(
    ("requests", "block", "warps"), [(0, 16, 1), (16, 16, 1), (17, 32, 1), (256, 256, 8), (1024, 1024, 16)]
)
def test_launch_parameters(requests, block, warps):
    """One request a thread up to 16 warps, and enough position bits that keys are unique in a request."""
    parameters = launch_for(requests, 7)
    assert (parameters.block_requests, parameters.num_warps) == (block, warps) == (block_for(requests), warps)
    for drafts in range(16):
        assert 1 << launch_for(requests, drafts).position_bits > drafts


def test_numpy_path_is_quick():
    """16 x 7 on a CPU stays below 0.3 ms at its best of 200: the budget of a CPU step."""
    import time

    case = random_case(16, 7, seed=1)
    assigner = Assigner(limits(16, 7), "cpu")
    times = []
    for _ in range(200):
        start = time.perf_counter()
        assigner.assign(*case)
        times.append(time.perf_counter() - start)
    assert np.min(times) < 300e-6
