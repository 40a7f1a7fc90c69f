"""What a cost table belongs to: every fact that changes step times, as (name, value) pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral

from adaverify_contracts import CostTableError

# Kernels count tokens, requests and lengths in 32 bits.
LARGEST = 2**31 - 1
MOST_DRAFTS = 65536


def _text(value: object) -> str:
    """Return one spelling per value, so that 4 and "4", or a list and a tuple, compare equal after JSON."""
    if isinstance(value, (list, tuple)):
        return ",".join(_text(item) for item in value)
    return str(value)


def _require_counts(ladder: object, draft_tokens: object, shards: object) -> None:
    """Require what ``CostTable.load`` requires of a file's fingerprint."""
    counts = ladder if isinstance(ladder, tuple) else (None,)
    if not all(_counts(item, 1, LARGEST) for item in counts) or list(counts) != sorted(set(counts)):
        raise CostTableError(
            "the ladder of a fingerprint is none",
            arrived=ladder,
            allowed=f"rising token counts in 1 .. {LARGEST}, none in eager mode",
            remedy="pass the captured token counts, such as (8, 16, 32)",
        )
    for name, value, lowest in (("draft_tokens", draft_tokens, 0), ("shards", shards, 1)):
        if not _counts(value, lowest, MOST_DRAFTS):
            raise CostTableError(
                f"the {name} of a fingerprint are no such number",
                arrived=value,
                allowed=f"an int in {lowest} .. {MOST_DRAFTS}",
                remedy=f"pass {name} as the engine has it",
            )


def _counts(value: object, lowest: int, highest: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and lowest <= int(value) <= highest


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The setup a table was measured on; equal fingerprints mean a table may be reused.

    Attributes:
        pairs: (name, value) pairs, sorted by name, both strings.
    """

    pairs: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.pairs]
        if not names or names != sorted(set(names)):
            raise CostTableError(
                "Fingerprint.pairs must be unique and sorted by name",
                arrived=tuple(names),
                allowed="at least one pair, names rising",
                remedy="build it with Fingerprint.of(...)",
            )

    @classmethod
    def of(
        cls,
        *,
        device: str,
        torch: str,
        kernels: str | Iterable[object],
        model: str,
        ladder: Iterable[int],
        draft_tokens: int,
        dtype: str,
        shards: int = 1,
        **more: object,
    ) -> Fingerprint:
        """Return the fingerprint of a setup.

        Args:
            device: what the driver calls the device.
            torch: torch version with its build tag.
            kernels: kernel libraries and versions.
            model: the model's identity.
            ladder: captured token counts, empty in eager mode.
            draft_tokens: K.
            dtype: the model's dtype.
            shards: tensor-parallel shards that share one step.
            **more: fields of the caller's own (driver, threads ...).

        Raises:
            CostTableError: the ladder, K or the shards can be none; a table with them could not be loaded.
        """
        counts = tuple(ladder) if isinstance(ladder, Iterable) and not isinstance(ladder, str) else ladder
        _require_counts(counts, draft_tokens, shards)
        if not isinstance(kernels, Iterable):
            raise CostTableError(
                "the kernels of a fingerprint are none",
                arrived=kernels,
                allowed="a text, or names with versions; none as ()",
                remedy="pass the kernel libraries that take part in a step",
            )
        facts: dict[str, object] = {
            "device": device,
            "torch": torch,
            "kernels": kernels if isinstance(kernels, str) else tuple(kernels),
            "model": model,
            "ladder": counts,
            "draft_tokens": draft_tokens,
            "dtype": dtype,
            "shards": shards,
            **more,
        }
        return cls.from_mapping(facts)

    @classmethod
    def from_mapping(cls, facts: Mapping[str, object]) -> Fingerprint:
        """Return the fingerprint of arbitrary named facts, sorted and spelt as strings."""
        return cls(tuple(sorted((name, _text(value)) for name, value in facts.items())))

    def differences(self, here: Fingerprint) -> dict[str, tuple[object, object]]:
        """Return field -> (value in this one, value in ``here``) for each difference; None where absent."""
        mine, other = dict(self.pairs), dict(here.pairs)
        return {
            name: (mine.get(name), other.get(name))
            for name in sorted(mine.keys() | other.keys())
            if mine.get(name) != other.get(name)
        }
