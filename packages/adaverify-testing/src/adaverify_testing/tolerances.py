"""How far a result may be from its float32 reference, by dtype, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adaverify_contracts import LayoutError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Allowed ``|actual - expected| <= atol + rtol x |expected|``, and why.

    Attributes:
        rtol: relative part.
        atol: absolute part, for results near zero; suits values of magnitude about 1.
        reason: where the numbers come from.
    """

    rtol: float
    atol: float
    reason: str


# Each rtol is a few units of the dtype's last place (2^-mantissa bits): one rounding of the inputs and one of
# the result, and a reordered float32 sum between them.
TOLERANCES: dict[str, Tolerance] = {
    "float64": Tolerance(1e-7, 1e-9, "computed in float64 against a float32 reference (2^-23 = 1.2e-7)"),
    "float32": Tolerance(1e-5, 1e-6, "sums of some hundred terms in another order; 2^-23 = 1.2e-7 each"),
    "float16": Tolerance(2e-3, 1e-3, "two roundings at 2^-10 = 9.8e-4"),
    "bfloat16": Tolerance(1.6e-2, 8e-3, "two roundings at 2^-7 = 7.8e-3"),
    "float8_e4m3fn": Tolerance(2.5e-1, 6e-2, "two roundings at 2^-3 = 1.25e-1"),
    "float8_e5m2": Tolerance(5e-1, 1.25e-1, "two roundings at 2^-2 = 2.5e-1"),
}
EXACT = Tolerance(0.0, 0.0, "integers and bools are compared exactly")


def tolerance(dtype: torch.dtype | str) -> Tolerance:
    """Return the tolerance of a dtype (``torch.bfloat16`` or ``bfloat16``); zero for integers and bools.

    Raises:
        LayoutError: a floating-point dtype that the table lacks; nothing is guessed.
    """
    word = str(dtype).removeprefix("torch.")
    if word.startswith(("int", "uint", "bool")):
        return EXACT
    if word not in TOLERANCES:
        raise LayoutError(
            "no tolerance is listed for this dtype",
            arrived=word,
            allowed=", ".join(TOLERANCES),
            remedy="compare in a listed dtype, or pass rtol and atol with a reason of your own",
        )
    return TOLERANCES[word]


def assert_close(
    actual: torch.Tensor, expected: torch.Tensor, *, dtype: torch.dtype | str | None = None
) -> None:
    """Assert equal shape and values within the tolerance; a NaN on either side is a difference.

    Args:
        actual: what the code under test computed, any device.
        expected: the reference, any float dtype; for integers of the same dtype as ``actual``.
        dtype: whose tolerance holds, ``actual``'s by default; name the coarsest dtype on the way when the
            result was widened.

    Raises:
        AssertionError: with the worst element, its coordinates, and how many differ.
    """
    import torch

    allowed = tolerance(actual.dtype if dtype is None else dtype)
    if tuple(actual.shape) != tuple(expected.shape):
        raise AssertionError(f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    if not actual.is_floating_point() and actual.dtype is not expected.dtype:
        raise AssertionError(f"dtype {actual.dtype}, expected {expected.dtype}")
    if actual.numel() == 0:
        return
    have, want = actual.detach().cpu(), expected.detach().cpu()
    if actual.is_floating_point():
        have, want = have.double(), want.double()
        # Equal infinities have no difference; inf - inf would be a NaN.
        off = torch.where(have == want, 0.0, (have - want).abs())
        wrong = ~(off <= allowed.atol + allowed.rtol * want.abs()) | want.isinf() & (have != want)
    else:
        wrong = have != want
        off = wrong.double()
    if wrong.any():
        raise AssertionError(_difference(have, want, off, wrong, allowed))


def _difference(
    have: torch.Tensor, want: torch.Tensor, off: torch.Tensor, wrong: torch.Tensor, allowed: Tolerance
) -> str:
    import torch

    ranked = torch.where(wrong, off.nan_to_num(nan=float("inf"), posinf=float("inf")), -1.0)
    flat = int(ranked.flatten().argmax())
    place = tuple(int(part) for part in torch.unravel_index(torch.tensor(flat), have.shape))
    return (
        f"{int(wrong.sum())} of {have.numel()} elements differ; worst at {place}: "
        f"{have.flatten()[flat].item()!r}, expected {want.flatten()[flat].item()!r} "
        f"(rtol {allowed.rtol:g}, atol {allowed.atol:g}: {allowed.reason})"
    )
