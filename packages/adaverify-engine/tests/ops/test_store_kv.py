"""The store writes a step's keys and values at their slots, and nothing elsewhere."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adaverify_contracts import CapabilityError, LayoutError

from .conftest import DEVICE

pytest.importorskip("triton")
POISON = -7.0
DTYPES = (torch.bfloat16, torch.float32)


def pools(tokens, heads, dim, dtype):
    return [torch.full((tokens, heads, dim), POISON, dtype=dtype, device=DEVICE) for _ in range(2)]


def store(*args, **options):
    from adaverify_engine.ops.store_kv.launch import store_kv

    store_kv(*args, **options)


def step(tokens, heads, dim, dtype, seed=0):
    """Key and value as a fused projection leaves them: views of one tensor, heads apart."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(tokens, 2 * heads + 1, dim, generator=generator).to(DEVICE, dtype)
    return mixed[:, 1 : 1 + heads], mixed[:, 1 + heads :]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 9), st.integers(1, 5), st.sampled_from([4, 16, 24, 64]), st.sampled_from(DTYPES), st.data()
)
def test_it_stores_what_the_reference_stores(tokens, heads, dim, dtype, data):
    key, value = step(tokens, heads, dim, dtype)
    places = data.draw(st.permutations(range(16)))[:tokens]
    slots = torch.tensor(places, dtype=torch.int64, device=DEVICE)
    found, expected = pools(16, heads, dim, dtype), pools(16, heads, dim, dtype)
    store(key, value, *found, slots, backend="triton")
    store(key, value, *expected, slots, backend="torch")
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_padding_may_share_the_null_page_and_harms_nobody():
    key, value = step(6, 3, 16, torch.float32)
    slots = torch.tensor([5, 0, 7, 0, 0, 0], device=DEVICE)
    keys, values = pools(8, 3, 16, torch.float32)
    store(key, value, keys, values, slots)
    assert torch.equal(keys[[5, 7]], key[[0, 2]])
    assert torch.equal(values[[5, 7]], value[[0, 2]])
    assert (keys[[1, 2, 3, 4, 6]] == POISON).all()


@pytest.mark.parametrize("stray", [-1, -(2**40), 8, 2**40])
def test_a_slot_outside_the_pool_stores_nothing(stray):
    whole = [torch.full((24, 2, 16), POISON, device=DEVICE) for _ in range(2)]
    key, value = step(2, 2, 16, torch.float32)
    slots = torch.tensor([stray, 3], device=DEVICE)
    store(key, value, whole[0][8:16], whole[1][8:16], slots)
    assert torch.equal(whole[0][11], key[1])
    assert torch.equal(whole[1][11], value[1])
    others = [at for at in range(24) if at != 11]
    assert (whole[0][others] == POISON).all()
    assert (whole[1][others] == POISON).all()


def test_values_pass_bit_for_bit():
    odd = torch.tensor([float("nan"), float("inf"), -0.0, 1e-40], device=DEVICE).repeat(1, 1, 4)
    keys, values = pools(2, 1, 16, torch.float32)
    store(odd, odd, keys, values, torch.tensor([1], device=DEVICE))
    assert torch.equal(keys[1:].view(torch.int32), odd.view(torch.int32))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda key, value: (key[:1], value),
        lambda key, value: (key, value[:, :1]),
        lambda key, value: (key.bfloat16(), value),
        lambda key, value: (key, value.mT.contiguous().mT),
    ],
    ids=["tokens", "heads", "dtype", "layout"],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(spoil):
    key, value = step(2, 2, 16, torch.float32)
    keys, values = pools(4, 2, 16, torch.float32)
    with pytest.raises(LayoutError, match="do not fit the paged cache"):
        store(*spoil(key, value), keys, values, torch.tensor([1, 2], device=DEVICE))
    assert (keys == POISON).all()
    assert (values == POISON).all()


def test_an_unknown_backend_is_refused():
    key, value = step(1, 2, 16, torch.float32)
    with pytest.raises(LayoutError, match="torch or triton"):
        store(key, value, *pools(4, 2, 16, torch.float32), torch.tensor([1]), backend="numpy")


def test_a_compiled_kernel_is_refused_on_a_cpu(monkeypatch):
    from adaverify_engine.ops.store_kv import kernel

    class Compiled:
        __name__ = "store_kv_kernel"

    monkeypatch.setattr(kernel, "store_kv_kernel", Compiled())
    key, value = (part.cpu() for part in step(1, 2, 16, torch.float32))
    keys, values = (torch.zeros(4, 2, 16) for _ in range(2))
    with pytest.raises(CapabilityError, match="cannot run on a CPU"):
        store(key, value, keys, values, torch.tensor([1]))
