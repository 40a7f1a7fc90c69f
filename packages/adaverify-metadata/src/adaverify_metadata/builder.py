"""Row builders: static buffers made once, one launch a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Literal

import torch

from adaverify_contracts import DecodeBatch, DecodeRows, LayoutError, Limits, LimitsError
from adaverify_metadata.checked import check_batch, check_rows, require_batch
from adaverify_metadata.layout import RowLayout, reference_rows
from adaverify_metadata.ops.launch_config import LaunchConfig
from adaverify_metadata.ops.row_launch import RowLaunch
from adaverify_metadata.schedule import RowSchedule

Backend = Literal["torch", "triton"]

# Shapes an engine replays are its tiers, some tens; eager batches could show every (R, T). Views are cheap to
# remake.
_MAX_CACHED_VIEWS = 4096


def _require_backend(backend: str) -> None:
    if backend not in ("torch", "triton"):
        raise LimitsError(
            "no such backend of row builders",
            arrived=backend,
            allowed="torch, triton",
            remedy="choose torch anywhere, triton on a GPU",
        )


class RowBuilder(ABC):
    """Static buffers of one strategy and the one launch that fills them.

    ``build`` may be captured in a graph and replayed with other device lengths of the same padded shape: the
    Triton backend neither allocates device memory nor reads a device value, and its grid depends on the
    padded shape alone. The torch backend is the readable reference: it makes temporaries, on a GPU from the
    graph's own pool, and reads nothing either. ``checked=True`` gives that up: every build then copies the
    batch and its rows to the host and validates them, so it synchronises and cannot be captured.

    Args:
        strategy: name the rows carry.
        limits: the sizes the buffers are made for.
        device: where batches live.
        backend: ``torch`` or ``triton``.
        launch: launch parameters of the Triton kernel; results do not depend on them.
        max_rows: rows the buffers hold; by default the rows of the largest decode step of ``limits``.
        checked: validate every batch and its rows on the host, for tests and debugging only.
        num_pages: pages of the KV pool, read in checked mode only.
        schedule: a kernel library's work schedule to rebuild with the rows.

    Raises:
        LimitsError: unknown backend, or max_rows below 1.
        CapabilityError: the Triton backend on a CPU outside the interpreter.
        ImportError: the Triton backend without Triton.
    """

    def __init__(
        self,
        strategy: str,
        limits: Limits,
        device: str | torch.device,
        *,
        backend: Backend,
        launch: LaunchConfig | None = None,
        max_rows: int | None = None,
        checked: bool = False,
        num_pages: int | None = None,
        schedule: RowSchedule | None = None,
    ) -> None:
        if max_rows is not None and max_rows < 1:
            raise LimitsError(
                "max_rows is out of range",
                arrived=max_rows,
                allowed="None or an int >= 1",
                remedy="leave it None for the rows of the largest decode step",
            )
        self._strategy, self._limits, self._device = strategy, limits, torch.device(device)
        _require_backend(backend)
        self._checked, self._num_pages, self._schedule = checked, num_pages, schedule
        self._max_rows = max_rows or self._default_rows()
        self._max_tokens = limits.max_tokens if max_rows is None else max_rows * self._widest_row()
        self._buffers = MappingProxyType(self._allocate())
        self._device = self._buffers["row_lens"].device
        self._views: dict[tuple[int, int, int], DecodeRows] = {}
        self._launch: RowLaunch | None = None
        if backend == "triton":
            self._launch = self._prepare(launch or LaunchConfig())
            self._warm_up()

    @property
    def strategy(self) -> str:
        """Name of the strategy that owns these buffers."""
        return self._strategy

    @property
    def limits(self) -> Limits:
        """The sizes these buffers are made for."""
        return self._limits

    @property
    def buffers(self) -> Mapping[str, torch.Tensor]:
        """Every static tensor by name. Addresses never change."""
        return self._buffers

    def build(self, batch: DecodeBatch) -> DecodeRows:
        """Write this step's rows into the static buffers and return views of them.

        The views of one padded shape are made once and returned again; the next build of any shape overwrites
        their content.

        The kernel is compiled when the builder is made, for tables whose row stride is the limits' width. A
        table strided otherwise (a multiple of 16 or not) compiles once more at its first build: run one such
        build before a capture.

        Device values are *not checked*: reading them would wait, and no builder does it, on any device. A
        ``query_start_loc`` that falls, ends elsewhere than its rows or holds a query longer than K + 1 gives
        rows of the wrong requests, silently. ``checked=True`` looks at them, for tests.

        Raises:
            LayoutError: it is no batch, or does not fit the limits the buffers were made for; in checked mode
                also if a device value is wrong.
        """
        require_batch(batch)
        rows, width = self._shape(batch)
        self._require_fit(batch, rows, width)
        if self._checked:
            check_batch(batch, self._limits, self._num_pages)
        views = self._cut(batch, rows, width)
        with self._on_device():
            if self._launch is None:
                self._write_reference(batch, views)
            else:
                self._launch(batch, width)
            if self._schedule is not None:
                self._schedule.build(views.schedule_lens, views.request_indices, views.row_lens)
        if self._checked:
            check_rows(views, batch)
        return views

    @abstractmethod
    def _default_rows(self) -> int:
        """Return the rows of the largest decode step."""

    @abstractmethod
    def _widest_row(self) -> int:
        """Return the largest N."""

    @abstractmethod
    def _shape(self, batch: DecodeBatch) -> tuple[int, int]:
        """Return (M, N) of a batch, from its padded shape alone."""

    @abstractmethod
    def _layout(self, batch: DecodeBatch, width: int) -> RowLayout:
        """Return the reference layout."""

    @abstractmethod
    def _prepare(self, config: LaunchConfig) -> RowLaunch:
        """Return the Triton launch bound to the static buffers."""

    def _grouped(self) -> bool:
        """Return whether rows carry request indices."""
        return False

    def _allocate(self) -> dict[str, torch.Tensor]:
        slots, width = self._max_rows * self._widest_row(), self._limits.table_width
        # Rows of the table start 16 bytes apart or a multiple, so that four page ids move at once.
        stride = -(-width // 4) * 4
        shapes = {
            "row_lens": (slots,),
            "schedule_lens": (slots,),
            "block_table": (self._max_rows, stride),
            "row_request": (self._max_rows,),
            "row_token": (slots,),
            "token_slot": (self._max_tokens,),
        }
        made = {name: torch.zeros(s, dtype=torch.int32, device=self._device) for name, s in shapes.items()}
        made["block_table"] = made["block_table"][:, :width]
        if self._schedule is not None:
            made["schedule"] = self._schedule.schedule
        return made

    def _warm_up(self) -> None:
        # Compile here: a first call inside a capture would compile there, and a failure belongs to start-up.
        zeros = torch.zeros(2, dtype=torch.int32, device=self._device)
        table = torch.zeros(1, self._limits.table_width, dtype=torch.int32, device=self._device)
        self.build(DecodeBatch(zeros, zeros[:1], table, 0, 0, 1, 1, uniform_query_len=1))

    def _on_device(self) -> AbstractContextManager[object]:
        if self._device.type != "cuda" or torch.cuda.current_device() == self._device.index:
            return nullcontext()
        return torch.cuda.device(self._device)

    def _require_fit(self, batch: DecodeBatch, rows: int, width: int) -> None:
        limits, table, widest = self._limits, batch.block_table.shape[1], self._widest_row()
        if (
            batch.seq_lens.device == self._device
            and table == limits.table_width
            and batch.requests <= limits.max_requests
            and batch.padded_tokens <= self._max_tokens
            and rows <= self._max_rows
            and width <= widest
        ):
            return
        arrived = {
            "device": str(batch.seq_lens.device),
            "block_table columns": table,
            "requests": batch.requests,
            "tokens": batch.padded_tokens,
            "rows": rows,
            "tokens in a row": width,
        }
        allowed = (
            f"on {self._device}, exactly {limits.table_width} block_table columns, at most "
            f"{limits.max_requests} requests, {self._max_tokens} tokens, {self._max_rows} rows, "
            f"{widest} tokens in a row"
        )
        raise LayoutError(
            f"the batch does not fit the static buffers of strategy {self._strategy!r}",
            arrived=arrived,
            allowed=allowed,
            remedy="allocate a builder with limits that hold this batch; buffers never change size",
        )

    def _cut(self, batch: DecodeBatch, rows: int, width: int) -> DecodeRows:
        key = (rows, width, batch.padded_tokens)
        views = self._views.get(key)
        if views is None:
            if len(self._views) >= _MAX_CACHED_VIEWS:
                self._views.clear()
            own, slots = self._buffers, rows * width
            views = self._views[key] = DecodeRows(
                strategy=self._strategy,
                tokens_per_row=width,
                row_lens=own["row_lens"][:slots].view(rows, width),
                schedule_lens=own["schedule_lens"][:slots].view(rows, width),
                block_table=own["block_table"][:rows],
                row_request=own["row_request"][:rows],
                row_token=own["row_token"][:slots].view(rows, width),
                token_slot=own["token_slot"][: batch.padded_tokens],
                request_indices=own["row_request"][:rows] if self._grouped() else None,
                schedule=own.get("schedule"),
            )
        return views

    def _write_reference(self, batch: DecodeBatch, views: DecodeRows) -> None:
        found = reference_rows(self._strategy, batch, self._limits, self._layout(batch, views.tokens_per_row))
        for name in ("row_lens", "schedule_lens", "row_request", "row_token", "token_slot"):
            getattr(views, name).copy_(getattr(found.rows, name))
        column = torch.arange(self._limits.table_width, device=self._device)
        needed = column < found.pages[:, None]
        views.block_table.copy_(torch.where(needed, found.rows.block_table, views.block_table))
