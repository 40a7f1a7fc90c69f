"""The strategy under test: where it runs, which limits it serves, and its builds with errors in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING

from adaverify_contracts import (
    Capability,
    DecodeBatch,
    DecodeRowBuilder,
    DecodeRows,
    DecodeStrategyDescriptor,
    Limits,
    LimitsError,
)
from adaverify_testing.conformance.batches import Case, cases
from adaverify_testing.conformance.oracle import Difference, differences
from adaverify_testing.conformance.report import CheckFailed, CheckSkipped
from adaverify_testing.poisoning import poison

if TYPE_CHECKING:
    import torch

# A page of 64 is what kernels take; the others are served or refused with LimitsError, never misread.
DEFAULT_LIMITS: Mapping[str, Limits] = {
    "plain": Limits(max_requests=8, draft_tokens=3, max_model_len=300, page_size=64),
    "single": Limits(max_requests=1, draft_tokens=0, max_model_len=130, page_size=64),
    "long drafts": Limits(max_requests=3, draft_tokens=7, max_model_len=200, page_size=64),
    "small pages": Limits(max_requests=5, draft_tokens=2, max_model_len=60, page_size=16),
    "compressed": Limits(max_requests=4, draft_tokens=3, max_model_len=700, page_size=64, compress_ratio=4),
    "context parallel": Limits(
        max_requests=4,
        draft_tokens=3,
        max_model_len=300,
        page_size=64,
        context_parallel_size=2,
        context_parallel_rank=1,
        context_parallel_interleave=2,
    ),
}
# An interpreted kernel takes 0.1 to 2 s a build, torch operations 0.3 ms; the kit makes some 3,000 builds.
# Above this time a build it takes two of the limits and every few batches.
SLOW_SECONDS = 0.01
READ = "read: adaverify_contracts.DecodeRows and DecodeRowBuilder; docs/explanation/metadata.md"


class Subject:
    """One strategy on one device.

    Args:
        descriptor: the strategy as its plugin registers it.
        limits: sizes to allocate for, by name.
        device: where batches live.
        capability: what the factory is told about the device.
    """

    def __init__(
        self,
        descriptor: DecodeStrategyDescriptor,
        limits: Mapping[str, Limits],
        device: torch.device,
        capability: Capability,
    ) -> None:
        self.descriptor = descriptor
        self.limits = limits
        self.device = device
        self.capability = capability

    @property
    def uniform(self) -> bool:
        """Whether the strategy serves uniform batches only."""
        return not self.descriptor.device_lengths

    @cached_property
    def unmet(self) -> tuple[str, ...]:
        """Every requirement that the capability does not meet."""
        return self.descriptor.requirements.unmet(self.capability)

    @cached_property
    def served(self) -> dict[str, Limits | str]:
        """The limits by name, or in their place why the strategy refuses them.

        Raises:
            CheckFailed: ``supports`` and ``allocate`` disagree, ``allocate`` raised something untyped, or no
                limits are served.
        """
        found: dict[str, Limits | str] = {name: self._served(limits) for name, limits in self.limits.items()}
        if not any(isinstance(value, Limits) for value in found.values()):
            listing = "\n".join(f"  {name}: {why}" for name, why in found.items())
            problem = f"the strategy serves none of the limits it was offered:\n{listing}"
            raise CheckFailed(f"{problem}\n  to do: pass limits that it serves, or widen what it serves")
        return found

    def _served(self, limits: Limits) -> Limits | str:
        asked = self.descriptor.supports
        reasons = asked(limits) if asked is not None else ()
        if not isinstance(reasons, tuple) or not all(isinstance(reason, str) for reason in reasons):
            raise CheckFailed(f"supports returned {reasons!r}\n  contract: all reasons, a tuple of str")
        if reasons:
            return "; ".join(reasons)
        try:
            self.descriptor.allocate(limits, self.device, self.capability)
        except LimitsError as error:
            if asked is not None:
                problem = f"supports({limits}) found no reason, yet allocate raised LimitsError: {error}"
                raise CheckFailed(f"{problem}\n  contract: supports returns all reasons") from error
            return str(error)
        except Exception as error:
            hint = ""
            if self.device.type == "cpu" and "Triton" in str(error):
                hint = "\n  to do: run with TRITON_INTERPRET=1 in the environment, or on the device"
            raise CheckFailed(
                f"allocate raised {type(error).__name__}: {error}\n  contract: StrategyFactory returns a "
                f"builder or raises LimitsError{hint}"
            ) from error
        return limits

    def builders(self) -> Iterator[tuple[str, Limits, DecodeRowBuilder]]:
        """Yield a fresh builder for each limits that are served.

        Raises:
            CheckSkipped: nothing can be built; another check fails and says why.
        """
        if self.unmet:
            raise CheckSkipped("not run: the check 'requirements' failed")
        try:
            served = self.served
        except CheckFailed as error:
            raise CheckSkipped("not run: the check 'allocation' failed") from error
        taken = ((name, limits) for name, limits in served.items() if isinstance(limits, Limits))
        for name, limits in islice(taken, 2 if self.slow else None):
            yield name, limits, self.descriptor.allocate(limits, self.device, self.capability)

    @cached_property
    def slow(self) -> bool:
        """Whether one build takes so long that the kit samples its batches; False where builds fail."""
        limits = next(limits for limits in self.served.values() if isinstance(limits, Limits))
        builder = self.descriptor.allocate(limits, self.device, self.capability)
        case = next(iter(cases(limits, uniform=self.uniform)))
        batch = case.batch(limits, self.device)
        try:
            builder.build(batch)
            began = perf_counter()
            builder.build(batch)
        except Exception:  # noqa: BLE001 - the checks build again and say what was raised
            return False
        return perf_counter() - began > SLOW_SECONDS

    def cases(self, limits: Limits, count: int = 16, seed: int = 0) -> list[Case]:
        """Return corners and ``count`` random batches of the kind that is served; every few when slow."""
        found = list(cases(limits, uniform=self.uniform, count=count, seed=seed))
        return found[:: max(1, len(found) // 4)] if self.slow else found

    def effort(self) -> str:
        """Return in words which limits the checks use, and why fewer than they could."""
        found = [name for name, _, _ in self.builders()]
        refused = [f"{name} ({why})" for name, why in self.served.items() if not isinstance(why, Limits)]
        words = f"limits {', '.join(found)}"
        if refused:
            words += f"; not served: {'; '.join(refused)}"
        return words + "; sampled, because a build takes over 10 ms here" * self.slow

    def first(self) -> tuple[str, Limits, DecodeRowBuilder]:
        """Return name, limits and a fresh builder of the first limits that are served."""
        return next(self.builders())

    def build(self, builder: DecodeRowBuilder, batch: DecodeBatch, about: str) -> DecodeRows:
        """Build and return the rows; whatever the builder raises becomes a failure in words."""
        try:
            rows = builder.build(batch)
        except Exception as error:
            problem = f"build raised {type(error).__name__}: {error}"
            contract = "build raises only LayoutError, and only for a batch outside the limits"
            raise CheckFailed(f"{problem}\n  {about}\n  contract: {contract}\n  {READ}") from error
        if not isinstance(rows, DecodeRows):
            raise CheckFailed(f"build returned {type(rows).__name__}\n  contract: DecodeRows\n  {READ}")
        return rows

    def build_case(self, builder: DecodeRowBuilder, case: Case, limits: Limits) -> DecodeRows:
        """Build the rows of a case from tensors of its own."""
        return self.build(builder, case.batch(limits, self.device), case.describe())


def views(rows: DecodeRows) -> dict[str, torch.Tensor]:
    """Return every tensor of the rows by field."""
    names = (
        "row_lens",
        "schedule_lens",
        "block_table",
        "row_request",
        "row_token",
        "token_slot",
        "request_indices",
        "schedule",
    )
    found = {name: getattr(rows, name) for name in names}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def poison_rows(rows: DecodeRows) -> None:
    """Overwrite what every build rewrites; table columns beyond a row's need are not among it."""
    for name, tensor in views(rows).items():
        if name != "block_table":
            poison(tensor)


def require(
    found: Sequence[Difference], name: str, limits: Limits, case: Case, lead: str = "rows break the contract"
) -> None:
    """Raise for differences, the first three in full.

    Raises:
        CheckFailed: there is one.
    """
    if not found:
        return
    shown = "\n".join(difference.text() for difference in found[:3])
    more = f"\n... and {len(found) - 3} more places" if len(found) > 3 else ""
    raise CheckFailed(f"{lead}\n  {case.describe()}\n  limits {name!r}: {limits}\n{shown}{more}\n{READ}")


def judge(
    rows: DecodeRows, case: Case, name: str, limits: Limits, lead: str = "rows break the contract"
) -> None:
    """Compare rows with the contract.

    Raises:
        CheckFailed: they differ.
    """
    require(differences(rows, case, limits), name, limits, case, lead)
