"""One budget for all tensor-parallel ranks (design section 7)."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

import torch

from adaverify_vllm import seams
from adaverify_vllm.meeting import absent, meeting_name


class Ranks(Protocol):
    """What the manager asks of its tensor-parallel group."""

    @property
    def size(self) -> int:
        """Ranks in the group."""
        ...

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        ...

    def absent(self) -> list[int]:
        """Return the global ranks that have no bridge; called once, before the other calls."""
        ...

    def from_leader(self, value: Any) -> Any:
        """Return rank 0's value on every rank; others pass None."""
        ...

    def gather(self, value: int) -> list[int]:
        """Return every rank's integer, in rank order."""
        ...


class Alone:
    """A group of one: nothing is exchanged."""

    size = 1
    leads = True

    def absent(self) -> list[int]:
        """Return nobody."""
        return []

    def from_leader(self, value: Any) -> Any:
        """Return the value."""
        return value

    def gather(self, value: int) -> list[int]:
        """Return the value alone."""
        return [value]


class VllmRanks:
    """vLLM's tensor-parallel group, over its host side: shared memory where vLLM made that, else gloo.

    Args:
        group: vLLM's group coordinator.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self.size = int(group.world_size)
        self.leads = group.rank_in_group == 0
        self._mine = torch.zeros(1, dtype=torch.int64)
        self._all = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]

    def absent(self) -> list[int]:
        """Return the global ranks that have no bridge; waits on the host until all have come, or a minute."""
        from torch.distributed import distributed_c10d

        group = self._group
        name = meeting_name(str(group.unique_name), group.ranks)
        return absent(distributed_c10d._get_default_store(), name, group.ranks, int(group.rank))

    def from_leader(self, value: Any) -> Any:
        """Return rank 0's value on every rank; waits for it on the host."""
        return self._group.broadcast_object(value if self.leads else None, src=0)

    def gather(self, value: int) -> list[int]:
        """Return every rank's integer, in rank order; waits for all of them on the host."""
        # Digests are unsigned, and the collective's integers are not.
        self._mine[0] = value - (1 << 64) if value >= 1 << 63 else value
        torch.distributed.all_gather(self._all, self._mine, group=self._group.cpu_group)
        return [int(item[0]) % (1 << 64) for item in self._all]


def vllm_ranks() -> Ranks:
    """Return the tensor-parallel group of this process; a group of one where there is none to speak of."""
    group = import_module(seams.RANKS).get_tp_group()
    return VllmRanks(group) if group.world_size > 1 else Alone()
