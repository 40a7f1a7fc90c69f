"""Best tokens, gaps and draws equal the host path's; what is not finite is found."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from adaverify_contracts import CapabilityError, DescriptorError, LayoutError, LimitsError
from adaverify_engine.acceptance import target_law
from adaverify_engine.ops.launchable import require_launchable
from adaverify_engine.ops.pick.launch import Pick, PickLaunch

INF = float("inf")


def rows_of(kit, logits, *, temperature=0.0, top_p=1.0, coins=None):
    """Return (token, gap, finite) of one request a row, by the kernel, chunks of 16 logits."""
    logits = torch.as_tensor(logits, dtype=torch.float32, device=kit.device)
    count = len(logits)
    ints = {"dtype": torch.int32, "device": kit.device}
    noise = torch.zeros(count, 2, 2, dtype=torch.float64, device=kit.device)
    if coins is not None:
        noise[:, 1, 1] = torch.as_tensor(coins, dtype=torch.float64)
    out = (torch.full((count,), -9, **ints), torch.full((count,), -9.0, device=kit.device))
    finite = torch.full((1,), -9, **ints)
    Pick(count, logits.shape[1], kit.device, launch=PickLaunch(16, 1))(
        logits,
        torch.arange(count, **ints),
        torch.zeros(count, **ints),
        torch.arange(count, **ints),
        torch.ones(count, **ints),
        torch.full((count,), temperature, device=kit.device),
        torch.full((count,), top_p, device=kit.device),
        noise,
        *out,
        finite,
    )
    return out[0].tolist(), out[1].tolist(), int(finite)


@pytest.mark.parametrize(("vocabulary", "chunk"), [(100, 32), (100, 4096), (1, 16), (49152, 4096)])
def test_picks_equal_the_reference(step_kit, vocabulary, chunk):
    """Random rows, greedy, sampled and padding; every output was poisoned."""
    large = vocabulary > 100
    for seed in (0,) if large else (4,):
        draw = {"alphabet": min(4, vocabulary), "vocabulary": vocabulary}
        draw |= {"rows": 3, "drafts": 1, "sampled": 0.7} if large else {"sampled": 0.6}
        kernel = step_kit.make(seed, **draw)
        reference = kernel.clone()
        pick = Pick(64, vocabulary, step_kit.device, launch=PickLaunch(chunk))
        kernel.pick(pick)
        reference.pick(Pick(64, vocabulary, step_kit.device, backend="torch"))
        assert step_kit.same_picks(kernel, reference) == 0
        padding = kernel.token_request < 0
        assert (kernel.out_token[padding] == -1).all()
        assert (kernel.out_gap[padding] == 0).all()
        assert (kernel.out_token[~padding] >= 0).all()


def test_ties_take_the_smallest_id_within_and_across_chunks(step_kit):
    """All equal, equal in two chunks, and a best whose second is in another chunk."""
    logits = torch.zeros(3, 40)
    logits[1, [35, 7]] = 2.0
    logits[2, 20], logits[2, 3] = 5.0, 4.0
    assert rows_of(step_kit, logits) == ([0, 7, 20], [0.0, 0.0, 1.0], 1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize(
    ("value", "token", "gap"),
    [(float("nan"), 0, "nan"), (INF, 18, "inf"), (-INF, 0, "nan")],
)
def test_a_best_logit_that_is_not_finite_clears_the_flag(step_kit, backend, value, token, gap, temperature):
    """NaN, inf, and a row of -inf only; the row beside it is decided as usual, and no id leaves the range."""
    state = step_kit.make(0, rows=2, drafts=0, slots=2, vocabulary=40, sampled=0.0, tokens=2)
    state.temperature.fill_(temperature)
    state.logits[0] = 0.0
    if value == -INF:
        state.logits[0] = value
    else:
        state.logits[0, 18] = value
    state.pick(Pick(2, 40, step_kit.device, backend=backend, launch=PickLaunch(16)))
    assert int(state.out_finite) == 0
    assert int(state.out_token[0]) == token
    assert str(float(state.out_gap[0])) == gap
    assert 0 <= int(state.out_token[1]) < 40
    assert float(state.out_gap[1]) > 0


def test_a_masked_logit_is_finite_and_never_drawn(step_kit):
    """-inf below a finite best is a token of weight 0, at the first and the last coin too."""
    logits = torch.full((3, 40), -INF)
    logits[:, 17] = 1.0
    logits[:, 30] = 1.0
    drawn = rows_of(step_kit, logits, temperature=1.0, coins=[0.0, 0.499, 1 - 2**-53])
    assert drawn == ([17, 17, 30], [0.0, 0.0, 0.0], 1)


@pytest.mark.parametrize(("temperature", "top_p"), [(0.8, 1.0), (1.0, 0.8), (2.0, 0.7)])
def test_draws_follow_the_target_law(step_kit, temperature, top_p):
    """Coins 1e-4 inside both ends of a token's interval of the CDF draw that token."""
    logits = torch.randn(1, 24, generator=torch.Generator().manual_seed(5)) * 2
    law = target_law(logits, torch.tensor([temperature]), torch.tensor([top_p]))[0].double()
    likely = torch.nonzero(law > 0.02).flatten()
    assert len(likely) >= 3
    ends = law.cumsum(0)[likely]
    coins = torch.cat((ends - law[likely] + 1e-4, ends - 1e-4))
    tokens, _, _ = rows_of(
        step_kit, logits.expand(len(coins), -1), temperature=temperature, top_p=top_p, coins=coins
    )
    assert tokens == [*likely.tolist(), *likely.tolist()]


