"""The emulator behind the library's functions: what the adapter and its probe meet where no card is."""

from __future__ import annotations

from typing import Any

import torch

from adaverify_metadata import unpack_pages
from adaverify_sm100_varlen.deep_gemm.versions import KNOWN_VERSIONS
from adaverify_sm100_varlen.emulator import emulate_logits, walk
from adaverify_sm100_varlen.pages import plain_pages
from adaverify_sm100_varlen.schedule import reference_schedule


class EmulatedLibrary:
    """The functions of one listed build on the CPU; a schedule that would hang the chip is an error.

    Args:
        version: a listed version.
        processors: as the library would count them.
    """

    __file__ = "emulated"

    def __init__(self, version: str, processors: int = 148) -> None:
        self.__version__ = version
        self._contract, self._processors = KNOWN_VERSIONS[version].contract, processors

    def get_num_sms(self) -> int:
        """Return the processors."""
        return self._processors

    def get_paged_mqa_logits_metadata(
        self, context_lens: torch.Tensor, page_size: int, num_sms: int, *, indices: torch.Tensor
    ) -> torch.Tensor:
        """Return the schedule int32 [num_sms + 1, 2]."""
        return reference_schedule(self._contract, context_lens, num_sms, indices)

    def fp8_fp4_paged_mqa_logits(
        self,
        q: tuple[torch.Tensor, Any],
        kv: torch.Tensor,
        weights: torch.Tensor,
        lens: torch.Tensor,
        table: torch.Tensor,
        schedule: torch.Tensor,
        width: int,
        *,
        indices: torch.Tensor,
    ) -> torch.Tensor:
        """Return unmasked logits [M, width]: rubbish past a length, NaN past its last split.

        Raises:
            RuntimeError: an argument that the build refuses, or a schedule that it would never finish.
        """
        query, scale = q
        contract = self._contract
        dtype = getattr(torch, contract.value_dtype)
        if (scale is not None) != contract.micro_scales or weights.dtype != dtype:
            raise RuntimeError("Assertion error (emulated): q scale and weights of this build")
        tasks = walk(contract, schedule, lens, indices, heads=query.shape[2])
        if len(tasks.runaways):
            raise RuntimeError(f"slots {tasks.runaways.tolist()[:6]} would never end")
        plain = plain_pages(kv) if contract.micro_scales else kv
        codes, scales = unpack_pages(plain, torch.arange(len(plain)))
        out = emulate_logits(
            tasks, query[:, 0].float(), codes, scales, weights.float(), table, width, contract.split
        )
        return out[:, :width].to(weights.dtype)
