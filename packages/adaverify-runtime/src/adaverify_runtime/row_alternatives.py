"""Which ragged strategies stand beside the chosen one, by what the row-cost table mentions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from adaverify_contracts import Capability, DecodeStrategyDescriptor, Limits
from adaverify_runtime.row_choice import RowChoice, RowCostTable
from adaverify_runtime.selection import Selection


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Strategies to allocate beside the chosen ragged one, what chooses among them, and why in words."""

    alternatives: tuple[DecodeStrategyDescriptor, ...]
    rows: RowChoice | None
    notes: tuple[str, ...]


def choose_alternatives(selection: Selection, table: RowCostTable | None) -> Alternatives:
    """Return the alternatives that fit and that the table has measured; the others are named in the notes."""
    primary = selection.ragged
    if primary is None or (table is None and not selection.alternatives):
        return Alternatives((), None, ())
    if table is None:
        names = ", ".join(item.name for item in selection.alternatives)
        return Alternatives(
            (), None, (f"rows: {primary.name} for every shape; no row-cost table compares it with {names}",)
        )
    if primary.name not in table.strategies:
        note = f"rows: {primary.name} for every shape; the row-cost table has not measured it"
        return Alternatives((), None, (note,))
    taken = tuple(item for item in selection.alternatives if item.name in table.strategies)
    notes = [
        f"rows: {item.name} fits too, and the row-cost table does not mention it"
        for item in selection.alternatives
        if item not in taken
    ]
    if not taken:
        notes.append(f"rows: {primary.name} for every shape; nothing else that was measured may be used here")
        return Alternatives((), None, tuple(notes))
    names = ", ".join(item.name for item in taken)
    where = table.fingerprint.get("device", "an unnamed device")
    notes.append(f"rows: {primary.name}, or {names} where that was measured to be faster on {where}")
    return Alternatives(taken, RowChoice(table, primary.name, [item.name for item in taken]), tuple(notes))


def load_for(path: Path, capability: Capability, limits: Limits | None) -> RowCostTable:
    """Read a row-cost table that was measured on this device.

    Compared are the device, which every table has to name, and those of the page size and the versions known
    here that its fingerprint holds. What the runtime does not know, such as heads, is the measurer's word.

    Raises:
        CostTableError: the file cannot be read, or is no table.
        FingerprintMismatchError: it was measured on another setup.
    """
    known: dict[str, object] = {name: version for name, version in capability.versions if version}
    known |= {item.name.replace("-", "_"): item.version for item in capability.kernels if item.version}
    if limits is not None:
        known["page_size"] = limits.page_size
    written = RowCostTable.load(path).fingerprint
    expected = {name: value for name, value in known.items() if name in written}
    return RowCostTable.load(path, {"device": capability.device_name, **expected})