@pytest.mark.parametrize(
    ("nucleus", "kept"), [(0.3, [2, 5]), (0.7, [2, 5, 19, 23]), (0.99, [2, 5, 19, 23, 29])]
)
def test_a_nucleus_keeps_the_smallest_ids_of_equal_tokens(step_kit, nucleus, kept):
    """Five equal tokens of a fifth each, over two chunks: two reach 0.3, four reach 0.7 (bfloat16 ties)."""
    logits = torch.full((6, 32), -30.0)
    logits[:, [2, 5, 19, 23, 29]] = 1.0
    coins = (torch.arange(6, dtype=torch.float64) + 0.5) / 6
    tokens, _, _ = rows_of(step_kit, logits, temperature=1.0, top_p=nucleus, coins=coins)
    assert sorted(set(tokens)) == kept
    law = target_law(logits[:1].cpu(), torch.ones(1), torch.tensor([nucleus]))[0]
    assert torch.nonzero(law).flatten().tolist() == kept


@pytest.mark.parametrize("top_p", [1.0, 1e-6])
@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 1e-44])
def test_tiny_temperatures_draw_the_best_token(step_kit, temperature, top_p):
    """Dividing by a tiny temperature overflows; the limit of the law is one-hot."""
    logits = torch.randn(2, 40, generator=torch.Generator().manual_seed(6))
    tokens, _, finite = rows_of(
        step_kit, logits, temperature=temperature, top_p=top_p, coins=[0.0, 1 - 2**-53]
    )
    assert tokens == logits.argmax(1).tolist()
    assert finite == 1


def test_a_step_without_tokens_is_finite(step_kit):
    """No row, no launch over rows; the flag is set all the same."""
    state = step_kit.make(1, rows=0, tokens=0)
    state.pick(Pick(0, 100, step_kit.device))
    assert int(state.out_finite) == 1


def test_misfits_are_typed_errors(step_kit):
    """Wrong sizes, dtypes, words and launch parameters say so before anything is launched."""
    state = step_kit.make(4)
    tokens = len(state.logits)
    for pick in (
        Pick(tokens - 1, 100, step_kit.device, backend="torch"),
        Pick(tokens, 99, step_kit.device, backend="torch"),
    ):
        with pytest.raises(LayoutError):
            state.pick(pick)
    state.noise = state.noise.float()
    with pytest.raises(LayoutError):
        state.pick(Pick(tokens, 100, step_kit.device, backend="torch"))
    with pytest.raises(LayoutError):
        Pick(1, 1, step_kit.device, backend="cuda")
    with pytest.raises(LimitsError):
        Pick(1, 0, step_kit.device)
    for bad in (PickLaunch, lambda chunk: PickLaunch(num_warps=chunk)):
        with pytest.raises(DescriptorError):
            bad(12)


def test_a_compiled_kernel_on_a_cpu_is_refused():
    """The message names the way out."""
    kernel = SimpleNamespace(__name__="row_kernel")
    with pytest.raises(CapabilityError, match="backend='torch'"):
        require_launchable(kernel, torch.device("cpu"))
    require_launchable(kernel, torch.device("cuda"))
