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
)
from adaverify_testing.conformance.batches import Case, cases
from adaverify_testing.conformance.blame import told
from adaverify_testing.conformance.oracle import Difference, differences
from adaverify_testing.conformance.report import NOT_RUN, READ, CheckFailed, CheckSkipped
from adaverify_testing.conformance.serving import refusal
from adaverify_testing.poisoning import POISON_BYTE, poison

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
# What poison leaves in an int32.
POISON = int.from_bytes(bytes([POISON_BYTE]) * 4, "little", signed=True)


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
        # What build raised, by the check that tells it: the others name that check and do not repeat it.
        self._raised: dict[str, str] = {}
        self.running = ""

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
            CheckFailed: ``supports`` and ``allocate`` disagree or raise something untyped, a builder lacks
                its parts, or no limits are served.
        """
        found: dict[str, Limits | str] = {name: self._served(limits) for name, limits in self.limits.items()}
        if not any(isinstance(value, Limits) for value in found.values()):
            listing = "\n".join(f"  {name}: {why}" for name, why in found.items())
            problem = f"the strategy serves none of the limits it was offered:\n{listing}"
            raise CheckFailed(f"{problem}\n  to do: pass limits that it serves, or widen what it serves")
        return found

    def _served(self, limits: Limits) -> Limits | str:
        return refusal(self.descriptor, limits, self.device, self.capability) or limits

    def builders(self) -> Iterator[tuple[str, Limits, DecodeRowBuilder]]:
        """Yield a fresh builder for each limits that are served.

        Raises:
            CheckSkipped: nothing can be built; another check fails and says why.
        """
        if self.unmet:
            raise CheckSkipped(f"{NOT_RUN}the check 'requirements' failed")
        try:
            served = self.served
        except CheckFailed as error:
            raise CheckSkipped(f"{NOT_RUN}the check 'allocation' failed") from error
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
        """Build and return the rows; whatever the builder raises becomes a failure in words, once.

        Raises:
            CheckFailed: the build raised.
            CheckSkipped: it raised the same in another check, which says so.
        """
        try:
            rows = builder.build(batch)
        except Exception as error:
            problem = f"build raised {told(error)}"
            teller = self._raised.setdefault(problem, self.running)
            if teller != self.running:
                raise CheckSkipped(f"{NOT_RUN}{problem}, see the check {teller!r}") from error
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


def require_plain(subject: Subject, case: Case, name: str, limits: Limits) -> None:
    """Require that a builder of its own gives right rows for a batch in which nothing special is.

    Checks that compare values call this first: their own diagnosis would mislead where no row is right.

    Raises:
        CheckFailed: the rows are wrong already.
    """
    builder = subject.descriptor.allocate(limits, subject.device, subject.capability)
    poison_rows(subject.build_case(builder, case, limits))
    found = differences(subject.build_case(builder, case, limits), case, limits)
    # Padding that still holds the poison was not written: that is for the checks of what stays behind.
    wrong = [item for item in found if not (item.padding and item.got == POISON)]
    lead = "rows are wrong already in a plain batch: see the checks row_semantics and padding first"
    require(wrong[:1], name, limits, case, lead)


def judge(
    rows: DecodeRows, case: Case, name: str, limits: Limits, lead: str = "rows break the contract"
) -> None:
    """Compare rows with the contract.

    Raises:
        CheckFailed: they differ.
    """
    require(differences(rows, case, limits), name, limits, case, lead)
