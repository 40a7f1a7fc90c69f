"""The compiled store against torch, at the sizes of a prompt step, and as the cache uses it."""

from __future__ import annotations

import pytest
import torch

from adaverify_contracts import ModelGeometry
from adaverify_engine.cache import PagedCache
from adaverify_engine.ops.store_kv.launch import store_kv

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def step(tokens, heads, dim, dtype):
    """Key and value as a fused projection leaves them: views of one tensor, heads apart."""
    mixed = torch.randn(tokens, 2 * heads + 1, dim, device="cuda", dtype=dtype)
    return mixed[:, 1 : 1 + heads], mixed[:, 1 + heads :]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("tokens", "heads", "dim"), [(0, 3, 64), (1, 3, 64), (515, 3, 64), (4096, 3, 64), (7, 8, 128), (9, 1, 24)]
)
def test_it_stores_what_torch_stores(tokens, heads, dim, dtype):
    key, value = step(tokens, heads, dim, dtype)
    slots = torch.randperm(8192, device="cuda")[:tokens]
    found = torch.full((2, 8192, heads, dim), -7.0, device="cuda", dtype=dtype)
    expected = found.clone()
    store_kv(key, value, *found, slots)
    store_kv(key, value, *expected, slots, backend="torch")
    assert torch.equal(found, expected)


def test_a_slot_outside_the_pool_stores_nothing():
    whole = torch.full((2, 24, 2, 16), -7.0, device="cuda")
    key, value = step(3, 2, 16, torch.float32)
    store_kv(key, value, whole[0, 8:16], whole[1, 8:16], torch.tensor([-1, 8, 3], device="cuda"))
    others = [at for at in range(24) if at != 11]
    assert torch.equal(whole[:, 11], torch.stack((key[2], value[2])))
    assert (whole[:, others] == -7.0).all()


def test_a_replay_stores_what_its_buffers_hold_then():
    geometry = ModelGeometry("x", 1, 64, 4, 2, 16, 100, 64, (1,))
    cache = PagedCache(geometry, 4, 4, torch.bfloat16, torch.device("cuda"))
    key, value = step(2, 2, 16, torch.bfloat16)
    slots = torch.tensor([4, 9], device="cuda")
    cache.write(0, key, value, slots)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cache.write(0, key, value, slots)
    key.normal_()
    value.normal_()
    slots.copy_(torch.tensor([15, 2]))
    graph.replay()
    keys, values = cache.layer(0)
    assert torch.equal(keys[slots], key)
    assert torch.equal(values[slots], value)
