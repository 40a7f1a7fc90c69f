"""Ragged decode tensors: vLLM's own method and ours, on one real builder's buffers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

POISON = -77777
TOKENS, WIDTH = 64, 6


@pytest.fixture
def builder(vllm):
    """A builder of vLLM's class with the buffers of its constructor, which itself needs a device."""
    kind = vllm.indexer.DeepseekV32IndexerMetadataBuilder
    made = object.__new__(kind)
    made.supports_varlen = False
    made.vllm_config = SimpleNamespace(
        speculative_config=SimpleNamespace(enable_adaptive_verification=True),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
    )
    made.decode_seq_lens_buffer = torch.zeros(TOKENS, dtype=torch.int32)
    made.decode_lens_buffer = torch.zeros(TOKENS, dtype=torch.int32)
    made.expanded_block_table_buffer = torch.zeros((TOKENS, WIDTH), dtype=torch.int32)
    made.arange_buffer = torch.arange(TOKENS, dtype=torch.int32)
    return made


def call(builder, method, lengths, seq_lens, table, tokens, host=None):
    """Call a method as the builder's ``build`` does, over poisoned buffers; return copies of the results."""
    count = len(lengths)
    builder.decode_seq_lens_buffer.fill_(POISON)
    builder.expanded_block_table_buffer.fill_(POISON)
    ends = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    torch.diff(ends, out=builder.decode_lens_buffer[:count])
    host_lens = torch.tensor(lengths if host is None else host)
    lens, pages, ones, size, padded = method(
        builder,
        seq_lens=seq_lens,
        block_table=table,
        decode_lens=builder.decode_lens_buffer[:count],
        decode_lens_cpu=host_lens,
        query_start_loc=ends[:count],
        num_decodes=count,
        num_decode_tokens=tokens,
        use_native=False,
        next_n=8,
        max_decode_len=int(host_lens.max()),
    )
    assert lens.data_ptr() == builder.decode_seq_lens_buffer.data_ptr()
    assert pages.data_ptr() == builder.expanded_block_table_buffer.data_ptr()
    assert ones.data_ptr() == builder.decode_lens_buffer.data_ptr()
    return lens.clone(), pages.clone(), ones.clone(), size, padded


@pytest.mark.parametrize(
    ("lengths", "seq_lens", "tokens"),
    [
        ([3, 1, 4, 0], [10, 7, 12, 0], 10),
        ([3, 1, 4, 0], [10, 7, 12, 0], 8),
        ([1, 8], [1, 8], 9),
        ([8, 8], [300, 8], 16),
        ([2, 0, 0, 3], [5, 0, 0, 90], 12),
        ([1, 1, 1], [4, 5, 6], 8),
    ],
)
def test_rows_are_equal_to_the_bit_in_vllms_own_buffers(vllm, builder, lengths, seq_lens, tokens):
    """Lengths, whole tables and query lengths of every row in use, padding included."""
    from adaverify_vllm.rows import wrap

    theirs = vllm.indexer.DeepseekV32IndexerMetadataBuilder._prepare_decode_tensors
    ours = wrap(theirs, backend="torch")
    lens = torch.tensor(seq_lens, dtype=torch.int32)
    table = torch.arange(1, len(lengths) * WIDTH + 1, dtype=torch.int32).view(len(lengths), WIDTH)
    # The host's placeholders: the same total, spread evenly.
    total, count = sum(lengths), len(lengths)
    host = [total // count + (i < total % count) for i in range(count)]
    found = [call(builder, method, lengths, lens, table, tokens, host) for method in (theirs, ours)]
    for want, got in zip(*found, strict=True):
        if isinstance(want, torch.Tensor):
            assert torch.equal(want, got)
        else:
            assert want == got


@pytest.mark.parametrize("seed", range(10))
def test_rows_of_random_batches_are_equal(vllm, builder, seed):
    from adaverify_vllm.rows import wrap

    rng = np.random.default_rng(seed)
    theirs = vllm.indexer.DeepseekV32IndexerMetadataBuilder._prepare_decode_tensors
    lengths = rng.integers(0, 9, int(rng.integers(2, 8))).tolist()
    lens = torch.tensor([n + int(rng.integers(0, 200)) if n else 0 for n in lengths], dtype=torch.int32)
    table = torch.from_numpy(rng.integers(0, 999, (len(lengths), WIDTH)).astype(np.int32))
    tokens = sum(lengths) + int(rng.integers(0, 4))
    ours = wrap(theirs, backend="torch")
    found = [call(builder, method, lengths, lens, table, max(1, tokens)) for method in (theirs, ours)]
    for want, got in zip(*found, strict=True):
        assert torch.equal(want, got) if isinstance(want, torch.Tensor) else want == got


@pytest.mark.parametrize(
    ("adaptive", "varlen", "native", "lengths", "tokens"),
    [
        (True, False, False, [8], 8),
        (False, False, False, [8, 8], 16),
        (True, True, False, [8, 3], 11),
        (True, False, True, [8, 3], 11),
    ],
)
def test_what_is_not_ragged_is_left_to_vllm(builder, adaptive, varlen, native, lengths, tokens):
    """One request, uniform batches without trimming, other hardware's paths, and native ones."""
    from adaverify_vllm.rows import wrap

    builder.supports_varlen = varlen
    builder.vllm_config.speculative_config.enable_adaptive_verification = adaptive
    asked = []

    def theirs(self, **arguments):
        asked.append(arguments)
        return "theirs"

    arguments = {
        "seq_lens": torch.tensor([9] * len(lengths)),
        "block_table": torch.zeros((len(lengths), WIDTH)),
        "decode_lens": torch.tensor(lengths),
        "decode_lens_cpu": torch.tensor(lengths),
        "query_start_loc": torch.zeros(len(lengths)),
        "num_decodes": len(lengths),
        "num_decode_tokens": tokens,
        "use_native": native,
        "next_n": 8,
        "max_decode_len": max(lengths),
    }
    assert wrap(theirs, backend="torch")(builder, **arguments) == "theirs"
    assert asked == [arguments]
