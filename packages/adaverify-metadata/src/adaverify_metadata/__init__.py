"""Decode-row builders for ragged batches: readable torch reference and Triton kernels."""

from adaverify_metadata.builder import RowBuilder
from adaverify_metadata.builders import (
    FlattenRowBuilder,
    PairedRowBuilder,
    UniformRowBuilder,
    VarlenRowBuilder,
)
from adaverify_metadata.checked import check_batch, check_rows
from adaverify_metadata.lengths import compress_lens, localize_lens
from adaverify_metadata.ops.flatten.reference import flatten_rows
from adaverify_metadata.ops.head_heavy.reference import schedule_head_heavy
from adaverify_metadata.ops.launch_config import LaunchConfig
from adaverify_metadata.ops.mask_logits.launch import mask_logits
from adaverify_metadata.ops.paired.reference import paired_row_count, paired_rows
from adaverify_metadata.ops.paired_units.reference import schedule_paired_units
from adaverify_metadata.ops.tail_heavy.reference import schedule_tail_heavy
from adaverify_metadata.ops.uniform.reference import uniform_rows
from adaverify_metadata.ops.varlen.reference import varlen_rows
from adaverify_metadata.paged_logits import (
    pack_pages,
    paged_mqa_logits_reference,
    relative_errors,
    unpack_pages,
)
from adaverify_metadata.schedule import HeadHeavySchedule, PairedUnitsSchedule, RowSchedule, TailHeavySchedule
from adaverify_metadata.walk import Walk, walk_head_heavy, walk_paired_units, walk_tail_heavy

__all__ = [
    "FlattenRowBuilder",
    "HeadHeavySchedule",
    "LaunchConfig",
    "PairedRowBuilder",
    "PairedUnitsSchedule",
    "RowBuilder",
    "RowSchedule",
    "TailHeavySchedule",
    "UniformRowBuilder",
    "VarlenRowBuilder",
    "Walk",
    "check_batch",
    "check_rows",
    "compress_lens",
    "flatten_rows",
    "localize_lens",
    "mask_logits",
    "pack_pages",
    "paged_mqa_logits_reference",
    "paired_row_count",
    "paired_rows",
    "relative_errors",
    "schedule_head_heavy",
    "schedule_paired_units",
    "schedule_tail_heavy",
    "uniform_rows",
    "unpack_pages",
    "varlen_rows",
    "walk_head_heavy",
    "walk_paired_units",
    "walk_tail_heavy",
]
