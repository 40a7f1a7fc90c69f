"""Every torch reference in one place: pure functions, free to allocate, exact."""

from adaverify_metadata.lengths import compress_lens, local_lens, localize_lens
from adaverify_metadata.ops.flatten.reference import flatten_rows
from adaverify_metadata.ops.head_heavy.reference import schedule_head_heavy
from adaverify_metadata.ops.paired.reference import paired_rows
from adaverify_metadata.ops.paired_units.reference import schedule_paired_units
from adaverify_metadata.ops.tail_heavy.reference import schedule_tail_heavy
from adaverify_metadata.ops.uniform.reference import uniform_rows
from adaverify_metadata.ops.varlen.reference import varlen_rows

__all__ = [
    "compress_lens",
    "flatten_rows",
    "local_lens",
    "localize_lens",
    "paired_rows",
    "schedule_head_heavy",
    "schedule_paired_units",
    "schedule_tail_heavy",
    "uniform_rows",
    "varlen_rows",
]
