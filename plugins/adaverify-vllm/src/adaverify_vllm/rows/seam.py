"""Our rows in the place of vLLM's ragged decode tensors, in vLLM's own buffers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from adaverify_vllm.rows.launch import MAX_REQUESTS, write_rows
from adaverify_vllm.rows.reference import write_rows_reference

Prepared = tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, bool]


def wrap(original: Callable[..., Prepared], *, backend: str) -> Callable[..., Prepared]:
    """Return a ``_prepare_decode_tensors`` that serves ragged batches itself and leaves the rest to vLLM.

    The views it returns are of the same buffers, so a graph captured before or after reads the same places.

    Args:
        original: vLLM's method.
        backend: ``torch`` or ``triton``.
    """

    @functools.wraps(original)
    def prepare(
        self: Any,
        seq_lens: torch.Tensor,
        block_table: torch.Tensor,
        decode_lens: torch.Tensor,
        decode_lens_cpu: torch.Tensor,
        query_start_loc: torch.Tensor,
        num_decodes: int,
        num_decode_tokens: int,
        use_native: bool,
        next_n: int,
        max_decode_len: int,
    ) -> Prepared:
        if use_native or not ragged(self, decode_lens_cpu, num_decodes, num_decode_tokens, max_decode_len):
            return original(
                self,
                seq_lens=seq_lens,
                block_table=block_table,
                decode_lens=decode_lens,
                decode_lens_cpu=decode_lens_cpu,
                query_start_loc=query_start_loc,
                num_decodes=num_decodes,
                num_decode_tokens=num_decode_tokens,
                use_native=use_native,
                next_n=next_n,
                max_decode_len=max_decode_len,
            )
        boundaries = extended(query_start_loc, num_decodes)
        tokens = num_decode_tokens
        outputs = (
            self.decode_seq_lens_buffer[:tokens],
            self.expanded_block_table_buffer[:tokens],
            self.decode_lens_buffer[:tokens],
        )
        if backend == "triton":
            most = self.vllm_config.scheduler_config.max_num_seqs
            write_rows(boundaries, seq_lens, block_table, outputs, max(most, num_decodes))
        else:
            write_rows_reference(boundaries, seq_lens, block_table, outputs, max(1, max_decode_len))
        return *outputs, tokens, False

    return prepare


def ragged(builder: Any, lens: torch.Tensor, requests: int, tokens: int, longest: int) -> bool:
    """Return whether vLLM would take its path of variable decode lengths for this batch.

    Reads host values only. A batch is uniform where host and device agree about every length: for one
    request, or where nothing is trimmed on the device.
    """
    if builder.supports_varlen or not 0 < requests <= MAX_REQUESTS:
        return False
    speculative = builder.vllm_config.speculative_config
    adaptive = bool(speculative and speculative.enable_adaptive_verification)
    exact = requests == 1 or not adaptive
    return not (exact and int(lens.min()) == longest and requests * longest == tokens)


def extended(query_start_loc: torch.Tensor, requests: int) -> torch.Tensor:
    """Return the boundaries with the last one, which vLLM cuts off the view that it passes: int32 [R + 1].

    The storage goes on: the view is of a buffer of one boundary more than there are requests.
    """
    return query_start_loc.as_strided((requests + 1,), (query_start_loc.stride(0),))
